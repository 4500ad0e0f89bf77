//! Reads the seeds and the size of random tests from the environment.
//!
//! `TASKYARD_SEED` is the first seed, and `TASKYARD_RUNS` multiplies what a test does. `cargo xtask storm` sets both.

/// How many times as much as usual a random test does.
pub fn runs() -> usize {
    number("TASKYARD_RUNS").map_or(1, |runs| runs as usize)
}

/// How much one long random test does: `usual`, or `each_run` for each of `TASKYARD_RUNS`. A storm with five runs does all that is
/// promised; a usual run is short.
pub fn amount(usual: usize, each_run: usize) -> usize {
    number("TASKYARD_RUNS").map_or(usual, |runs| runs as usize * each_run)
}

/// The given seed, or 0.
pub fn first_seed() -> u64 {
    number("TASKYARD_SEED").unwrap_or(0)
}

/// The seeds of a test that has `count` of them by default: [`runs`] times as many, from the first on.
pub fn seeds(count: u64) -> Vec<u64> {
    (0..count * runs() as u64).map(|number| first_seed().wrapping_add(number)).collect()
}

/// The given seed, or another one in each run. It is printed, so that a failure shows it.
pub fn new_seed() -> u64 {
    let seed = number("TASKYARD_SEED").unwrap_or_else(|| u64::from(fastrand::u32(..)));
    println!("repeat with TASKYARD_SEED={seed}");
    seed
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

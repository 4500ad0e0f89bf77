//! Reads the seed and the size of random tests from the environment.

/// How much more a random test does than usual: `TASKYARD_RUNS`.
pub fn runs() -> u64 {
    number("TASKYARD_RUNS").unwrap_or(1)
}

/// The first seed of a random test: `TASKYARD_SEED`, or always the same.
pub fn first_seed() -> u64 {
    let seed = number("TASKYARD_SEED").unwrap_or(0);
    println!("TASKYARD_SEED={seed}");
    seed
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

//! `cargo xtask storm`: runs the random tests again and again, with new seeds and larger sizes than `cargo xtask test`.
//!
//! Random tests read two variables: `TASKYARD_SEED` is their first seed, and `TASKYARD_RUNS` multiplies what they do. A failure is
//! repeated with the seed that is printed before each round.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use crate::fixtures::{self, Failures, without_fixtures};
use crate::shell;
use crate::test::{runner, with_tools};
use crate::tools::{self, Tools};

/// The variables that random tests read: their seed, and the factor of what they do.
pub const VARIABLES: [&str; 2] = ["TASKYARD_SEED", "TASKYARD_RUNS"];

/// Parts of the names of random tests. `cargo xtask tidy` checks that each test that reads a variable has one of them.
pub const RANDOM_TESTS: &[&str] = &[
    "bodies::",
    "compare::",
    "concurrent_clients",
    "conforms_to_its_document",
    "crash",
    "damage",
    "data_loss",
    "disk::",
    "history::",
    "installed_package",
    "interleaved",
    "killed_at_any_step",
    "killed_servers",
    "kills",
    "list::pages",
    "machine::tests",
    "memory::",
    "merging::",
    "model",
    "pooled",
    "promises",
    "random",
    "same_keys",
    "storm",
];

/// How much more each test does than in `cargo xtask test`.
const RUNS: u64 = 5;

/// The distance between the seeds of two rounds. It is more than a test uses, so that no round repeats runs of another.
const SEEDS_PER_ROUND: u64 = 10_000;

/// The arguments of `storm`.
#[derive(Debug, PartialEq, Eq)]
pub struct StormOptions {
    /// How long to go on; a round that has begun is finished.
    pub minutes: u64,
    /// The seed of the first round; those of the next rounds are higher.
    pub seed: Option<u64>,
}

impl StormOptions {
    /// Reads the arguments after `storm`.
    pub fn parse(args: &[String]) -> Result<Self, String> {
        let (mut minutes, mut seed) = (None, None);
        for pair in args.chunks(2) {
            let number = pair.get(1).and_then(|value| value.parse().ok());
            match (pair[0].as_str(), number) {
                ("--minutes", Some(number)) if number > 0 => minutes = Some(number),
                ("--seed", Some(number)) => seed = Some(number),
                _ => {
                    let args = args.join(" ");
                    return Err(format!("`storm` accepts --minutes N and --seed N, not `{args}`"));
                }
            }
        }
        let minutes = minutes.ok_or("`storm` needs --minutes N")?;
        Ok(StormOptions { minutes, seed })
    }
}

/// Runs rounds until the time is over; the first round that fails ends it.
pub fn run(options: &StormOptions) -> Result<(), String> {
    let tools = tools::prepare()?;
    shell::run(runner(true).arg("--no-run"))?;
    let started = Instant::now();
    let first = options.seed.unwrap_or_else(time_seed);
    let mut rounds = 0;
    while rounds == 0 || started.elapsed() < Duration::from_secs(60 * options.minutes) {
        let seed = first.wrapping_add(rounds * SEEDS_PER_ROUND);
        eprintln!("\n== round {}: TASKYARD_SEED={seed} TASKYARD_RUNS={RUNS}", rounds + 1);
        round(&tools, seed).map_err(|error| {
            format!("{error}\nrepeat with: cargo xtask storm --minutes 1 --seed {seed}")
        })?;
        rounds += 1;
    }
    println!(
        "storm: {rounds} rounds passed, seeds {first} to {}",
        first.wrapping_add((rounds - 1) * SEEDS_PER_ROUND)
    );
    Ok(())
}

fn round(tools: &Tools, seed: u64) -> Result<(), String> {
    let seeded = |command: &mut Command| {
        with_tools(command, Some(tools));
        command.envs(VARIABLES.into_iter().zip([seed.to_string(), RUNS.to_string()]));
    };
    let mut tests = runner(true);
    tests.args(["--no-fail-fast", "--retries", "0", "--filterset", &filterset()]);
    seeded(&mut tests);
    shell::run(&mut tests)?;
    fixtures::run(RANDOM_TESTS, seeded, Failures::Fail).map(drop)
}

/// The random tests that share no database or browser, as a filterset of nextest.
fn filterset() -> String {
    let names: Vec<_> = RANDOM_TESTS.iter().map(|name| format!("test({name})")).collect();
    format!("{} and ({})", without_fixtures(), names.join(" or "))
}

fn time_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<StormOptions, String> {
        StormOptions::parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn minutes_and_perhaps_a_seed() {
        assert_eq!(parsed("--minutes 5"), Ok(StormOptions { minutes: 5, seed: None }));
        let seeded = StormOptions { minutes: 1, seed: Some(7) };
        assert_eq!(parsed("--seed 7 --minutes 1"), Ok(seeded));
        for line in ["", "--minutes", "--minutes 0", "--minutes x", "5", "--seed 1"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_filter_names_random_tests_without_fixtures() {
        let filter = filterset();
        assert!(filter.contains("test(storm)") && filter.contains("not (binary(postgres)"));
    }
}

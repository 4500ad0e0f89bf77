//! `cargo xtask simulate`: builds the simulator for speed and runs it. `cargo xtask test` runs the one that its tests built, beside them.

use std::thread::JoinHandle;

use crate::shell;

/// The first seed that every test run simulates; a second run begins with a new one.
const FIXED_SEED: &str = "1";
/// How long each of the two runs takes.
const MINUTES: &str = "0.5";

/// Runs the simulator with these arguments, which it checks itself.
pub fn run(args: &[String]) -> Result<(), String> {
    let mut build = shell::cargo();
    build.args(["build", "--quiet", "--release", "--package", "taskyard-simulator"]);
    shell::run(&mut build)?;
    let mut command = shell::program(shell::target().join("release/taskyard-simulator"));
    shell::run(command.args(args))
}

/// The simulator while the tests run: for half a minute from a fixed seed, then for half a minute from a new one. It uses one core
/// for this minute, and the tests often wait for other processes.
pub struct BackgroundSimulator(JoinHandle<Result<Vec<String>, String>>);

impl BackgroundSimulator {
    /// Starts it. The tests of the simulator have built it.
    pub fn start() -> Self {
        BackgroundSimulator(std::thread::spawn(|| {
            let fixed = simulate(&["--minutes", MINUTES, "--seed", FIXED_SEED])?;
            let fresh = simulate(&["--minutes", MINUTES])?;
            Ok(vec![format!("fixed: {fixed}"), format!("fresh: {fresh}")])
        }))
    }

    /// Waits for its end. Returns one line for each of the two runs, with its first seed.
    pub fn finish(self) -> Result<Vec<String>, String> {
        self.0.join().unwrap_or_else(|_| Err("the simulator could not be started".into()))
    }
}

/// Runs the simulator silently; returns its first and its last line, or everything if it fails.
fn simulate(args: &[&str]) -> Result<String, String> {
    let mut command = shell::program(shell::target().join("debug/taskyard-simulator"));
    let output = command.args(args).output();
    let output = output.map_err(|error| format!("cannot run taskyard-simulator: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("taskyard-simulator failed: {}\n{text}{errors}", output.status));
    }
    Ok(summary(&text))
}

fn summary(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    let last = text.lines().next_back().unwrap_or_default();
    format!("{first}; {last}")
}

#[cfg(test)]
mod tests {
    use super::summary;

    #[test]
    fn a_summary_has_the_first_seed_and_what_was_done() {
        let text = "first seed 7\n3 seeds, 0.1 s\n5 seeds, 0.2 s\n";
        assert_eq!(summary(text), "first seed 7; 5 seeds, 0.2 s");
    }
}

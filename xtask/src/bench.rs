//! Measuring: the benchmark is a command of the product, this only builds it for speed.

use crate::shell;

/// Runs `taskyard bench` in the release profile with these arguments.
pub fn run(args: &[String]) -> Result<(), String> {
    let mut command = shell::cargo();
    command.args(["run", "--release", "--package", "taskyard-cli", "--", "bench"]).args(args);
    shell::run(&mut command)
}

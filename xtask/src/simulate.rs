//! `cargo xtask simulate`: builds the simulator for speed and runs it.

use crate::shell;

/// Runs the simulator with these arguments, which it checks itself.
pub fn run(args: &[String]) -> Result<(), String> {
    let mut build = shell::cargo();
    build.args(["build", "--quiet", "--release", "--package", "taskyard-simulator"]);
    shell::run(&mut build)?;
    let mut command = shell::program(shell::target().join("release/taskyard-simulator"));
    shell::run(command.args(args))
}

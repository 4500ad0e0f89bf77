//! `cargo xtask bench`: builds the product and the benchmark for speed, installs the other queues, and measures.

use std::path::PathBuf;

use crate::compare;
use crate::shell;
use crate::tools;

/// Runs the benchmark in the release profile with these arguments.
pub fn run(args: &[String]) -> Result<(), String> {
    if compare::is_asked(args) {
        return compare::run(args);
    }
    // The pool's parts are measured as processes of the product.
    let mut build = shell::cargo();
    build.args(["build", "--release", "--package", "taskyard-cli", "--package", "taskyard-bench"]);
    shell::run(&mut build)?;
    let mut command = shell::program(shell::target().join("release/taskyard-bench"));
    command.args(args);
    if wants_peers(args) {
        match tools::peers() {
            Ok(variables) => _ = command.envs(variables),
            // The benchmark reports each queue that is missing.
            Err(error) => eprintln!("{error}\nOther queues cannot be measured."),
        }
    }
    if wants(args, &["workers"]) {
        match apalis() {
            Ok(program) => _ = command.env("TASKYARD_PEER_APALIS", program),
            Err(error) => eprintln!("{error}\napalis cannot be measured."),
        }
    }
    shell::run(&mut command)
}

/// Builds apalis with its SQLite store, which needs a workspace of its own; returns the path of the program.
fn apalis() -> Result<PathBuf, String> {
    let target = shell::target().join("peers");
    let mut command = shell::cargo();
    command.args(["build", "--release", "--locked", "--manifest-path", "bench/apalis/Cargo.toml"]);
    command.arg("--target-dir").arg(&target);
    shell::run(&mut command)?;
    Ok(target.join("release/taskyard-peer-apalis"))
}

/// Whether a part is measured that has other queues on the same database beside it.
fn wants_peers(args: &[String]) -> bool {
    wants(args, &["postgres", "snapshot", "redis", "clients", "page"])
}

/// Whether one of these parts is measured.
fn wants(args: &[String], parts: &[&str]) -> bool {
    if args.iter().any(|arg| arg == "--help" || arg == "-h" || arg == "--child") {
        return false;
    }
    let only = args.iter().any(|arg| arg == "--only" || arg.starts_with("--only="));
    !only || parts.iter().any(|part| args.iter().any(|arg| arg.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_queues_are_installed_when_they_are_measured() {
        let wants = |line: &str| {
            wants_peers(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
        };
        for line in [
            "",
            "--quick",
            "--only disk,postgres",
            "--only=snapshot --quick",
            "--only redis",
            "--only clients",
            "--only page",
        ] {
            assert!(wants(line), "{line}");
        }
        for line in ["--help", "--only disk", "--quick --only=http,iproto"] {
            assert!(!wants(line), "{line}");
        }
    }
}

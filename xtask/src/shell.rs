//! Runs other programs, always from the root of the repository.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

/// The root of the repository.
pub fn root() -> PathBuf {
    // Asked at run time: a program built before the folder was moved must still find it.
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package.and_then(|path| path.parent().map(Path::to_path_buf)).unwrap_or_else(|| ".".into())
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    // Joining an absolute path replaces the root, as cargo does.
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Variables besides `CARGO_PKG_*` in which cargo describes the package of the program that it runs.
const PACKAGE_VARIABLES: [&str; 3] =
    ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_MANIFEST_LINKS"];

/// The cargo that started us.
pub fn cargo() -> Command {
    let mut command = program(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The variables describe xtask, not the packages that are built now. A build script that reads them, as that of `ring`
    // does, would run again, and everything above it, whenever cargo is called with and then without xtask.
    for (name, _) in env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || PACKAGE_VARIABLES.contains(&name))
        {
            command.env_remove(name);
        }
    }
    command
}

/// A program, to be run from the root.
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root());
    command
}

/// Shows the command, runs it, and fails if it fails.
pub fn run(command: &mut Command) -> Result<(), String> {
    let shown = show(command);
    eprintln!("$ {shown}");
    let status = command.status().map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{shown}` failed: {status}")) }
}

/// What becomes of tests that fail.
#[derive(Clone, Copy, Debug)]
pub enum Failures {
    /// The command fails.
    Fail,
    /// They run once more, when nothing else does: a test that needs a process to react in time may fail on a busy machine. Its
    /// first failure stays in the output.
    RunAgain,
}

/// Runs the commands at the same time and shows the output of each when it ends; fails if one fails. Commands whose failed tests
/// may run again are calls of `cargo test`.
pub fn run_together(commands: &mut [Command], failures: Failures) -> Result<(), String> {
    let mut failed = run_all(commands);
    if let Failures::RunAgain = failures {
        failed.retain_mut(|failure| !passes_again(commands, failure));
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(failed.into_iter().map(|failure| failure.message).collect::<Vec<_>>().join("\n"))
}

/// A command of several that failed.
struct FailedCommand {
    /// Its number.
    index: usize,
    /// The tests that failed, each with the first lines of its panic.
    tests: Vec<String>,
    message: String,
}

/// Runs the failed tests of a command once more.
fn passes_again(commands: &[Command], failure: &mut FailedCommand) -> bool {
    let names: Vec<_> = failure.tests.iter().filter_map(|test| test.lines().next()).collect();
    if names.is_empty() {
        return false;
    }
    let first = &commands[failure.index];
    let mut again = program(first.get_program());
    for (name, value) in first.get_envs() {
        match value {
            Some(value) => again.env(name, value),
            None => again.env_remove(name),
        };
    }
    again.args(first.get_args().take_while(|argument| *argument != "--"));
    again.args(["--", "--exact"]).args(&names);
    match run_captured(&mut again, failure.index) {
        Ok(()) => {
            eprintln!("FLAKY, passed when run again: {}", names.join(", "));
            true
        }
        Err(second) => {
            failure.message = second.message;
            false
        }
    }
}

fn run_all(commands: &mut [Command]) -> Vec<FailedCommand> {
    thread::scope(|scope| {
        let running = commands.iter_mut().enumerate().map(|(index, command)| {
            eprintln!("$ {}", show(command));
            scope.spawn(move || run_captured(command, index).err())
        });
        let running: Vec<_> = running.collect();
        running.into_iter().filter_map(|one| one.join().expect("it does not panic")).collect()
    })
}

fn run_captured(command: &mut Command, index: usize) -> Result<(), FailedCommand> {
    let shown = show(command);
    let started = Instant::now();
    let failed = |tests, message| FailedCommand { index, tests, message };
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(Vec::new(), format!("cannot run `{shown}`: {error}")))?;
    let (seconds, status) = (started.elapsed().as_secs(), output.status);
    // Written in one piece, so that the outputs of two commands do not mix.
    let mut text = format!("\n$ {shown}\n").into_bytes();
    text.extend_from_slice(&output.stderr);
    text.extend_from_slice(&output.stdout);
    text.extend_from_slice(format!("{status} after {seconds} s\n").as_bytes());
    let _ = io::stderr().lock().write_all(&text);
    if status.success() {
        return Ok(());
    }
    let mut message = format!("`{shown}` failed: {status}");
    let tests = failed_tests(&String::from_utf8_lossy(&text));
    for test in &tests {
        message.push_str("\n  ");
        message.push_str(test);
    }
    Err(failed(tests, message))
}

/// The tests that failed according to the output of `cargo test`, each with the first lines of its panic.
fn failed_tests(output: &str) -> Vec<String> {
    let lines: Vec<&str> = output.lines().collect();
    let mut tests = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) =
            line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"))
        else {
            continue;
        };
        let own = lines[at + 1..].iter().take_while(|line| !line.starts_with("---- "));
        let panic = own.skip_while(|line| !line.contains("panicked at")).take(3);
        tests.push(panic.fold(name.to_owned(), |text, line| text + "\n    " + line.trim()));
    }
    tests
}

/// Runs the command silently and returns what it printed.
pub fn output(command: &mut Command) -> Result<String, String> {
    let shown = show(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let message = String::from_utf8_lossy(&output.stderr);
        Err(format!("`{shown}` failed: {}\n{}", output.status, message.trim_end()))
    }
}

fn show(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command() {
        let failure = output(program("false").arg("--now")).unwrap_err();
        assert!(failure.starts_with("`false --now` failed"), "{failure}");
    }

    #[test]
    fn one_failure_of_several_commands_fails() {
        assert!(run_together(&mut [program("true"), program("true")], Failures::Fail).is_ok());
        for failures in [Failures::Fail, Failures::RunAgain] {
            let failure = run_together(&mut [program("true"), program("false")], failures);
            let failure = failure.unwrap_err();
            assert!(failure.starts_with("`false` failed"), "{failure}");
        }
    }

    /// A program in place of `cargo test` that fails, or fails only in its first run.
    #[test]
    fn failed_tests_run_once_more() {
        let script = "echo '---- put stdout ----'; [ \"$2 $3\" = '--exact put' ] && [ $0 = once ]";
        let runs = |how: &str, failures| {
            let mut command = program("sh");
            command.args(["-c", script, how, "--", "filter"]);
            run_together(&mut [command], failures)
        };
        assert!(runs("once", Failures::Fail).is_err());
        assert!(runs("once", Failures::RunAgain).is_ok());
        assert!(runs("always", Failures::RunAgain).is_err());
    }

    /// CI shows the end of a run only; a failure in an earlier step was a step's name and nothing else.
    #[test]
    fn a_failure_names_the_tests_that_failed() {
        let output = "---- slow::put stdout ----\nseed 7\n\nthread 'slow::put' panicked at a.rs:1:2:\n\
                      one task is lost\nnote: run with\nmore\n---- kill stdout ----\nno panic\n\nfailures:\n    kill\n";
        let expected = [
            "slow::put\n    thread 'slow::put' panicked at a.rs:1:2:\n    one task is lost\n    note: run with",
            "kill",
        ];
        assert_eq!(failed_tests(output), expected);
    }

    #[test]
    fn an_absent_program_is_an_error() {
        assert!(run(&mut program("no-such-program-anywhere")).is_err());
    }
}

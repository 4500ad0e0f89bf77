//! Runs the test binaries whose tests share a database or a browser, several at a time, and runs their failed tests once more.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::secret_scan;
use crate::shell;

/// The test targets whose tests share a database or a browser. Nextest gives each test a process of its own, and each would
/// start its own.
const TARGETS: [&str; 7] =
    ["postgres", "sql", "redis", "tarantool", "copying", "browser", "documents"];

/// How many binaries run at the same time for each core: many of their tests wait for other processes.
const BINARIES_PER_CORE: usize = 2;

/// The packages whose binaries start first, because they run the longest: a run ends with short ones.
const LONG: [&str; 5] = [
    "taskyard-store-redis",
    "taskyard-store-postgres",
    "taskyard-store-tarantool",
    "taskyard-sql",
    "taskyard-cli",
];

/// How long a binary may run, in seconds. One that hangs is ended, and the tests that ran for long count as failed.
const BINARY_MAX: &str = "1800";

/// How many binaries a run names as its slowest.
const SLOWEST: usize = 3;

/// What becomes of tests that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failures {
    /// The run fails.
    Fail,
    /// They run once more, when nothing else does: a test that needs a process to react in time may fail on a busy machine. Its
    /// first failure stays in the output.
    RunAgain,
}

/// A run that passed.
#[derive(Debug)]
pub struct FixtureRun {
    /// What is worth knowing at the end: the slowest binaries, and the tests that failed at first.
    pub notes: Vec<String>,
    /// How many tests ran.
    pub tests: usize,
}

/// A test binary that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TestBinary {
    package: String,
    target: String,
    program: PathBuf,
    /// The folder of its package, in which cargo runs it.
    folder: PathBuf,
}

/// A filterset of nextest: all targets but those that run here.
pub fn without_fixtures() -> String {
    let targets = TARGETS.map(|target| format!("binary({target})"));
    format!("not ({})", targets.join(" or "))
}

/// Builds and runs the binaries; only tests with one of these names, if there are any. `prepare` sets the environment of each.
/// Returns how a run ended that passed.
pub fn run(
    filters: &[impl AsRef<OsStr>],
    prepare: impl Fn(&mut Command),
    failures: Failures,
) -> Result<FixtureRun, String> {
    let filters: Vec<&OsStr> = filters.iter().map(AsRef::as_ref).collect();
    let mut runs: Vec<TestRun> = Vec::new();
    for binary in build()? {
        let mut command = binary.command();
        prepare(&mut command);
        runs.push(TestRun { name: binary.name(), command, filters: filters.clone() });
    }
    run_all(&runs, failures)
}

/// Builds the binaries. They are built already if the whole workspace is.
fn build() -> Result<Vec<TestBinary>, String> {
    let mut cargo = shell::cargo();
    cargo.args(["test", "-q", "--workspace", "--all-features", "--no-run"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    cargo.args(TARGETS.iter().flat_map(|target| ["--test", target]));
    let output = shell::output(&mut cargo)?;
    let mut binaries: Vec<_> = output.lines().filter_map(TestBinary::parse).collect();
    let rank = |binary: &TestBinary| {
        LONG.iter().position(|package| *package == binary.package).unwrap_or(LONG.len())
    };
    binaries.sort_by_key(|binary| (rank(binary), binary.name()));
    if binaries.is_empty() {
        return Err(format!("cargo has built no test binary named {}", TARGETS.join(", ")));
    }
    Ok(binaries)
}

impl TestBinary {
    /// The binary in a line of cargo's messages, if the line is about one.
    fn parse(message: &str) -> Option<Self> {
        let program = PathBuf::from(text_field(message, "executable")?);
        let manifest = PathBuf::from(text_field(message, "manifest_path")?);
        // Cargo adds a hash to the name of the target.
        let file = program.file_stem()?.to_str()?;
        let target = file.rsplit_once('-').map_or(file, |(target, _)| target).to_owned();
        if !TARGETS.contains(&target.as_str()) {
            return None;
        }
        let folder = manifest.parent()?.to_path_buf();
        // `path+file:///taskyard/crates/cli#taskyard-cli@1.0.0`, or without a name if the folder has it.
        let (path, version) = text_field(message, "package_id")?.rsplit_once('#')?;
        let package = match version.split_once('@') {
            Some((name, _)) => name,
            None => path.rsplit('/').next()?,
        };
        Some(TestBinary { package: package.to_owned(), target, program, folder })
    }

    fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    fn command(&self) -> Command {
        let mut command = shell::program(&self.program);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// A field of a message of cargo whose value is a text; paths and names in these contain nothing that is escaped.
fn text_field<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    let start = message.find(&format!("\"{name}\":\""))? + name.len() + 4;
    message[start..].split('"').next()
}

/// A binary to run.
struct TestRun<'a> {
    name: String,
    /// The program in its environment, without arguments.
    command: Command,
    filters: Vec<&'a OsStr>,
}

/// How a binary ended.
struct Ended {
    name: String,
    took: Duration,
    /// How many tests it ran.
    tests: usize,
    /// What is wrong, and the tests that failed, each with the first lines of its panic.
    failure: Option<(String, Vec<String>)>,
}

/// Runs the binaries in this order, a few at a time.
fn run_all(runs: &[TestRun<'_>], failures: Failures) -> Result<FixtureRun, String> {
    let (next, ended) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let worker = || {
        while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let end = run.run(&["-q", "--"], &run.filters);
            ended.lock().expect("no thread panics").push(end);
        }
    };
    thread::scope(|scope| (0..cores * BINARIES_PER_CORE).for_each(|_| _ = scope.spawn(worker)));
    let mut ended = ended.into_inner().expect("no thread panics");
    ended.sort_by_key(|end| std::cmp::Reverse(end.took));
    let slowest: Vec<_> = ended
        .iter()
        .take(SLOWEST)
        .map(|end| format!("{} {} s", end.name, end.took.as_secs()))
        .collect();
    let tests = ended.iter().map(|end| end.tests).sum();
    let mut notes = vec![format!("slowest fixtures: {}", slowest.join(", "))];
    let mut failed = Vec::new();
    for end in ended {
        let Some((message, tests)) = end.failure else { continue };
        let run = runs.iter().find(|run| run.name == end.name);
        match run.filter(|_| failures == Failures::RunAgain).map(|run| run.run_again(&tests)) {
            Some(Ok(note)) => notes.push(note),
            Some(Err(again)) => failed.push(again),
            None => failed.push(message),
        }
    }
    if failed.is_empty() { Ok(FixtureRun { notes, tests }) } else { Err(failed.join("\n")) }
}

impl TestRun<'_> {
    /// Runs the failed tests once more; returns a line about them if they pass.
    fn run_again(&self, tests: &[String]) -> Result<String, String> {
        let names: Vec<_> = tests.iter().filter_map(|test| test.lines().next()).collect();
        if names.is_empty() {
            return Err(format!("{} failed without a failed test", self.name));
        }
        let end = self.run(&["--exact", "--"], &names.iter().map(OsStr::new).collect::<Vec<_>>());
        match end.failure {
            Some((message, _)) => Err(message),
            None => Ok(format!("FLAKY, passed when run again: {} {}", self.name, names.join(", "))),
        }
    }

    /// Runs it with these arguments and shows its output when it has ended.
    fn run(&self, options: &[&str], filters: &[&OsStr]) -> Ended {
        let mut command = Command::new("timeout");
        command
            .args(["--foreground", "--kill-after=10", BINARY_MAX])
            .arg(self.command.get_program());
        command.current_dir(self.command.get_current_dir().unwrap_or(Path::new(".")));
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(options).args(filters);
        eprintln!("$ {}", self.name);
        let started = Instant::now();
        let output = command.stdin(Stdio::null()).output();
        let ended = |tests, failure| Ended {
            name: self.name.clone(),
            took: started.elapsed(),
            tests,
            failure,
        };
        let output = match output {
            Ok(output) => output,
            Err(error) => {
                return ended(0, Some((format!("cannot run {}: {error}", self.name), Vec::new())));
            }
        };
        let (seconds, status) = (started.elapsed().as_secs(), output.status);
        // Written in one piece, so that the outputs of two binaries do not mix.
        let mut text = format!("\n{}\n", self.name).into_bytes();
        text.extend_from_slice(&output.stderr);
        text.extend_from_slice(&output.stdout);
        text.extend_from_slice(format!("{}: {status} after {seconds} s\n", self.name).as_bytes());
        let _ = io::stderr().lock().write_all(&text);
        secret_scan::record(&self.name, &text);
        let text = String::from_utf8_lossy(&text);
        if status.success() {
            return ended(test_count(&text), None);
        }
        let mut tests = failed_tests(&text);
        if tests.is_empty() {
            tests = long_tests(&text);
        }
        let named = tests.iter().map(|test| format!("\n  {test}")).collect::<String>();
        ended(0, Some((format!("{} failed: {status}{named}", self.name), tests)))
    }
}

/// How many tests ran according to the output of a test binary.
fn test_count(output: &str) -> usize {
    let counts = output.lines().filter_map(|line| line.strip_prefix("running ")?.split(' ').next());
    counts.filter_map(|count| count.parse::<usize>().ok()).sum()
}

/// The tests that took more than a minute, according to the output of a test binary: after a timeout, one of them hangs.
fn long_tests(output: &str) -> Vec<String> {
    let names = output.lines().filter_map(|line| {
        let (_, name) = line.split_once(LONG_TEST)?.0.rsplit_once("test ")?;
        Some(name.to_owned())
    });
    names.collect()
}

/// What a test binary prints behind the name of a test that takes long.
const LONG_TEST: &str = " has been running for over ";

/// The tests that failed according to the output of a test binary, each with the first lines of its panic.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_with_shared_fixtures_are_filtered_out() {
        let filter = without_fixtures();
        assert!(filter.starts_with("not (binary(postgres) or binary(sql)"), "{filter}");
    }

    #[test]
    fn binaries_are_found_in_the_messages_of_cargo() {
        let message = r#"{"reason":"compiler-artifact","package_id":"path+file:///y/crates/cli#taskyard-cli@1.0.0",
            "manifest_path":"/y/crates/cli/Cargo.toml","target":{"kind":["test"],"name":"redis"},"executable":"/y/t/redis-0a1"}"#;
        let binary = TestBinary::parse(message).unwrap();
        assert_eq!(binary.name(), "taskyard-cli redis");
        assert_eq!(binary.program, Path::new("/y/t/redis-0a1"));
        assert_eq!(binary.folder, Path::new("/y/crates/cli"));
        let unnamed = message.replace("#taskyard-cli@1.0.0", "#1.0.0");
        assert_eq!(TestBinary::parse(&unnamed).unwrap().package, "cli");
        assert_eq!(TestBinary::parse(&message.replace("redis-", "suite-")), None);
        assert_eq!(TestBinary::parse(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(TestBinary::parse(&message.replace("\"/y/t/redis-0a1\"", "null")), None);
    }

    fn test_run(program: &str) -> TestRun<'static> {
        TestRun { name: program.to_owned(), command: Command::new(program), filters: Vec::new() }
    }

    #[test]
    fn one_failure_of_several_binaries_fails() {
        assert!(run_all(&[test_run("true"), test_run("true")], Failures::Fail).is_ok());
        for failures in [Failures::Fail, Failures::RunAgain] {
            let failure = run_all(&[test_run("true"), test_run("false")], failures).unwrap_err();
            assert!(failure.starts_with("false failed"), "{failure}");
        }
        let absent = run_all(&[test_run("no-such-program")], Failures::Fail).unwrap_err();
        assert!(absent.starts_with("no-such-program failed: exit status: 127"), "{absent}");
    }

    /// A script in place of a test binary that fails, or fails only in its first run.
    #[test]
    fn failed_tests_run_once_more() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("taskyard-fixtures-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let runs = |name: &str, passes: &str, failures| {
            let script = folder.join(name);
            let text = format!("#!/bin/sh\necho '---- put stdout ----'\n[ \"$*\" = '{passes}' ]\n");
            std::fs::write(&script, text).unwrap();
            std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
            run_all(&[test_run(script.to_str().unwrap())], failures)
        };
        assert!(runs("a", "--exact -- put", Failures::Fail).is_err());
        let notes = runs("b", "--exact -- put", Failures::RunAgain).unwrap().notes;
        assert!(notes[1].starts_with("FLAKY") && notes[1].ends_with(" put"), "{notes:?}");
        assert!(runs("c", "never", Failures::RunAgain).is_err());
        assert_eq!(runs("d", "-q --", Failures::Fail).map(|run| run.notes.len()), Ok(1));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn tests_that_ran_are_counted() {
        let output =
            "$ a\n\nrunning 2 tests\n..\ntest result: ok.\n\nrunning 1 test\nrunning late\n";
        assert_eq!((test_count(output), test_count("running 0 tests")), (3, 0));
    }

    /// A test hung for as long as its binary could run, which was forever, and nothing named it.
    #[test]
    fn a_test_that_hangs_is_named() {
        let output =
            "\nrunning 2 tests\n.test pipeline::put has been running for over 60 seconds\n";
        assert_eq!(long_tests(output), ["pipeline::put"]);
        assert_eq!(long_tests("test result: ok. 2 passed"), [""; 0]);
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
}

//! `cargo xtask test`: runs everything that CI runs and a contributor runs before a push.

use std::process::Command;

use crate::fixtures::{self, Failures, without_fixtures};
use crate::packages;
use crate::secret_scan;
use crate::shell;
use crate::simulate::BackgroundSimulator;
use crate::skipped_tests;
use crate::steps::Steps;
use crate::tidy;
use crate::tools::{self, Tools};

/// Set for the tests when external tools are absent on purpose: their tests are skipped instead of failing.
const EMBEDDED: &str = "TASKYARD_EMBEDDED";

/// Tests per core: most of them wait for timers and other processes.
const TESTS_PER_CORE: usize = 3;

/// The arguments of `test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TestOptions {
    /// Run without the tools that are installed from outside.
    pub embedded: bool,
    /// Do not fail when a step takes longer than its budget.
    pub no_budget: bool,
    /// Run only the tests whose name contains this.
    pub filter: Option<String>,
}

impl TestOptions {
    /// Reads the arguments after `test`.
    pub fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        for arg in args {
            if arg == "--embedded" {
                options.embedded = true;
            } else if arg == "--no-budget" {
                options.no_budget = true;
            } else if arg.starts_with('-') {
                let known = "--embedded, --no-budget and a filter";
                return Err(format!("`test` accepts {known}, not `{arg}`"));
            } else if let Some(first) = options.filter.replace(arg.clone()) {
                return Err(format!("`test` accepts one filter, not `{first}` and `{arg}`"));
            }
        }
        Ok(options)
    }
}

/// Runs all steps, prints the table, and fails if a step failed or took longer than its budget.
pub fn run(options: &TestOptions) -> Result<(), String> {
    let mut steps = Steps::new(options.no_budget || options.filter.is_some());
    let notes = run_steps(options, &mut steps);
    println!("\n{}", steps.table());
    notes.iter().for_each(|note| println!("{note}"));
    if options.filter.is_none() {
        println!("{}", steps.target());
    }
    let tested = match &options.filter {
        Some(filter) => format!("tests named `{filter}`"),
        None if options.embedded => "all tests without external tools".into(),
        None => "all tests".into(),
    };
    println!("{}", steps.summary(&tested)?);
    Ok(())
}

/// Runs the steps; returns what else the end of the output shows.
fn run_steps(options: &TestOptions, steps: &mut Steps) -> Vec<String> {
    let mut tools = None;
    if !options.embedded
        && !steps.run("tools", || {
            tools = Some(tools::prepare()?);
            Ok(())
        })
    {
        // The error states what to install; the output of other steps would hide it.
        return Vec::new();
    }
    if options.filter.is_none() {
        steps.run("format", || shell::run(shell::cargo().args(["fmt", "--all", "--check"])));
        steps.run("clippy", || {
            let mut clippy = shell::cargo();
            clippy.args(["clippy", "--workspace", "--all-targets", "--all-features"]);
            shell::run(clippy.args(["--", "-D", "warnings"]))
        });
        steps.run("tidy", || tidy::run(tidy::Change::Nothing));
    }
    let nextest = has_nextest();
    let build =
        || secret_scan::prepare().and_then(|()| shell::run(runner(nextest).arg("--no-run")));
    if !steps.run("build", build) {
        return Vec::new();
    }
    if options.filter.is_none() {
        steps.run("doc tests", || {
            let mut doc = shell::cargo();
            doc.args(["test", "--doc", "--workspace", "--all-features"]);
            shell::run(with_tools(&mut doc, tools.as_ref()))
        });
    }
    if options.filter.is_none() {
        steps.run("packages", packages::run);
    }
    let mut notes = Vec::new();
    let simulator = options.filter.is_none().then(BackgroundSimulator::start);
    // Of fixtures.
    let mut tests = 0;
    if nextest {
        steps.run("fixtures", || {
            let prepare = |command: &mut Command| {
                secret_scan::keep_output(with_tools(command, tools.as_ref()));
            };
            let run = fixtures::run(options.filter.as_slice(), prepare, Failures::RunAgain)?;
            (notes, tests) = (run.notes, run.tests);
            Ok(())
        });
    }
    steps.run("tests", || run_tests(options, nextest.then_some(tests), tools.as_ref()));
    if let Some(simulator) = simulator {
        steps.run("simulator", || {
            let runs = simulator.finish()?;
            notes.extend(runs.iter().map(|run| format!("simulator, {run}")));
            Ok(())
        });
    }
    steps.run("secrets", || {
        notes.extend(skipped_tests::list(&secret_scan::folder())?);
        notes.push(secret_scan::scan(&secret_scan::folder(), options.filter.is_none())?);
        Ok(())
    });
    notes
}

/// Runs all tests but the fixtures, of which so many ran; all tests without nextest. Near the end, so that the runner's own summary stands right
/// above the table.
fn run_tests(
    options: &TestOptions,
    of_fixtures: Option<usize>,
    tools: Option<&Tools>,
) -> Result<(), String> {
    let mut tests = runner(of_fixtures.is_some());
    tests.arg("--no-fail-fast");
    if let Some(count) = of_fixtures {
        // A filter may name tests of fixtures only.
        let if_none = if count > 0 { "pass" } else { "fail" };
        tests.args(["--filterset", &without_fixtures(), "--no-tests", if_none]);
        tests.args(["--test-threads", &test_threads().to_string()]);
    }
    tests.args(&options.filter);
    shell::run(secret_scan::keep_output(with_tools(&mut tests, tools)))
}

/// Whether cargo-nextest is installed.
pub fn has_nextest() -> bool {
    shell::output(shell::cargo().args(["nextest", "--version"])).is_ok()
}

fn test_threads() -> usize {
    TESTS_PER_CORE * std::thread::available_parallelism().map_or(1, usize::from)
}

/// The command that runs tests: nextest, or cargo's own.
pub fn runner(nextest: bool) -> Command {
    let mut command = shell::cargo();
    if nextest {
        command.args(["nextest", "run", "--config-file", "xtask/nextest.toml"]);
    } else {
        command.args(["test", "--lib", "--bins", "--tests", "--examples"]);
    }
    command.args(["--workspace", "--all-features"]);
    command
}

/// Sets the variables that name the tools, or the one that skips their tests.
pub fn with_tools<'a>(command: &'a mut Command, tools: Option<&Tools>) -> &'a mut Command {
    match tools {
        // A leftover in the caller's environment must not skip tests silently.
        Some(tools) => command.env_remove(EMBEDDED).envs(tools.env()),
        None => command.env(EMBEDDED, "1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<TestOptions, String> {
        TestOptions::parse(&args.iter().map(|arg| arg.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_in_any_order() {
        let expected = TestOptions { embedded: true, no_budget: false, filter: Some("put".into()) };
        assert_eq!(parsed(&["--embedded", "put"]).as_ref(), Ok(&expected));
        assert_eq!(parsed(&["put", "--embedded"]).as_ref(), Ok(&expected));
        assert_eq!(parsed(&[]), Ok(TestOptions::default()));
        assert!(parsed(&["--no-budget"]).unwrap().no_budget);
    }

    #[test]
    fn without_tools_their_tests_are_skipped() {
        let mut command = Command::new("true");
        with_tools(&mut command, None);
        assert!(command.get_envs().any(|(name, value)| name == EMBEDDED && value.is_some()));
    }
}

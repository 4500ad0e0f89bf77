//! `cargo xtask test`: what CI runs and what a person runs before a push.

use std::process::Command;

use crate::shell;
use crate::steps::Steps;
use crate::tidy;
use crate::tools::{self, Tools};

/// Tells the tests that the tools from outside are absent on purpose, so that they say "skipped"
/// instead of failing.
const EMBEDDED: &str = "TASKYARD_EMBEDDED";

/// What to leave out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Run without the tools that are installed from outside.
    pub embedded: bool,
    /// Run only the tests whose name contains this.
    pub filter: Option<String>,
}

impl Options {
    /// Reads the arguments after `test`.
    pub fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        for arg in args {
            if arg == "--embedded" {
                options.embedded = true;
            } else if arg.starts_with('-') {
                return Err(format!("`test` knows --embedded and a filter, not `{arg}`"));
            } else if let Some(first) = options.filter.replace(arg.clone()) {
                return Err(format!("one filter is enough: `{first}` or `{arg}`"));
            }
        }
        Ok(options)
    }
}

/// Runs all steps, prints the table, and fails if one of them failed.
pub fn run(options: &Options) -> Result<(), String> {
    let mut steps = Steps::default();
    all(options, &mut steps);
    println!("\n{}", steps.table());
    let green = match &options.filter {
        Some(filter) => format!("only `{filter}` was tested, that is"),
        None if options.embedded => "all but what comes from outside".into(),
        None => "all".into(),
    };
    println!("{}", steps.verdict(&green)?);
    Ok(())
}

fn all(options: &Options, steps: &mut Steps) {
    let mut tools = None;
    if !options.embedded
        && !steps.run("tools", || {
            tools = Some(tools::prepare()?);
            Ok(())
        })
    {
        // What to do about it is on the screen; minutes of other output would hide it.
        return;
    }
    if options.filter.is_none() {
        steps.run("format", || shell::run(shell::cargo().args(["fmt", "--all", "--check"])));
        steps.run("clippy", || {
            let mut clippy = shell::cargo();
            clippy.args(["clippy", "--workspace", "--all-targets", "--all-features"]);
            shell::run(clippy.args(["--", "-D", "warnings"]))
        });
        steps.run("tidy", || tidy::run(false));
    }
    let nextest = shell::output(shell::cargo().args(["nextest", "--version"])).is_ok();
    if !steps.run("build", || shell::run(runner(nextest).arg("--no-run"))) {
        return;
    }
    if options.filter.is_none() {
        steps.run("doc tests", || {
            let mut doc = shell::cargo();
            doc.args(["test", "--doc", "--workspace", "--all-features"]);
            shell::run(equip(&mut doc, tools.as_ref()))
        });
    }
    if nextest {
        // Nextest gives each test a process of its own, and each would start a database of its own.
        steps.run("databases", || {
            let mut tests = shell::cargo();
            tests.args(["test", "-q", "--workspace", "--all-features"]);
            tests.args(["--test", "postgres", "--test", "redis"]);
            tests.args(["--test", "sql", "--test", "tarantool"]);
            tests.args(&options.filter);
            shell::run(equip(&mut tests, tools.as_ref()))
        });
    }
    // Last, so that the runner's own summary stands right above the table.
    steps.run("tests", || {
        let mut tests = runner(nextest);
        tests.arg("--no-fail-fast");
        if nextest {
            tests.args([
                "--filterset",
                "not (binary(postgres) or binary(redis) or binary(sql) or binary(tarantool))",
            ]);
        }
        tests.args(&options.filter);
        shell::run(equip(&mut tests, tools.as_ref()))
    });
}

fn runner(nextest: bool) -> Command {
    let mut command = shell::cargo();
    if nextest {
        command.args(["nextest", "run", "--config-file", "xtask/nextest.toml"]);
    } else {
        command.args(["test", "--lib", "--bins", "--tests", "--examples"]);
    }
    command.args(["--workspace", "--all-features"]);
    command
}

fn equip<'a>(command: &'a mut Command, tools: Option<&Tools>) -> &'a mut Command {
    match tools {
        // A leftover in the caller's environment must not skip tests silently.
        Some(tools) => command.env_remove(EMBEDDED).envs(tools.env()),
        None => command.env(EMBEDDED, "1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Options, String> {
        Options::parse(&args.iter().map(|arg| arg.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_in_any_order() {
        let wanted = Options { embedded: true, filter: Some("put".into()) };
        assert_eq!(parsed(&["--embedded", "put"]).as_ref(), Ok(&wanted));
        assert_eq!(parsed(&["put", "--embedded"]).as_ref(), Ok(&wanted));
        assert_eq!(parsed(&[]), Ok(Options::default()));
    }

    #[test]
    fn without_tools_the_tests_are_told() {
        let mut command = Command::new("true");
        equip(&mut command, None);
        assert!(command.get_envs().any(|(name, value)| name == EMBEDDED && value.is_some()));
    }
}

//! Taskyard's own chores, called as `cargo xtask`.
//!
//! It uses nothing but the standard library, so that it compiles in seconds. Start reading at
//! [`test`] (what CI runs), then [`tidy`] (what a program can check about the sources).

mod bench;
mod docs;
mod fuzz;
mod shell;
mod steps;
mod test;
mod tidy;
mod tools;

use std::process::ExitCode;

const HELP: &str = "\
Taskyard's chores.

  cargo xtask test                 everything, the same as CI: formatting, lints, tidy, all tests
  cargo xtask test --embedded      the same without browser, Python, Node, Tarantool; their tests say they are skipped
  cargo xtask test put_many        only the tests whose name contains `put_many`, with all tools
  cargo xtask tidy                 the house rules a program can check; each complaint says what to do
  cargo xtask tidy --fix           also copy the examples into the documents again
  cargo xtask tools                install what the tests use and print where it is, to run one test by hand:
                                   eval \"$(cargo xtask tools)\" && cargo test -p taskyard-server
  cargo xtask bench [ARGS]         build for speed, install other queues, and measure them and ours (--help lists the parts)
  cargo xtask docs                 write docs/stores.md anew, from what the stores say of themselves and docs/benchmarks.md
  cargo xtask fuzz [SECONDS]       random input for what parses bytes, each target for 60 seconds or as many as you say

Debian packages are installed only when you are root; otherwise the one line to run is printed.
";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Chore {
    Help,
    Test(test::Options),
    Tidy { fix: bool },
    Tools,
    Bench(Vec<String>),
    Fuzz { seconds: u64 },
    Docs,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match parse(&args) {
        Err(wrong) => {
            eprintln!("{wrong}\n\n{HELP}");
            return ExitCode::from(2);
        }
        Ok(Chore::Help) => {
            print!("{HELP}");
            Ok(())
        }
        Ok(Chore::Test(options)) => test::run(&options),
        Ok(Chore::Tidy { fix }) => tidy::run(fix),
        Ok(Chore::Tools) => tools::print(),
        Ok(Chore::Bench(args)) => bench::run(&args),
        Ok(Chore::Fuzz { seconds }) => fuzz::run(seconds),
        Ok(Chore::Docs) => docs::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Result<Chore, String> {
    let Some((chore, rest)) = args.split_first() else { return Ok(Chore::Help) };
    if chore != "bench" && rest.iter().any(|arg| arg == "--help" || arg == "-h") {
        return Ok(Chore::Help);
    }
    match chore.as_str() {
        "help" | "--help" | "-h" => Ok(Chore::Help),
        "test" => test::Options::parse(rest).map(Chore::Test),
        "tidy" => match rest {
            [] => Ok(Chore::Tidy { fix: false }),
            [fix] if fix == "--fix" => Ok(Chore::Tidy { fix: true }),
            _ => Err(format!("`tidy` takes nothing but --fix, not `{}`", rest.join(" "))),
        },
        "tools" if rest.is_empty() => Ok(Chore::Tools),
        "tools" => Err(format!("`tools` takes no arguments, not `{}`", rest.join(" "))),
        "docs" if rest.is_empty() => Ok(Chore::Docs),
        "docs" => Err(format!("`docs` takes no arguments, not `{}`", rest.join(" "))),
        "bench" => Ok(Chore::Bench(rest.to_vec())),
        "fuzz" if rest.is_empty() => Ok(Chore::Fuzz { seconds: fuzz::SECONDS }),
        "fuzz" => match rest.join(" ").parse() {
            Ok(seconds) if seconds > 0 => Ok(Chore::Fuzz { seconds }),
            _ => Err(format!("`fuzz` takes a number of seconds, not `{}`", rest.join(" "))),
        },
        other => Err(format!("there is no chore `{other}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Chore, String> {
        parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn nothing_and_help_teach() {
        for line in ["", "help", "--help", "-h", "test --help"] {
            assert_eq!(parsed(line), Ok(Chore::Help), "{line}");
        }
    }

    #[test]
    fn bench_passes_everything_on() {
        let args = vec!["--tasks".to_string(), "10".into(), "--help".into()];
        assert_eq!(parsed("bench --tasks 10 --help"), Ok(Chore::Bench(args)));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in [
            "tests",
            "tidy --fast",
            "tools now",
            "docs now",
            "test --embeded",
            "test one two",
            "fuzz 0",
            "fuzz x",
            "fuzz 1 2",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}

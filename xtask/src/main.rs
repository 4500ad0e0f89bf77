//! Runs the project's own commands, called as `cargo xtask`.
//!
//! It uses nothing but the standard library, so that it compiles in seconds. Start reading at
//! [`test`] (what CI runs), then [`tidy`] (what a program can check about the sources).

mod bench;
mod compare;
mod debian_package;
mod docs;
mod fixtures;
mod fuzz;
mod machine_speed;
mod packages;
mod secret_scan;
mod shell;
mod simulate;
mod site;
mod skipped_tests;
mod steps;
mod storm;
mod test;
mod tidy;
mod tools;

use std::process::ExitCode;

const HELP: &str = "\
Commands for working on Taskyard.

  cargo xtask test                 run what CI runs: formatting, lints, tidy, all tests; a step over its budget fails
  cargo xtask test --embedded      the same without browser, databases, Python and Node; the end of the output lists skipped tests
  cargo xtask test --no-budget     the same, but a step over its budget does not fail
  cargo xtask test put_many        only the tests whose name contains `put_many`, with all tools
  cargo xtask storm --minutes N    the random tests with new seeds and larger sizes until N minutes are over; --seed N repeats
  cargo xtask simulate [ARGS]      run the simulator for a minute with new seeds: --seed N repeats one, --minutes M,
                                   --scenario NAME, --planted FAULT, --keep LIST, --find-planted
  cargo xtask tidy                 check the rules that a program can check; each violation is printed with its replacement
  cargo xtask tidy --fix           first copy the examples into the documents and drop clean files from the pending list
  cargo xtask tidy --pending       first write xtask/words-pending.txt anew: all files with words to replace
  cargo xtask tools                install what the tests use and print the variables to run one test directly:
                                   eval \"$(cargo xtask tools)\" && cargo test -p taskyard-server
  cargo xtask bench [ARGS]         build for speed, install other queues, and measure them and Taskyard (--help lists the parts)
  cargo xtask bench --compare OLD NEW --only PART   run two builds in turns: ratios with a confidence interval (--compare --help)
  cargo xtask package              build for release and make a Debian package, a tarball and checksums in target/dist;
                                   --program FILE packs a program that is built already, --version V names another version
  cargo xtask docs                 write the generated files anew (docs/stores.md, docs/cli.md, docs/options.md, the picture in
                                   docs/concepts.md, deploy/systemd/taskyard.yaml, crates/server/openapi.json), check the commands
                                   and blocks of code in the documents, build the site in target/site and check its links
  cargo xtask docs --site          only build the site and check its links; the first time it installs mdbook in target/tools
  cargo xtask fuzz [SECONDS]       run each fuzz target for 60 seconds or the given number

Debian packages are installed only for root; otherwise the command to install them is printed.
";

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
enum Subcommand {
    Help,
    Test(test::TestOptions),
    Storm(storm::StormOptions),
    Simulate(Vec<String>),
    Tidy(tidy::Change),
    Tools,
    Bench(Vec<String>),
    Fuzz { seconds: u64 },
    Docs(docs::DocumentTasks),
    Package(debian_package::PackageOptions),
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match parse(&args) {
        Err(error) => {
            eprintln!("{error}\n\n{HELP}");
            return ExitCode::from(2);
        }
        Ok(Subcommand::Help) => {
            print!("{HELP}");
            Ok(())
        }
        Ok(Subcommand::Test(options)) => test::run(&options),
        Ok(Subcommand::Storm(options)) => storm::run(&options),
        Ok(Subcommand::Simulate(args)) => simulate::run(&args),
        Ok(Subcommand::Tidy(change)) => tidy::run(change),
        Ok(Subcommand::Tools) => tools::print(),
        Ok(Subcommand::Bench(args)) => bench::run(&args),
        Ok(Subcommand::Fuzz { seconds }) => fuzz::run(seconds),
        Ok(Subcommand::Docs(tasks)) => docs::run(tasks),
        Ok(Subcommand::Package(options)) => debian_package::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Result<Subcommand, String> {
    let Some((name, rest)) = args.split_first() else { return Ok(Subcommand::Help) };
    if name != "bench" && rest.iter().any(|arg| arg == "--help" || arg == "-h") {
        return Ok(Subcommand::Help);
    }
    match name.as_str() {
        "help" | "--help" | "-h" => Ok(Subcommand::Help),
        "test" => test::TestOptions::parse(rest).map(Subcommand::Test),
        "storm" => storm::StormOptions::parse(rest).map(Subcommand::Storm),
        "simulate" => Ok(Subcommand::Simulate(rest.to_vec())),
        "tidy" => match rest {
            [] => Ok(Subcommand::Tidy(tidy::Change::Nothing)),
            [arg] if arg == "--fix" => Ok(Subcommand::Tidy(tidy::Change::Fix)),
            [arg] if arg == "--pending" => Ok(Subcommand::Tidy(tidy::Change::Pending)),
            _ => Err(format!("`tidy` accepts --fix or --pending, not `{}`", rest.join(" "))),
        },
        "tools" if rest.is_empty() => Ok(Subcommand::Tools),
        "tools" => Err(format!("`tools` takes no arguments, not `{}`", rest.join(" "))),
        "package" => debian_package::PackageOptions::parse(rest).map(Subcommand::Package),
        "docs" => match rest {
            [] => Ok(Subcommand::Docs(docs::DocumentTasks::All)),
            [arg] if arg == "--site" => Ok(Subcommand::Docs(docs::DocumentTasks::Site)),
            _ => Err(format!("`docs` accepts --site, not `{}`", rest.join(" "))),
        },
        "bench" => Ok(Subcommand::Bench(rest.to_vec())),
        "fuzz" if rest.is_empty() => Ok(Subcommand::Fuzz { seconds: fuzz::SECONDS }),
        "fuzz" => match rest.join(" ").parse() {
            Ok(seconds) if seconds > 0 => Ok(Subcommand::Fuzz { seconds }),
            _ => Err(format!("`fuzz` takes a number of seconds, not `{}`", rest.join(" "))),
        },
        other => Err(format!("no such command: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Subcommand, String> {
        parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn no_arguments_print_the_help() {
        for line in ["", "help", "--help", "-h", "test --help"] {
            assert_eq!(parsed(line), Ok(Subcommand::Help), "{line}");
        }
    }

    #[test]
    fn bench_passes_everything_on() {
        let args = vec!["--tasks".to_string(), "10".into(), "--help".into()];
        assert_eq!(parsed("bench --tasks 10 --help"), Ok(Subcommand::Bench(args)));
    }

    #[test]
    fn unknown_arguments_are_refused() {
        for line in [
            "tests",
            "tidy --fast",
            "tools now",
            "docs now",
            "docs --fast",
            "package now",
            "test --embeded",
            "test one two",
            "storm",
            "fuzz 0",
            "fuzz x",
            "fuzz 1 2",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}

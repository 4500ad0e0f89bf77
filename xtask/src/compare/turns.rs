//! Runs both builds in turns.

use std::fs;
use std::process::Stdio;

use super::builds::Build;
use super::figures::{self, Figure, Pair};
use super::options::CompareOptions;
use crate::shell;

/// Runs all turns; the order alternates, so that a trend of the machine's speed meets both builds.
pub fn run_all(options: &CompareOptions, builds: &[Build; 2]) -> Result<Vec<Pair>, String> {
    let mut pairs = Vec::new();
    for turn in 0..options.turns {
        let mut pair: Pair = [Vec::new(), Vec::new()];
        for side in order(turn) {
            let name = [format!("old, {}", options.old), format!("new, {}", options.new)];
            let step = format!("turn {} of {}, {}", turn + 1, options.turns, name[side]);
            eprintln!("{step}");
            pair[side] =
                run_one(options, builds, side).map_err(|error| format!("{step}: {error}"))?;
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

/// The order of OLD (0) and NEW (1) in a turn.
fn order(turn: usize) -> [usize; 2] {
    if turn.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

/// Runs the benchmark of one build.
fn run_one(
    options: &CompareOptions,
    builds: &[Build; 2],
    side: usize,
) -> Result<Vec<Figure>, String> {
    let benchmark = match options.measures_servers() {
        true => &builds[1].benchmark,
        false => &builds[side].benchmark,
    };
    let mut command = shell::program(benchmark);
    command.args(["--only", &options.part, "--json", "--data"]);
    command.arg(shell::target().join("compare").join("data"));
    command.args(&options.args).args([&options.old_args, &options.new_args][side]);
    if options.measures_servers() {
        command.arg("--product").arg(&builds[side].product);
    }
    let before = seconds_of_children();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", benchmark.display()))?;
    let messages = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("it failed ({}):\n{}", output.status, messages.trim_end()));
    }
    let mut found = figures::parse(&String::from_utf8_lossy(&output.stdout))?;
    if found.is_empty() {
        return Err(format!("it printed no figures:\n{}", messages.trim_end()));
    }
    found.extend(whole_run(options, before, seconds_of_children()));
    Ok(found)
}

/// Processor time of the benchmark and of all processes that it started, which every build has. It only says something about parts with fixed
/// amounts of work.
fn whole_run(options: &CompareOptions, before: Option<f64>, after: Option<f64>) -> Option<Figure> {
    Some(Figure {
        part: options.part.clone(),
        name: "processor time of the whole run".into(),
        value: after? - before?,
        unit: "s".into(),
        is_higher_better: false,
    })
}

/// Seconds of processor time of ended children of this process, and of theirs.
fn seconds_of_children() -> Option<f64> {
    const TICKS: f64 = 100.0;
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // After the name in brackets, the times are the 14th and 15th.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(13);
    let mut seconds = || fields.next()?.parse::<f64>().ok();
    Some((seconds()? + seconds()?) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_alternates() {
        assert_eq!([0, 1, 2].map(order), [[0, 1], [1, 0], [0, 1]]);
    }

    #[test]
    fn the_time_of_children_is_read() {
        assert!(seconds_of_children().is_some_and(|seconds| seconds >= 0.0));
    }

    /// A program that is no benchmark must end the comparison with a message that says so.
    #[test]
    fn another_program_is_refused() {
        let words = "--compare a b --only memory".split_whitespace().map(String::from);
        let options = CompareOptions::parse(&words.collect::<Vec<_>>()).unwrap().unwrap();
        for (program, hint) in
            [("/bin/false", "failed"), ("/bin/echo", "JSON"), ("/none", "cannot run")]
        {
            let build = Build { benchmark: program.into(), product: program.into() };
            let error = run_one(&options, &[build.clone(), build], 0).unwrap_err();
            assert!(error.contains(hint), "{program}: {error}");
        }
    }
}

//! `simulate`: replays a recorded trace with other consumers, limits, rates, priorities and classes, and shows the waits.

mod plot;
mod report;
mod scenario_args;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use taskyard_trace::{EndReason, ReadLimits, RecordedTube, Trace, read_file, replay};
use taskyard_wire::Exit;

use crate::failure::UsageError;
use crate::output::{self, plural};
use crate::progress::Progress;
use report::WaitReport;
use scenario_args::ScenarioArgs;

/// How many tubes a note names.
const NAMED_MAX: usize = 5;

/// The arguments of `simulate`.
#[derive(Debug, Args)]
#[command(after_help = "\
The trace is recorded by: taskyard serve --record FILE. In the replay every task is put at its recorded time and runs as long as it
did; the rules of tubes are those of the server. Without options the waits are about those of the recording.

Examples:
  taskyard simulate monday.trace
  taskyard simulate monday.trace --consumers 8
  taskyard simulate monday.trace --consumers mail=4 --consumers reports=2 --rate mail=100/1m
  taskyard simulate monday.trace --consumers 8 --limit reports=2
  taskyard simulate monday.trace --pri mail:5=0
  taskyard simulate monday.trace --consumers 8 --classes fast:3s:100%,slow:30s:50% --limit slow=2")]
pub struct SimulateArgs {
    /// The trace, a file.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Print one JSON object per tube and class.
    #[arg(long)]
    json: bool,
}

/// Replays a trace and prints the waits beside the recorded ones.
pub fn run(args: SimulateArgs) -> anyhow::Result<Exit> {
    let scenario = args.scenario.scenario()?;
    let trace = read_trace(&args.trace)?;
    show_gaps(&trace);
    let replayed = {
        let (mut progress, tasks) = (Progress::new(), trace.len() as u64);
        replay(&trace, &scenario, |done| progress.bar(done, tasks, "replayed"))
    };
    let replayed = replayed.map_err(|error| UsageError(error.to_string()))?;
    let report = WaitReport::new(&trace, replayed);
    if args.json {
        output::json_lines(report.json())?;
    } else {
        report.print()?;
    }
    Ok(Exit::Ok)
}

fn read_trace(path: &std::path::Path) -> anyhow::Result<Trace> {
    let mut progress = Progress::new();
    Ok(read_file(path, ReadLimits::default(), |bytes| progress.count(bytes, "bytes read"))?)
}

/// Says what the trace does not show.
fn show_gaps(trace: &Trace) {
    if trace.dropped > 0 {
        let events = plural(trace.dropped, "event");
        output::note(format!("{events} could not be recorded; the figures are less exact"));
    }
    match trace.end_reason {
        Some(EndReason::SizeLimit) => {
            output::note("the recording ended when the file had its maximum size (--record-max)");
        }
        None if trace.is_torn => {
            output::note(
                "the last part of the trace is incomplete and left out: the server was killed",
            );
        }
        _ => {}
    }
    if let Some(note) = unknown_options(&trace.tubes) {
        output::note(note);
    }
}

/// Names tubes whose options are not in the trace.
fn unknown_options(tubes: &[RecordedTube]) -> Option<String> {
    let tubes = tubes.iter().filter(|tube| tube.options.is_none());
    let names: BTreeSet<&str> = tubes.map(|tube| tube.name.as_str()).collect();
    let shown: Vec<_> = names.iter().take(NAMED_MAX).copied().collect();
    let more = names.len() - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| {
        let tubes = format!("{}{more}", shown.join(", "));
        format!("the trace has no options of {tubes}: replayed as fifottl without limits")
    })
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Kind, TubeOptions};

    use super::*;

    /// Tubes without options, and one that has them.
    fn tubes(names: &[&str]) -> Vec<RecordedTube> {
        let tube = |name: &&str| {
            let mut tube = RecordedTube::default();
            tube.name = (*name).to_owned();
            tube
        };
        let mut known = tube(&"mail");
        known.options = Some(Box::new(TubeOptions::new(Kind::Fifo)));
        names.iter().map(tube).chain([known]).collect()
    }

    #[test]
    fn tubes_without_options_are_named() {
        assert_eq!(unknown_options(&tubes(&[])), None);
        let rest = ": replayed as fifottl without limits";
        let one = unknown_options(&tubes(&["b", "a", "b"]));
        assert_eq!(one, Some(format!("the trace has no options of a, b{rest}")));
        let many = unknown_options(&tubes(&["a", "b", "c", "d", "e", "f", "g"]));
        assert_eq!(
            many,
            Some(format!("the trace has no options of a, b, c, d, e and 2 more{rest}"))
        );
    }
}

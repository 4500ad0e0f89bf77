//! `ack`, `release`, `bury`, `touch`: end or prolong deliveries.

use clap::Args;
use serde::Serialize;
use taskyard_core::{Command, Finish, FinishItem, Outcome, Reply, Span, TaskId, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::OutcomeWord;

use crate::connect::{ConnectArgs, misfit};
use crate::output;
use crate::units::{self, Delivery};

/// Which deliveries.
#[derive(Debug, Args)]
pub struct AckArgs {
    /// The tube.
    tube: String,
    /// Which tasks: the id, and the lease to be sure that it is still your delivery.
    #[arg(required = true, value_name = "ID[:LEASE]")]
    deliveries: Vec<Delivery>,
    /// Print one JSON object a line, with id and outcome.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Which deliveries to give back.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard release mail 0:17               ready again at once
  taskyard release mail 0:17 --delay 5m    ready again in five minutes")]
pub struct ReleaseArgs {
    #[command(flatten)]
    which: AckArgs,
    /// Not ready before this time has passed.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "0")]
    delay: Span,
    /// Do not count this delivery as an attempt.
    #[arg(long)]
    uncounted: bool,
}

/// Which deliveries need more time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard touch mail 0:17                 a minute more
  taskyard touch mail 0:17 --by 10m        ten minutes more")]
pub struct TouchArgs {
    #[command(flatten)]
    which: AckArgs,
    /// How much more time.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "60s")]
    by: Span,
}

/// What became of one task, as `--json` prints it.
#[derive(Serialize)]
struct Line {
    id: u64,
    outcome: OutcomeWord,
}

/// Says that tasks are done.
pub fn ack(args: AckArgs) -> anyhow::Result<Exit> {
    finish(&args, Finish::Ack, "acked")
}

/// Gives tasks back.
pub fn release(args: ReleaseArgs) -> anyhow::Result<Exit> {
    let release = Finish::Release { delay: args.delay, counted: !args.uncounted };
    finish(&args.which, release, "released")
}

/// Puts tasks aside.
pub fn bury(args: AckArgs) -> anyhow::Result<Exit> {
    finish(&args, Finish::Bury, "buried")
}

/// Asks for more time.
pub fn touch(args: TouchArgs) -> anyhow::Result<Exit> {
    finish(&args.which, Finish::Touch(args.by), "touched")
}

fn finish(args: &AckArgs, finish: Finish, done: &str) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    let item =
        |delivery: &Delivery| FinishItem { id: delivery.id, holder: delivery.holder, finish };
    let items = args.deliveries.iter().map(item).collect();
    let reply = args.connect.ask(Command::Finish { tube: tube.clone(), items, show: false })?;
    let Reply::Finished(outcomes) = reply else { return Err(misfit("finish")) };
    let ids: Vec<TaskId> = args.deliveries.iter().map(|delivery| delivery.id).collect();
    print(&tube, &ids, &outcomes, done, args.json)
}

/// Prints an outcome for each task, for people with the word `done` before it, and says how to end.
pub fn print(
    tube: &TubeName,
    ids: &[TaskId],
    outcomes: &[Outcome],
    done: &str,
    json: bool,
) -> anyhow::Result<Exit> {
    let lines = ids.iter().zip(outcomes).map(|(id, outcome)| (id.0, OutcomeWord::from(outcome)));
    if json {
        output::json_lines(lines.map(|(id, outcome)| Line { id, outcome }))?;
        return Ok(exit_of(outcomes));
    }
    for (id, outcome) in lines {
        match outcome {
            OutcomeWord::Done => output::line(format!("{done} {id}"))?,
            OutcomeWord::Stale => output::note(format!(
                "task {id} of {tube} is not taken, or no longer by this delivery"
            )),
            OutcomeWord::Missing => output::note(format!("no task {id} in {tube}")),
        }
    }
    Ok(exit_of(outcomes))
}

fn exit_of(outcomes: &[Outcome]) -> Exit {
    if outcomes.contains(&Outcome::Stale) {
        Exit::Stale
    } else if outcomes.contains(&Outcome::Missing) {
        Exit::NotFound
    } else {
        Exit::Ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_outcome_decides() {
        assert_eq!(exit_of(&[]), Exit::Ok);
        assert_eq!(exit_of(&[Outcome::Missing, Outcome::Stale]), Exit::Stale);
        assert_eq!(exit_of(&[Outcome::Missing]), Exit::NotFound);
    }
}

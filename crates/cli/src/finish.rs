//! `ack`, `fail`, `release`, `bury`, `touch`: ends or extends deliveries.

use clap::Args;
use serde::Serialize;
use taskyard_core::{Command, Finish, FinishItem, Outcome, Reply, Span, TaskId, TubeName};
use taskyard_wire::http::{OutcomeWord, TaskAction, TaskActionRequest, seconds_of};
use taskyard_wire::{Exit, fail_by_policy};

use crate::actions::{self, BoundArgs, ChosenAction};
use crate::connect::{ConnectArgs, unexpected_reply};
use crate::failure::UsageError;
use crate::filter::FilterArgs;
use crate::output;
use crate::payload;
use crate::units::{self, Delivery};

/// The arguments of `ack`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard ack mail 0:17
  taskyard ack reports 0:17 --result '{\"pages\": 12}'    kept if the tube has --keep-done")]
pub struct AckArgs {
    #[command(flatten)]
    which: DeliveryArgs,
    /// The result: JSON, or a text. A tube with keep_done keeps it with the done task.
    #[arg(long, value_name = "JSON")]
    result: Option<String>,
}

/// Deliveries of a tube.
#[derive(Debug, Args)]
struct DeliveryArgs {
    /// The tube.
    tube: String,
    /// The tasks; with the lease number the command fails if it is no longer your delivery.
    #[arg(required = true, value_name = "ID[:LEASE]")]
    deliveries: Vec<Delivery>,
    /// Print one JSON object per line, with id and outcome.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The arguments of `bury`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard bury mail 0:17                  a task that you have taken
  taskyard bury mail 0                     a task in any state
  taskyard bury mail 0 --error 'no such user'
  taskyard bury mail --match bob@ --dry-run
  taskyard retry mail 0                    make it ready again")]
pub struct BuryArgs {
    #[command(flatten)]
    which: ChosenDeliveries,
    /// What went wrong; kept with the task.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
}

/// The arguments of `fail`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard fail mail 0:17 --error 'no route to host'
  taskyard fail mail 0:17 --error timeout --delay 5m    try again in five minutes
  taskyard task mail 0                                  shows the last five failures

A failed delivery counts as an attempt. In a tube with attempts_max the last one buries the task.")]
pub struct FailArgs {
    #[command(flatten)]
    which: DeliveryArgs,
    /// What went wrong; kept with the task, cut to 1 KiB.
    #[arg(long, value_name = "TEXT")]
    error: String,
    /// Make the tasks ready after this time; default the retry policy of the tube, or at once without one.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    delay: Option<Span>,
}

/// The arguments of `release`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard release mail 0:17               ready again at once
  taskyard release mail 0:17 --delay 5m    ready again in five minutes
  taskyard release mail --worker web1:4711:mailer    what this worker holds")]
pub struct ReleaseArgs {
    #[command(flatten)]
    which: ChosenDeliveries,
    /// Make the tasks ready after this time.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "0")]
    delay: Span,
    /// Do not count this delivery as an attempt.
    #[arg(long)]
    uncounted: bool,
}

/// Deliveries, or tasks that a filter chooses.
#[derive(Debug, Args)]
struct ChosenDeliveries {
    /// The tube.
    tube: String,
    /// The tasks; with the lease number the command fails if it is no longer your delivery.
    #[arg(value_name = "ID[:LEASE]")]
    deliveries: Vec<Delivery>,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    bounds: BoundArgs,
    /// Print JSON: one object per line with id and outcome, or the numbers of tasks.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The arguments of `touch`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard touch mail 0:17                 extend the lease by a minute
  taskyard touch mail 0:17 --by 10m        extend the lease by ten minutes")]
pub struct TouchArgs {
    #[command(flatten)]
    which: DeliveryArgs,
    /// The time to add to the lease.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "60s")]
    by: Span,
}

/// The outcome of one task, as `--json` prints it.
#[derive(Serialize)]
struct OutcomeLine {
    id: u64,
    outcome: OutcomeWord,
}

/// Acknowledges tasks.
pub fn ack(args: AckArgs) -> anyhow::Result<Exit> {
    let ack = match &args.result {
        Some(text) => Finish::ack_with(&payload::from_text(text, None)?.0),
        None => Finish::Ack,
    };
    args.which.finish(ack, "acked")
}

/// Returns tasks.
pub fn release(args: ReleaseArgs) -> anyhow::Result<Exit> {
    if !args.which.deliveries.is_empty() {
        let release = Finish::Release { delay: args.delay, counted: !args.uncounted };
        return args.which.finish(release, "released");
    }
    if args.uncounted {
        let why = "--uncounted needs the ids of tasks: a release by a filter counts as an attempt";
        return Err(UsageError(why.into()).into());
    }
    let delay = Some(seconds_of(args.delay));
    let request = TaskActionRequest { delay, ..TaskActionRequest::default() };
    args.which.act(TaskAction::Release, request)
}

/// Buries tasks.
pub fn bury(args: BuryArgs) -> anyhow::Result<Exit> {
    if args.which.deliveries.is_empty() {
        let request = TaskActionRequest { error: args.error, ..TaskActionRequest::default() };
        return args.which.act(TaskAction::Bury, request);
    }
    let bury = args.error.map_or(Finish::Bury, |error| Finish::fail(&error, None));
    args.which.finish(bury, "buried")
}

/// Reports that deliveries failed.
pub fn fail(args: FailArgs) -> anyhow::Result<Exit> {
    let fail = match args.delay {
        Some(delay) => Finish::fail(&args.error, Some(delay)),
        None => fail_by_policy(&args.error, Span::ZERO),
    };
    args.which.finish(fail, "failed")
}

/// Extends leases.
pub fn touch(args: TouchArgs) -> anyhow::Result<Exit> {
    args.which.finish(Finish::Touch(args.by), "touched")
}

impl DeliveryArgs {
    fn finish(&self, how: Finish, done: &str) -> anyhow::Result<Exit> {
        finish(&self.tube, &self.deliveries, how, done, self.json, &self.connect)
    }
}

impl ChosenDeliveries {
    fn finish(&self, how: Finish, done: &str) -> anyhow::Result<Exit> {
        if !self.filter.is_empty() || self.bounds.is_set() {
            let why = "name tasks by their ids or by a filter, not both";
            return Err(UsageError(why.into()).into());
        }
        finish(&self.tube, &self.deliveries, how, done, self.json, &self.connect)
    }

    fn act(&self, action: TaskAction, request: TaskActionRequest) -> anyhow::Result<Exit> {
        if self.filter.is_empty() {
            let why = "no task is named: give ids, or a filter such as --match TEXT";
            return Err(UsageError(why.into()).into());
        }
        let (tube, json, connect) = (&self.tube, self.json, &self.connect);
        let chosen = ChosenAction { tube, action, request, json, connect };
        actions::by_filter(chosen, &self.filter, &self.bounds)
    }
}

fn finish(
    tube: &str,
    deliveries: &[Delivery],
    finish: Finish,
    done: &str,
    json: bool,
    connect: &ConnectArgs,
) -> anyhow::Result<Exit> {
    let tube = TubeName::new(tube)?;
    let item = |delivery: &Delivery| FinishItem {
        id: delivery.id,
        holder: delivery.holder,
        finish: finish.clone(),
    };
    let items = deliveries.iter().map(item).collect();
    let reply = connect.execute(Command::Finish { tube: tube.clone(), items, show: false })?;
    let Reply::Finished(outcomes) = reply else { return Err(unexpected_reply("finish")) };
    let ids: Vec<TaskId> = deliveries.iter().map(|delivery| delivery.id).collect();
    let stale = "is not taken, or has been delivered again since";
    print(&tube, &ids, &outcomes, Words { done, stale }, json)
}

/// How outcomes are told.
pub struct Words<'a> {
    /// Before the id of a task that was changed.
    pub done: &'a str,
    /// What is wrong with a task that exists and was not changed.
    pub stale: &'a str,
}

/// Prints the outcome of each task, as JSON or in words, and returns the exit code.
pub fn print(
    tube: &TubeName,
    ids: &[TaskId],
    outcomes: &[Outcome],
    words: Words<'_>,
    json: bool,
) -> anyhow::Result<Exit> {
    let lines = ids.iter().zip(outcomes).map(|(id, outcome)| (id.0, OutcomeWord::from(outcome)));
    if json {
        output::json_lines(lines.map(|(id, outcome)| OutcomeLine { id, outcome }))?;
        return Ok(exit_of(outcomes));
    }
    for (id, outcome) in lines {
        match outcome {
            OutcomeWord::Done => output::line(format!("{} {id}", words.done))?,
            OutcomeWord::Stale => output::note(format!("task {id} of {tube} {}", words.stale)),
            OutcomeWord::Missing => output::note(format!("task {id} does not exist in {tube}")),
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
    fn the_worst_outcome_determines_the_exit_code() {
        assert_eq!(exit_of(&[]), Exit::Ok);
        assert_eq!(exit_of(&[Outcome::Missing, Outcome::Stale]), Exit::Stale);
        assert_eq!(exit_of(&[Outcome::Missing]), Exit::NotFound);
    }
}

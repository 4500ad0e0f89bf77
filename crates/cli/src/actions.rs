//! `retry`, and `delete`, `bury` and `release` with a filter: actions on chosen tasks.

use clap::Args;
use serde::Serialize;
use taskyard_core::limits::LIST_TASKS_MAX;
use taskyard_core::{Command, Reply, TaskId, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::{TaskAction, TaskActionRequest};

use crate::connect::{ConnectArgs, block_on, unexpected_reply};
use crate::failure::UsageError;
use crate::filter::{self, FilterArgs};
use crate::finish::{self, Words};
use crate::output;
use crate::progress::Progress;

/// The arguments of `retry`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard retry mail 17 18                          these two tasks
  taskyard retry mail --all                          every buried task
  taskyard retry mail --error-match timeout --dry-run   how many failed with this text?
  taskyard retry mail --error-match timeout --reset-attempts

With --reset-attempts the attempts count from zero again; without it a task whose attempts are
used up gets one more delivery.")]
pub struct RetryArgs {
    /// The tube.
    tube: String,
    #[command(flatten)]
    chosen: ChosenArgs,
    /// Count the attempts from zero again.
    #[arg(long)]
    reset_attempts: bool,
    /// Print a JSON object with the numbers of tasks.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Which tasks: ids, or a filter.
#[derive(Debug, Args)]
pub struct ChosenArgs {
    /// The tasks, instead of a filter.
    #[arg(value_name = "ID")]
    ids: Vec<u64>,
    /// All tasks to which the action applies, without a filter.
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    bounds: BoundArgs,
}

/// How far an action with a filter goes.
#[derive(Debug, Args)]
pub struct BoundArgs {
    /// Only count the tasks, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Change at most this many tasks.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

impl BoundArgs {
    /// Whether one of them was given.
    pub fn is_set(&self) -> bool {
        self.dry_run || self.limit.is_some()
    }
}

/// An action on chosen tasks.
pub struct ChosenAction<'a> {
    /// The tube.
    pub tube: &'a str,
    /// What to do.
    pub action: TaskAction,
    /// Its options.
    pub request: TaskActionRequest,
    /// Whether to print JSON.
    pub json: bool,
    /// The server.
    pub connect: &'a ConnectArgs,
}

/// What an action did, as `--json` prints it.
#[derive(Default, Serialize)]
struct ActionTotal {
    matched: u64,
    changed: u64,
    scanned: u64,
}

/// Makes buried tasks ready again.
pub fn retry(args: RetryArgs) -> anyhow::Result<Exit> {
    let request =
        TaskActionRequest { reset_attempts: args.reset_attempts, ..TaskActionRequest::default() };
    let (action, json) = (TaskAction::Kick, args.json);
    let chosen = ChosenAction { tube: &args.tube, action, request, json, connect: &args.connect };
    args.chosen.run(chosen)
}

impl ChosenArgs {
    /// Runs an action on the tasks with these ids, or on those that the filter chooses.
    pub fn run(&self, chosen: ChosenAction<'_>) -> anyhow::Result<Exit> {
        if !self.ids.is_empty() {
            if !self.filter.is_empty() || self.bounds.limit.is_some() {
                return Err(
                    UsageError("name tasks by their ids or by a filter, not both".into()).into()
                );
            }
            return on_ids(chosen, &self.ids, self.bounds.dry_run);
        }
        if self.filter.is_empty() && !self.all {
            let why = "no task is named: give ids, a filter such as --error-match TEXT, or --all";
            return Err(UsageError(why.into()).into());
        }
        by_filter(chosen, &self.filter, &self.bounds)
    }

    /// Whether tasks are chosen by a filter.
    pub fn uses_filter(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether nothing is changed.
    pub fn is_dry_run(&self) -> bool {
        self.bounds.dry_run
    }
}

fn on_ids(chosen: ChosenAction<'_>, named: &[u64], dry_run: bool) -> anyhow::Result<Exit> {
    let tube = TubeName::new(chosen.tube)?;
    let ids: Vec<TaskId> = named.iter().copied().map(TaskId).collect();
    if chosen.action == TaskAction::Delete && !dry_run {
        // Servers of earlier versions know this command.
        let delete = Command::Delete { tube: tube.clone(), ids: ids.clone(), show: false };
        let Reply::Finished(outcomes) = chosen.connect.execute(delete)? else {
            return Err(unexpected_reply("delete"));
        };
        let words = Words { done: past(chosen.action), stale: "" };
        return finish::print(&tube, &ids, &outcomes, words, chosen.json);
    }
    let http = chosen.connect.http()?;
    let request = TaskActionRequest { ids: Some(named.to_vec()), dry_run, ..chosen.request };
    let answer = block_on(async { Ok(http.act(&tube, chosen.action, &request).await?) })?;
    if dry_run {
        if chosen.json {
            output::json(&answer)?;
        } else {
            output::line(format!(
                "{} of {} exist",
                answer.matched,
                output::plural(ids.len() as u64, "task")
            ))?;
        }
        return Ok(Exit::Ok);
    }
    let stale = match chosen.action {
        TaskAction::Kick => "is not buried",
        _ => "is not taken",
    };
    let outcomes = answer.into_outcomes()?;
    finish::print(&tube, &ids, &outcomes, Words { done: past(chosen.action), stale }, chosen.json)
}

/// Runs an action on the tasks that a filter chooses, step by step.
pub fn by_filter(
    chosen: ChosenAction<'_>,
    filter: &FilterArgs,
    bounds: &BoundArgs,
) -> anyhow::Result<Exit> {
    let tube = TubeName::new(chosen.tube)?;
    let http = chosen.connect.http()?;
    let mut request = TaskActionRequest {
        filter: Some(filter.request()),
        dry_run: bounds.dry_run,
        ..chosen.request
    };
    if filter.has_empty_text() {
        let why = "a text of the filter is empty; leave it out if every task is meant";
        return Err(UsageError(why.into()).into());
    }
    let most = bounds.limit.unwrap_or(u64::MAX);
    let mut progress = Progress::new();
    let states = filter.request().state;
    let states = states.as_deref().unwrap_or(chosen.action.states());
    let total = block_on(async {
        let compared = filter::compared(&http, &tube, states, &progress).await;
        let mut total = ActionTotal::default();
        loop {
            request.limit = Some((most - total.matched).min(LIST_TASKS_MAX as u64));
            let step = http.act(&tube, chosen.action, &request).await?;
            total.matched += step.matched;
            total.changed += step.changed;
            total.scanned += step.scanned;
            progress.of(total.scanned, compared, "compared");
            if step.next.is_none() || total.matched >= most {
                return Ok(total);
            }
            request.after = step.next;
        }
    })?;
    drop(progress);
    if chosen.json {
        output::json(&total)?;
    } else if bounds.dry_run {
        let matched = output::plural(total.matched, "task");
        output::line(format!("{matched} would be {}", past(chosen.action)))?;
    } else {
        let changed = output::plural(total.changed, "task");
        output::line(format!("{} {changed}", past(chosen.action)))?;
    }
    Ok(Exit::Ok)
}

const fn past(action: TaskAction) -> &'static str {
    match action {
        TaskAction::Kick => "kicked",
        TaskAction::Delete => "deleted",
        TaskAction::Bury => "buried",
        TaskAction::Release => "released",
    }
}

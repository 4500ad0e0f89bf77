//! `peek`: shows tasks without taking them.

use std::collections::HashMap;

use clap::Args;
use taskyard_core::limits::POSITIONS_MAX;
use taskyard_core::{Command, List, ListOrder, Reason, Reply, Task, TaskId, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::{Form, QueueAnswer, TaskAnswer, moment_of};

use crate::connect::{ConnectArgs, unexpected_reply};
use crate::{estimate, output, payload, units};

/// How many tasks are shown if none is named.
const NEXT: usize = 10;

/// The arguments of `peek`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard peek mail 0             state, data, and why it is not running
  taskyard peek mail 0 1 2 --json
  taskyard peek mail               the ten tasks that will be taken next
  taskyard peek mail --estimate    with the times until they start")]
pub struct PeekArgs {
    /// The tube.
    tube: String,
    /// The tasks; without ids the next ten that can be taken.
    #[arg(value_name = "ID")]
    ids: Vec<u64>,
    /// Show when waiting tasks will start; for at most 100 tasks.
    #[arg(long)]
    estimate: bool,
    /// Print one JSON object per line, with all fields.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Shows tasks; the exit code is 4 if one does not exist.
pub fn run(args: PeekArgs) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    let most = if args.estimate { POSITIONS_MAX } else { usize::MAX };
    anyhow::ensure!(args.ids.len() <= most, "name at most {most} tasks with --estimate");
    let ids: Vec<TaskId> = match args.ids.as_slice() {
        [] => next_ids(&args.connect, &tube)?,
        ids => ids.iter().copied().map(TaskId).collect(),
    };
    let peek = Command::Peek { tube: tube.clone(), ids: ids.clone() };
    let Reply::Tasks(tasks) = args.connect.execute(peek)? else {
        return Err(unexpected_reply("peek"));
    };
    let queue = args.positions(&tube, &ids)?;
    if args.json {
        let answer = |task: &Task| TaskAnswer {
            queue: queue.get(&task.id).cloned().map(Box::new),
            ..TaskAnswer::with_reason(task, Form::Json)
        };
        output::json_lines(tasks.iter().map(answer))?;
    } else if !tasks.is_empty() {
        show_table(&tasks, args.estimate.then_some(&queue))?;
    }
    let missing: Vec<_> = ids.iter().filter(|id| tasks.iter().all(|t| t.id != **id)).collect();
    for id in &missing {
        output::note(format!("task {id} does not exist in {tube}"));
    }
    Ok(if missing.is_empty() { Exit::Ok } else { Exit::NotFound })
}

impl PeekArgs {
    /// When the tasks will start, if the arguments ask for it.
    fn positions(
        &self,
        tube: &TubeName,
        ids: &[TaskId],
    ) -> anyhow::Result<HashMap<TaskId, QueueAnswer>> {
        if !self.estimate {
            return Ok(HashMap::new());
        }
        let found = estimate::positions(&self.connect, tube, ids)?;
        Ok(found.iter().map(|position| (position.id, QueueAnswer::new(position))).collect())
    }
}

fn show_table(tasks: &[Task], queue: Option<&HashMap<TaskId, QueueAnswer>>) -> anyhow::Result<()> {
    let mut head = vec!["id", "state", "pri", "attempts", "why not now"];
    head.extend(queue.map(|_| "starts in"));
    head.push("data");
    let mut table = output::table(&head);
    let now = units::now();
    for task in tasks {
        let mut row = vec![
            task.id.to_string(),
            task.state.name().into(),
            priority_text(task),
            task.attempts.to_string(),
            why(task, now),
        ];
        row.extend(queue.map(|queue| estimate::start(queue.get(&task.id))));
        row.push(payload::show(task.body.as_ref()));
        table.add_row(row);
    }
    Ok(output::show(&table)?)
}

/// The tasks that will be taken next.
fn next_ids(connect: &ConnectArgs, tube: &TubeName) -> anyhow::Result<Vec<TaskId>> {
    let order = ListOrder::Queue { after: None };
    let list = List { tube: tube.clone(), order, limit: NEXT, key: None };
    match connect.execute(Command::List(list))? {
        Reply::Listed(tasks) if tasks.is_empty() => {
            let hint = "taskyard tasks lists tasks in other states";
            output::note(format!("no task of {tube} can be taken now; {hint}"));
            Ok(Vec::new())
        }
        Reply::Listed(tasks) => Ok(tasks.iter().map(|task| task.id).collect()),
        _ => Err(unexpected_reply("list")),
    }
}

/// The priority, and the one for the semaphore if it has its own.
fn priority_text(task: &Task) -> String {
    match task.semaphore_priority {
        Some(own) => format!("{} (semaphore {})", task.pri, own.value()),
        None => task.pri.to_string(),
    }
}

/// Why a task is not running, and until when if that is known.
pub fn why(task: &Task, now: f64) -> String {
    let until = match task.reason {
        Reason::NotDue(due) => moment_of(due).map(|due| ("due", due)),
        Reason::RateLimited(next) => moment_of(next).map(|next| ("next delivery", next)),
        Reason::Running => task.lease_until.and_then(moment_of).map(|end| ("its lease ends", end)),
        _ => None,
    };
    match until {
        Some((what, end)) => {
            let (rest, moment) = (units::in_words(end - now), units::utc(end));
            format!("{}; {what} in {rest} ({moment})", task.reason)
        }
        None => task.reason.to_string(),
    }
}

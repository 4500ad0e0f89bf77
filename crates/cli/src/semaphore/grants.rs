//! `semaphore enqueue` and `semaphore release`: requests and ends grants.

use clap::Args;
use taskyard_core::{
    EnqueueItem, Grant, GrantFinish, GrantItem, GrantOutcome, SemaphoreCommand, SemaphoreReply,
    Span, TaskId,
};
use taskyard_wire::Exit;
use taskyard_wire::http::GrantsAnswer;

use super::{execute, key, show};
use crate::connect::{ServerArgs, ServerLinesArgs, unexpected_reply};
use crate::failure::UsageError;
use crate::output;
use crate::units;

/// The arguments of `semaphore enqueue`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore enqueue yang 17 --priority 2.5
  taskyard semaphore enqueue yang 17 18 19       all with priority 0

The command prints the current status of the tasks. Continue with a task only after its event
`acquired` (taskyard semaphore events): until then its grant may go to a task of higher priority
without notice.")]
pub struct EnqueueArgs {
    /// The semaphore.
    key: String,
    /// The numbers of the tasks, chosen by the caller.
    #[arg(required = true, value_name = "TASK")]
    tasks: Vec<u64>,
    /// Priority: larger numbers go first.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    priority: f64,
    #[command(flatten)]
    server: ServerLinesArgs,
}

/// The arguments of `semaphore release`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore release yang 17             end its grant, or stop waiting for one
  taskyard semaphore release yang 17:3           end its grant 3 only
  taskyard semaphore release yang 17 --yield     return the grant and wait for another one
  taskyard semaphore release yang 17 --decline   keep the grant although a release was requested
  taskyard semaphore release yang 17 --extend 5m

With the number of the grant the command is refused (exit code 5) if the task holds another grant;
so is --decline if no release was requested.")]
pub struct GrantReleaseArgs {
    /// The semaphore.
    key: String,
    /// The tasks, optionally with the number of their grant.
    #[arg(required = true, value_name = "TASK[:GRANT]", value_parser = task_and_grant)]
    tasks: Vec<(u64, Option<u64>)>,
    /// Return the grant and wait for another one.
    #[arg(long = "yield", conflicts_with_all = ["decline", "extend"])]
    yields: bool,
    /// Keep the grant although a release was requested.
    #[arg(long, conflicts_with = "extend")]
    decline: bool,
    /// Keep the grant for this long from now.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    extend: Option<Span>,
    #[command(flatten)]
    server: ServerArgs,
}

fn task_and_grant(text: &str) -> Result<(u64, Option<u64>), String> {
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|_| format!("'{text}' is not a number; write TASK or TASK:GRANT"))
    };
    match text.split_once(':') {
        Some((task, grant)) => Ok((number(task)?, Some(number(grant)?))),
        None => Ok((number(text)?, None)),
    }
}

/// Enqueues tasks and prints their status.
pub fn enqueue(args: &EnqueueArgs) -> anyhow::Result<Exit> {
    if !args.priority.is_finite() {
        return Err(UsageError("a priority must be a finite number".into()).into());
    }
    let item = |task: &u64| EnqueueItem { task: TaskId(*task), priority: args.priority };
    let entries = args.tasks.iter().map(item).collect();
    let enqueue = SemaphoreCommand::Enqueue { key: key(&args.key)?, entries };
    match execute(&args.server.connect, enqueue)? {
        SemaphoreReply::MemberInfos(infos) => show::print_members(&infos, args.server.json)?,
        _ => return Err(unexpected_reply("enqueue")),
    }
    Ok(Exit::Ok)
}

/// Ends or extends grants and prints the outcomes.
pub fn release(args: &GrantReleaseArgs) -> anyhow::Result<Exit> {
    let finish = match (args.yields, args.decline, args.extend) {
        (true, ..) => GrantFinish::Yield,
        (_, true, _) => GrantFinish::Decline,
        (_, _, Some(span)) => GrantFinish::Extend(span),
        _ => GrantFinish::Release,
    };
    let item = |(task, grant): &(u64, Option<u64>)| GrantItem {
        task: TaskId(*task),
        grant: grant.map(Grant),
        finish,
    };
    let items = args.tasks.iter().map(item).collect();
    let finish = SemaphoreCommand::Finish { key: key(&args.key)?, items };
    let SemaphoreReply::Finished(outcomes) = execute(&args.server.connect, finish)? else {
        return Err(unexpected_reply("release"));
    };
    if args.server.json {
        output::json(&GrantsAnswer::new(&outcomes))?;
    } else {
        for ((task, _), outcome) in args.tasks.iter().zip(&outcomes) {
            output::line(format!("{task} {}", outcome.name()))?;
        }
    }
    let worst = |outcome| outcomes.contains(&outcome);
    let stale = worst(GrantOutcome::Stale) || worst(GrantOutcome::NotAsked);
    Ok(match (stale, worst(GrantOutcome::Missing)) {
        (true, _) => Exit::Stale,
        (false, true) => Exit::NotFound,
        (false, false) => Exit::Ok,
    })
}

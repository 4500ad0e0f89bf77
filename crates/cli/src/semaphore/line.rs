//! Standing in line, and leaving.

use clap::Args;
use taskyard_core::{
    Grant, GrantFinish, GrantItem, GrantOutcome, SemaphoreCommand, SemaphoreReply, Span, TaskId,
    Wish,
};
use taskyard_wire::Exit;
use taskyard_wire::http::GrantsAnswer;

use super::{ask, key, show};
use crate::connect::{ConnectArgs, misfit};
use crate::failure::Wrong;
use crate::output;
use crate::units;

/// Who stands in line.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore enqueue yang 17 --priority 2.5
  taskyard semaphore enqueue yang 17 18 19       all with priority 0

What is printed is where the tasks stand at this moment. Go on only when the event `acquired` has come
(taskyard semaphore events): until then a grant may go to somebody better without a word.")]
pub struct EnqueueArgs {
    /// The semaphore.
    key: String,
    /// The numbers of the tasks; any that the caller gives them.
    #[arg(required = true, value_name = "TASK")]
    tasks: Vec<u64>,
    /// Larger goes first.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    priority: f64,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Which grants to end, and how.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore release yang 17             whatever it holds, or its place in line
  taskyard semaphore release yang 17:3           its grant 3 only
  taskyard semaphore release yang 17 --yield     back into the line, so that others go first
  taskyard semaphore release yang 17 --decline   keep the grant although asked to release
  taskyard semaphore release yang 17 --extend 5m

With the number of the grant it is refused (exit code 5) when the task holds another one; so is --decline by a
holder that was not asked.")]
pub struct ReleaseArgs {
    /// The semaphore.
    key: String,
    /// The tasks, each with the number of its grant if that matters.
    #[arg(required = true, value_name = "TASK[:GRANT]", value_parser = task_and_grant)]
    tasks: Vec<(u64, Option<u64>)>,
    /// Go back into the line instead of leaving.
    #[arg(long = "yield", conflicts_with_all = ["decline", "extend"])]
    gives_way: bool,
    /// Keep the grant although asked to release.
    #[arg(long, conflicts_with = "extend")]
    decline: bool,
    /// Keep the grant for this long from now.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    extend: Option<Span>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
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

/// Stands in line and shows where.
pub fn enqueue(args: &EnqueueArgs) -> anyhow::Result<Exit> {
    if !args.priority.is_finite() {
        return Err(Wrong("a priority must be a finite number".into()).into());
    }
    let wish = |task: &u64| Wish { task: TaskId(*task), priority: args.priority };
    let wishes = args.tasks.iter().map(wish).collect();
    let enqueue = SemaphoreCommand::Enqueue { key: key(&args.key)?, wishes };
    match ask(&args.connect, enqueue)? {
        SemaphoreReply::Standings(standings) => show::standings(&standings, args.json)?,
        _ => return Err(misfit("enqueue")),
    }
    Ok(Exit::Ok)
}

/// Ends or prolongs grants and says what became of each.
pub fn release(args: &ReleaseArgs) -> anyhow::Result<Exit> {
    let finish = match (args.gives_way, args.decline, args.extend) {
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
    let SemaphoreReply::Finished(outcomes) = ask(&args.connect, finish)? else {
        return Err(misfit("release"));
    };
    if args.json {
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

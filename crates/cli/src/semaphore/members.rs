//! `semaphore holders`, `waiting` and `drop`: lists the tasks of a semaphore, and removes semaphores.

use clap::Args;
use taskyard_core::{Member, MemberCursor, MemberGroup, SemaphoreCommand, SemaphoreReply};
use taskyard_wire::Exit;
use taskyard_wire::http::{MembersAnswer, NothingAnswer};

use super::{execute, key};
use crate::connect::{ServerArgs, unexpected_reply};
use crate::output;

/// The arguments of `semaphore holders` and `waiting`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore holders yang
  taskyard semaphore waiting yang --count 20

If there are more tasks, the command prints the --after for the next page.")]
pub struct MembersArgs {
    /// The semaphore.
    key: String,
    /// Print at most this many.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    count: usize,
    /// Where the previous page ended.
    #[arg(long, value_name = "NEXT", allow_hyphen_values = true)]
    after: Option<MemberCursor>,
    #[command(flatten)]
    server: ServerArgs,
}

/// The arguments of `semaphore drop`.
#[derive(Debug, Args)]
pub struct DropArgs {
    /// The semaphore.
    key: String,
    /// Remove it even if tasks hold its grants or wait for them; they get no event.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints one page.
pub fn run(args: &MembersArgs, part: MemberGroup) -> anyhow::Result<Exit> {
    let (key, after, count) = (key(&args.key)?, args.after, args.count);
    let members = SemaphoreCommand::Members { key, part, after, count };
    let SemaphoreReply::Members(page) = execute(&args.server.connect, members)? else {
        return Err(unexpected_reply("semaphore"));
    };
    if args.server.json {
        output::json(&MembersAnswer::new(&page))?;
        return Ok(Exit::Ok);
    }
    let mut table = output::table(&["task", "tube", "status", "grant", "priority"]);
    for Member { tube, info } in &page.members {
        table.add_row([
            info.task.to_string(),
            tube.as_ref().map_or_else(String::new, |tube| output::printable(tube.as_str())),
            info.status.name().to_owned(),
            info.grant.map_or_else(String::new, |grant| grant.to_string()),
            info.priority.value().to_string(),
        ]);
    }
    output::show(&table)?;
    if let Some(next) = page.next {
        output::note(format!("more with --after {next}"));
    }
    Ok(Exit::Ok)
}

/// Removes a semaphore.
pub fn drop(args: &DropArgs) -> anyhow::Result<Exit> {
    let key = key(&args.key)?;
    let drop = SemaphoreCommand::Drop { key: key.clone(), force: args.force };
    let SemaphoreReply::Dropped = execute(&args.server.connect, drop)? else {
        return Err(unexpected_reply("semaphore"));
    };
    if args.server.json {
        output::json(&NothingAnswer {})?;
    } else {
        output::line(format!("dropped {key}"))?;
    }
    Ok(Exit::Ok)
}

//! `semaphore list` and `semaphore show`: prints semaphores and the status of their tasks.

use clap::Args;
use taskyard_core::{MemberInfo, SemaphoreCommand, SemaphoreInfo, SemaphoreReply, Span, TaskId};
use taskyard_wire::Exit;
use taskyard_wire::http::{MemberInfoAnswer, SemaphoreAnswer};

use super::{execute, key};
use crate::connect::{ConnectArgs, ServerArgs, ServerLinesArgs, unexpected_reply};
use crate::output;

/// The arguments of `semaphore list`.
#[derive(Debug, Args)]
pub struct SemaphoreListArgs {
    #[command(flatten)]
    server: ServerLinesArgs,
}

/// The arguments of `semaphore show`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore show yang
  taskyard semaphore show yang 17 18             the status of these tasks")]
pub struct ShowArgs {
    /// The semaphore.
    key: String,
    /// Show the status of these tasks instead.
    #[arg(value_name = "TASK")]
    tasks: Vec<u64>,
    #[command(flatten)]
    server: ServerArgs,
}

fn infos(connect: &ConnectArgs, command: SemaphoreCommand) -> anyhow::Result<Vec<SemaphoreInfo>> {
    match execute(connect, command)? {
        SemaphoreReply::Semaphores(infos) => Ok(infos),
        _ => Err(unexpected_reply("semaphore")),
    }
}

/// Prints all semaphores.
pub fn list(args: &SemaphoreListArgs) -> anyhow::Result<Exit> {
    let infos = infos(&args.server.connect, SemaphoreCommand::List { key: None })?;
    if args.server.json {
        output::json_lines(infos.iter().map(SemaphoreAnswer::new))?;
        return Ok(Exit::Ok);
    }
    let mut table =
        output::table(&["semaphore", "active", "granted", "revoking", "waiting", "events"]);
    for info in &infos {
        table.add_row([
            output::printable(info.key.as_str()),
            info.options.active.to_string(),
            info.acquired.to_string(),
            info.revoking.to_string(),
            info.waiting.to_string(),
            info.events.to_string(),
        ]);
    }
    output::show(&table)?;
    Ok(Exit::Ok)
}

/// Prints one semaphore, or the status of tasks in it.
pub fn one(args: &ShowArgs) -> anyhow::Result<Exit> {
    let key = key(&args.key)?;
    if !args.tasks.is_empty() {
        let tasks = args.tasks.iter().copied().map(TaskId).collect();
        let SemaphoreReply::MemberInfos(found) =
            execute(&args.server.connect, SemaphoreCommand::Peek { key, tasks })?
        else {
            return Err(unexpected_reply("semaphore"));
        };
        print_members(&found, args.server.json)?;
        let all = found.len() == args.tasks.len();
        return Ok(if all { Exit::Ok } else { Exit::NotFound });
    }
    for info in infos(&args.server.connect, SemaphoreCommand::List { key: Some(key) })? {
        print(&info, args.server.json)?;
    }
    Ok(Exit::Ok)
}

/// Prints a semaphore.
pub fn print(info: &SemaphoreInfo, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(&SemaphoreAnswer::new(info));
    }
    let options = &info.options;
    let seconds = |span: Span| format!("{}s", span.as_secs_f64());
    let optional = |span: Option<Span>| span.map_or_else(|| "none".to_owned(), seconds);
    let word = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
    let lines = [
        ("semaphore", output::printable(info.key.as_str())),
        ("active", options.active.to_string()),
        ("try-release", options.tail().to_string()),
        ("granted", info.acquired.to_string()),
        ("revoking", info.revoking.to_string()),
        ("waiting", info.waiting.to_string()),
        ("delayed", info.delayed.to_string()),
        ("events", format!("{} not acknowledged", info.events)),
        ("margin", options.margin.value().to_string()),
        ("min-hold", seconds(options.min_hold)),
        ("cool-down", seconds(options.cool_down)),
        ("max-revoking", options.revoking_limit().to_string()),
        ("revoke-grace", seconds(options.revoke_grace)),
        ("force", word(options.force)),
        ("lease", optional(options.lease)),
        ("ack-timeout", optional(options.ack_timeout)),
        ("shed", word(options.shed)),
        ("drop-expired", word(options.drop_expired)),
    ];
    let text: String =
        lines.into_iter().map(|(name, value)| format!("{name:<15} {value}\n")).collect();
    Ok(output::bytes(text.as_bytes())?)
}

/// Prints the status of tasks.
pub fn print_members(infos: &[MemberInfo], json: bool) -> anyhow::Result<()> {
    if json {
        return output::json_lines(infos.iter().map(MemberInfoAnswer::new));
    }
    for info in infos {
        let grant = info.grant.map_or_else(String::new, |grant| format!(" grant {grant}"));
        let (task, status) = (info.task, info.status.name());
        output::line(format!("{task} {status}{grant} priority {}", info.priority.value()))?;
    }
    Ok(())
}

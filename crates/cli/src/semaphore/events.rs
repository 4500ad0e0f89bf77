//! `semaphore events`: prints and acknowledges events.

use clap::Args;
use taskyard_core::{EventId, SemaphoreCommand, SemaphoreReply, Span};
use taskyard_wire::Exit;
use taskyard_wire::http::EventAnswer;

use super::{execute, key};
use crate::connect::{ServerLinesArgs, unexpected_reply};
use crate::output;
use crate::units;

/// The arguments of `semaphore events`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore events                      the pending events of all semaphores
  taskyard semaphore events yang --wait 1m --ack
  taskyard semaphore events --json

An event is delivered again until it is acknowledged: after 30 seconds, then after a minute, and
so on.")]
pub struct EventsArgs {
    /// Only events of this semaphore.
    key: Option<String>,
    /// Print at most this many.
    #[arg(long, value_name = "N", default_value_t = 100)]
    count: usize,
    /// How long to wait for the first event.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "0")]
    wait: Span,
    /// Acknowledge the events after printing them.
    #[arg(long)]
    ack: bool,
    #[command(flatten)]
    server: ServerLinesArgs,
}

/// Fetches events, prints them and, if asked, acknowledges them.
pub fn run(args: &EventsArgs) -> anyhow::Result<Exit> {
    let key = args.key.as_deref().map(key).transpose()?;
    let fetch = SemaphoreCommand::Events { key, count: args.count, wait: args.wait };
    let SemaphoreReply::Events(events) = execute(&args.server.connect, fetch)? else {
        return Err(unexpected_reply("events"));
    };
    if args.server.json {
        output::json_lines(events.iter().map(EventAnswer::new))?;
    } else {
        for event in &events {
            let tube = event.tube.as_ref().map_or_else(String::new, |tube| format!("tube {tube} "));
            output::line(format!(
                "{} {} {tube}task {} grant {} (event {})",
                event.semaphore,
                event.kind.name(),
                event.task,
                event.grant,
                event.id
            ))?;
        }
    }
    if args.ack && !events.is_empty() {
        let events: Vec<EventId> = events.iter().map(|event| event.id).collect();
        execute(&args.server.connect, SemaphoreCommand::Acknowledge { events })?;
    }
    Ok(if events.is_empty() { Exit::Nothing } else { Exit::Ok })
}

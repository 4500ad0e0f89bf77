//! Fetching events.

use clap::Args;
use taskyard_core::{EventId, SemaphoreCommand, SemaphoreReply, Span};
use taskyard_wire::Exit;
use taskyard_wire::http::EventAnswer;

use super::{ask, key};
use crate::connect::{ConnectArgs, misfit};
use crate::output;
use crate::units;

/// Which events to fetch.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore events                      those that are there
  taskyard semaphore events yang --wait 1m --ack
  taskyard semaphore events --json

An event comes again until it is acknowledged: after half a minute, then a minute, and so on.")]
pub struct EventsArgs {
    /// Of this semaphore only.
    key: Option<String>,
    /// At most how many.
    #[arg(long, value_name = "N", default_value_t = 100)]
    count: usize,
    /// How long to wait for the first.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "0")]
    wait: Span,
    /// Acknowledge them once they are printed.
    #[arg(long)]
    ack: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Fetches, prints and perhaps acknowledges.
pub fn run(args: &EventsArgs) -> anyhow::Result<Exit> {
    let key = args.key.as_deref().map(key).transpose()?;
    let fetch = SemaphoreCommand::Events { key, count: args.count, wait: args.wait };
    let SemaphoreReply::Events(events) = ask(&args.connect, fetch)? else {
        return Err(misfit("events"));
    };
    if args.json {
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
        ask(&args.connect, SemaphoreCommand::Acknowledge { events })?;
    }
    Ok(if events.is_empty() { Exit::Nothing } else { Exit::Ok })
}

//! `stats`: what the tubes have and what was done to them.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use taskyard::Http;
use taskyard_core::{Span, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::TubeAnswer;

use crate::connect::{ConnectArgs, block_on};
use crate::internal::InternalArgs;
use crate::{output, units};

/// What to show.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard stats                   all tubes; oldest is for how long a task has been ready
  taskyard stats mail --json       one tube, for a program
  taskyard stats --watch           again every second, with rates, until Ctrl-C
  taskyard stats --watch=5s")]
pub struct StatsArgs {
    /// The tube; all of them when absent.
    tube: Option<String>,
    #[command(flatten)]
    internal: InternalArgs,
    /// Print one JSON object a line for each tube.
    #[arg(long)]
    json: bool,
    /// Show it again and again until Ctrl-C, with rates.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1s")]
    watch: Option<Span>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// What was seen when.
struct Seen {
    at: Instant,
    tubes: Vec<TubeAnswer>,
    /// What becomes of acknowledged tasks, where a database's settings say it.
    durability: Option<String>,
}

/// Shows the numbers.
pub fn run(args: StatsArgs) -> anyhow::Result<Exit> {
    let http = args.connect.http()?;
    let tube = args.tube.as_deref().map(TubeName::new).transpose()?;
    block_on(async {
        let mut before = None;
        loop {
            let mut seen = see(&http, tube.as_ref(), args.json).await?;
            if tube.is_none() {
                args.internal.hide(&mut seen.tubes);
            }
            print(&args, &seen, before.as_ref())?;
            let Some(every) = args.watch else { return Ok(Exit::Ok) };
            let stop = tokio::signal::ctrl_c();
            // Faster than this nobody reads, and a zero would be a storm.
            let every = Duration::from(every).max(Duration::from_millis(100));
            if tokio::time::timeout(every, stop).await.is_ok() {
                return Ok(Exit::Ok);
            }
            before = Some(seen);
        }
    })
}

async fn see(http: &Http, tube: Option<&TubeName>, json: bool) -> anyhow::Result<Seen> {
    let durability = if tube.is_none() && !json { http.durability().await? } else { None };
    Ok(Seen { tubes: http.tubes(tube).await?, at: Instant::now(), durability })
}

fn print(args: &StatsArgs, seen: &Seen, before: Option<&Seen>) -> anyhow::Result<()> {
    if args.json {
        return output::json_lines(&seen.tubes);
    }
    if args.watch.is_some() && std::io::stdout().is_terminal() {
        // Clears the screen and goes to its corner.
        output::bytes(b"\x1b[2J\x1b[H")?;
    }
    if let Some(durability) = &seen.durability {
        output::line(format!("{durability}\n"))?;
    }
    if seen.tubes.is_empty() {
        output::line("no tubes yet; the first put makes one: taskyard put mail hello")?;
        return Ok(());
    }
    overview(args, seen, before)?;
    if args.tube.is_some() {
        seen.tubes.iter().try_for_each(calls)?;
    }
    Ok(())
}

/// A line for each tube.
fn overview(args: &StatsArgs, seen: &Seen, before: Option<&Seen>) -> anyhow::Result<()> {
    let mut header =
        vec!["tube", "kind", "ready", "taken", "delayed", "buried", "done", "waiting", "oldest"];
    if args.watch.is_some() {
        header.extend(["put/s", "take/s", "ack/s"]);
    }
    let mut table = output::table(&header);
    for tube in &seen.tubes {
        let tasks = &tube.tasks;
        let paused = if tube.paused { " (paused)" } else { "" };
        let mut row = vec![
            format!("{}{paused}", tube.name),
            taskyard_core::Kind::from(tube.kind).name().to_owned(),
        ];
        let counts = [tasks.ready, tasks.taken, tasks.delayed, tasks.buried, tasks.done];
        row.extend(counts.map(|count| count.to_string()));
        row.push(tube.consumers.to_string());
        row.push(tube.oldest_ready.map_or_else(|| "-".into(), units::age));
        if args.watch.is_some() {
            row.extend(rates(tube, seen, before));
        }
        table.add_row(row);
    }
    Ok(output::show(&table)?)
}

/// Puts, takes and acks a second since the last look.
fn rates(tube: &TubeAnswer, seen: &Seen, before: Option<&Seen>) -> [String; 3] {
    let old = before.and_then(|before| {
        let old = before.tubes.iter().find(|old| old.number == tube.number)?;
        Some((old, seen.at.duration_since(before.at).as_secs_f64()))
    });
    let Some((old, seconds)) = old else { return ["-", "-", "-"].map(String::from) };
    let rate = |new: u64, old: u64| format!("{:.0}", new.saturating_sub(old) as f64 / seconds);
    [
        rate(tube.calls.put, old.calls.put),
        rate(tube.calls.take, old.calls.take),
        rate(tube.calls.ack, old.calls.ack),
    ]
}

/// What was done to a tube since the store was opened.
fn calls(tube: &TubeAnswer) -> anyhow::Result<()> {
    let calls = &tube.calls;
    let mut table = output::table(&[
        "put", "take", "ack", "release", "bury", "kick", "touch", "delete", "ttl", "ttr", "delay",
    ]);
    let counts = [
        calls.put,
        calls.take,
        calls.ack,
        calls.release,
        calls.bury,
        calls.kick,
        calls.touch,
        calls.delete,
        calls.ttl,
        calls.ttr,
        calls.delay,
    ];
    table.add_row(counts.map(|count| count.to_string()));
    output::line("\nsince the server started:")?;
    Ok(output::show(&table)?)
}

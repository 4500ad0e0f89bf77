//! `stats`: shows the number of tasks and calls of each tube.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use taskyard::Http;
use taskyard_core::{Span, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::TubeAnswer;

use crate::connect::{ConnectArgs, block_on};
use crate::internal_tubes::InternalArgs;
use crate::{estimate, output, units};

/// The arguments of `stats`.
#[derive(Debug, Args)]
#[command(after_help = "\
OLDEST is how long the oldest task has been ready, DRAINS IN when all ready tasks will have started.

Examples:
  taskyard stats                   all tubes
  taskyard stats mail              one tube, and its calls since the server started
  taskyard stats mail --json       the same as JSON
  taskyard stats --watch           every second, with rates, until Ctrl-C
  taskyard stats --watch=5s")]
pub struct StatsArgs {
    /// The tube; all tubes if it is not given.
    tube: Option<String>,
    #[command(flatten)]
    internal: InternalArgs,
    /// Print one JSON object a line for each tube.
    #[arg(long)]
    json: bool,
    /// Repeat at this interval until Ctrl-C, with rates; 1s if no time is given.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1s")]
    watch: Option<Span>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The state of the tubes at one time.
struct Snapshot {
    at: Instant,
    tubes: Vec<TubeAnswer>,
    /// Whether acknowledged tasks are on disk, where the settings of a database determine it.
    durability: Option<String>,
}

/// Prints the numbers, repeatedly with `--watch`.
pub fn run(args: StatsArgs) -> anyhow::Result<Exit> {
    let http = args.connect.http()?;
    let tube = args.tube.as_deref().map(TubeName::new).transpose()?;
    block_on(async {
        let mut before = None;
        loop {
            let mut snapshot = query(&http, tube.as_ref(), args.json).await?;
            if tube.is_none() {
                args.internal.hide(&mut snapshot.tubes);
            }
            print(&args, &snapshot, before.as_ref())?;
            let Some(every) = args.watch else { return Ok(Exit::Ok) };
            let stop = tokio::signal::ctrl_c();
            // A shorter interval is unreadable, and zero would flood the server.
            let every = Duration::from(every).max(Duration::from_millis(100));
            if tokio::time::timeout(every, stop).await.is_ok() {
                return Ok(Exit::Ok);
            }
            before = Some(snapshot);
        }
    })
}

async fn query(http: &Http, tube: Option<&TubeName>, json: bool) -> anyhow::Result<Snapshot> {
    let durability = if tube.is_none() && !json { http.durability().await? } else { None };
    Ok(Snapshot { tubes: http.tubes_estimated(tube).await?, at: Instant::now(), durability })
}

fn print(args: &StatsArgs, snapshot: &Snapshot, before: Option<&Snapshot>) -> anyhow::Result<()> {
    if args.json {
        return output::json_lines(&snapshot.tubes);
    }
    if args.watch.is_some() && std::io::stdout().is_terminal() {
        // Clears the screen and moves the cursor to the top left.
        output::bytes(b"\x1b[2J\x1b[H")?;
    }
    if let Some(durability) = &snapshot.durability {
        output::line(format!("{durability}\n"))?;
    }
    if snapshot.tubes.is_empty() {
        output::line("no tubes yet; the first put creates one: taskyard put mail hello")?;
        return Ok(());
    }
    overview(args, snapshot, before)?;
    for tube in &snapshot.tubes {
        if let Some(counts) = &tube.estimates {
            output::line(format!("{}: {}", tube.name, estimate::held(counts)))?;
        }
    }
    if args.tube.is_some() {
        snapshot.tubes.iter().try_for_each(calls)?;
    }
    Ok(())
}

/// Prints a line for each tube.
fn overview(
    args: &StatsArgs,
    snapshot: &Snapshot,
    before: Option<&Snapshot>,
) -> anyhow::Result<()> {
    let mut header = vec![
        "tube",
        "kind",
        "ready",
        "taken",
        "delayed",
        "buried",
        "done",
        "kept",
        "waiting",
        "oldest",
        "drains in",
    ];
    if args.watch.is_some() {
        header.extend(["put/s", "take/s", "ack/s"]);
    }
    let mut table = output::table(&header);
    for tube in &snapshot.tubes {
        let tasks = &tube.tasks;
        let paused = if tube.paused { " (paused)" } else { "" };
        let mut row = vec![
            format!("{}{paused}", tube.name),
            taskyard_core::Kind::from(tube.kind).name().to_owned(),
        ];
        let counts =
            [tasks.ready, tasks.taken, tasks.delayed, tasks.buried, tasks.done, tasks.kept];
        row.extend(counts.map(|count| count.to_string()));
        row.push(tube.consumers.to_string());
        row.push(tube.oldest_ready.map_or_else(|| "-".into(), units::age));
        row.push(estimate::drain(tube));
        if args.watch.is_some() {
            row.extend(rates(tube, snapshot, before));
        }
        table.add_row(row);
    }
    Ok(output::show(&table)?)
}

/// Puts, takes and acks per second since the last snapshot.
fn rates(tube: &TubeAnswer, snapshot: &Snapshot, before: Option<&Snapshot>) -> [String; 3] {
    let old = before.and_then(|before| {
        let old = before.tubes.iter().find(|old| old.number == tube.number)?;
        Some((old, snapshot.at.duration_since(before.at).as_secs_f64()))
    });
    let Some((old, seconds)) = old else { return ["-", "-", "-"].map(String::from) };
    let rate = |new: u64, old: u64| format!("{:.0}", new.saturating_sub(old) as f64 / seconds);
    [
        rate(tube.calls.put, old.calls.put),
        rate(tube.calls.take, old.calls.take),
        rate(tube.calls.ack, old.calls.ack),
    ]
}

/// Prints the calls of a tube since the server started.
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

//! Tasks on Redis: Taskyard compared with other queues, on the same Redis.
//!
//! It is started for the benchmark, with the most common settings (`appendfsync everysec`). Taskyard uses the
//! public client, 16 clients that share one engine; the others are programs in the folder `bench`, which
//! `cargo xtask bench` installs with their packages. Then Taskyard alone on clusters.

mod cluster;
mod peers;
pub mod server;

use std::path::Path;

use anyhow::Result;

use super::Size;
use super::load::Measured;
use super::peers::{PeerResults, compare};
use super::queue_figures::{self, CLIENTS, QueueAmounts, QueueFigures};
use super::report::{Report, Row, Target};
use peers::{PEERS, RedisPeerFigures};
use server::RedisServer;

/// Tasks in one call where they come in batches.
const BATCH: usize = 100;

/// How much to do.
#[derive(Clone, Copy)]
struct RedisAmounts {
    /// For Taskyard.
    ours: QueueAmounts,
    /// How long a peer puts one by one.
    seconds: f64,
    /// How many tasks a peer puts in batches and works off.
    backlog: usize,
}

const FULL: RedisAmounts = RedisAmounts {
    ours: QueueAmounts { single: 200_000, batched: 500_000, batch: BATCH, starts: 1_000 },
    seconds: 3.0,
    backlog: 50_000,
};
const QUICK: RedisAmounts = RedisAmounts {
    ours: QueueAmounts { single: 30_000, batched: 100_000, batch: BATCH, starts: 200 },
    seconds: 1.0,
    backlog: 10_000,
};

/// Measures Taskyard and the others.
pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let Some(program) = server::program() else {
        eprintln!("  Redis is not measured: it is not installed; set TASKYARD_REDIS");
        return Ok(());
    };
    let server = RedisServer::start(&program, &folder.join("redis"))?;
    let amounts = if size.is_quick() { QUICK } else { FULL };
    let figures = queue_figures::measure(&server.url(), amounts.ours).await?;
    let mut results = Vec::new();
    for peer in PEERS {
        server.empty()?;
        let measured = peers::measure(peer, &server, amounts);
        if let Err(why) = &measured {
            eprintln!("  {} is not measured: {why:#}", peer.name);
        }
        results.push((peer, measured));
    }
    add_rows(report, &figures, &results);
    drop(server);
    cluster::measure(report, &program, folder, amounts).await
}

/// One figure of a peer, where it has such.
type PeerFigure = fn(&RedisPeerFigures) -> Option<f64>;

fn add_rows(
    report: &mut Report,
    figures: &QueueFigures,
    results: &PeerResults<'_, RedisPeerFigures>,
) {
    let QueueFigures { put, drain, put_batches, drain_batches, start } = figures;
    let rates: [(String, &Measured, f64, PeerFigure); 4] = [
        (format!("put, {CLIENTS} clients"), put, 30_000.0, |peer| Some(peer.put)),
        (format!("put, batches of {BATCH}"), put_batches, 100_000.0, |peer| peer.put_batches),
        (format!("drain, batches of {BATCH}"), drain_batches, 60_000.0, |peer| Some(peer.drain)),
        (format!("drain, {CLIENTS} workers"), drain, 18_000.0, |peer| Some(peer.drain)),
    ];
    for (what, measured, wanted, theirs) in rates {
        let note = compare(results, |peer| match theirs(peer) {
            Some(theirs) => format!("{theirs:.0}/s: {:.1} times", measured.rate() / theirs),
            None => "has no such call".into(),
        });
        report.add(Row {
            what: format!("Redis {what}"),
            figure: measured.rate(),
            unit: "tasks/s",
            target: Some(Target::AtLeast(wanted)),
            note: format!("{}; {note}", measured.note()),
        });
        measured.report_processor_time(report, &format!("Redis {what}"));
    }
    let millis = |quantile| start.value_at_quantile(quantile) as f64 / 1000.0;
    let note = compare(results, |theirs| format!("{:.2} ms", theirs.start.p50));
    report.add(Row {
        what: "Redis put to start, p50".into(),
        figure: millis(0.5),
        unit: "ms",
        target: Some(Target::AtMost(1.0)),
        note: format!(
            "{CLIENTS} idle workers; p99 {:.2} ms; {note}; {}",
            millis(0.99),
            server::SETTINGS_NOTE
        ),
    });
}

//! Tasks on Redis: Taskyard compared with other queues, on the same Redis.
//!
//! It is started for the benchmark, with the most common settings (`appendfsync everysec`). Taskyard uses the
//! public client, 16 clients that share one engine; the others are programs in the folder `bench`, which
//! `cargo xtask bench` installs with their packages.

mod peers;
pub mod server;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use taskyard::{Client, Embedded};

use super::Size;
use super::load::{self, Load, Measured, TUBE};
use super::peers::{PeerResults, compare};
use super::postgres::put_to_start;
use super::report::{Report, Row, Target};
use peers::{PEERS, RedisPeerFigures};
use server::RedisServer;

/// Concurrent clients, connections or workers.
const CLIENTS: usize = 16;
/// Tasks in one call where they come in batches.
const BATCH: usize = 100;

/// How much to do.
#[derive(Clone, Copy)]
struct RedisAmounts {
    /// Tasks one by one.
    single: usize,
    /// Tasks in batches.
    batched: usize,
    /// Tasks whose start is timed.
    starts: usize,
    /// How long a peer puts one by one.
    seconds: f64,
    /// How many tasks a peer puts in batches and works off.
    backlog: usize,
}

const FULL: RedisAmounts = RedisAmounts {
    single: 200_000,
    batched: 500_000,
    starts: 1_000,
    seconds: 3.0,
    backlog: 50_000,
};
const QUICK: RedisAmounts =
    RedisAmounts { single: 30_000, batched: 100_000, starts: 200, seconds: 1.0, backlog: 10_000 };

/// The figures of Taskyard.
struct RedisFigures {
    put: Measured,
    drain: Measured,
    put_batches: Measured,
    drain_batches: Measured,
    /// From a put to the start at an idle worker, in microseconds.
    start: Histogram<u64>,
}

/// Measures Taskyard and the others.
pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let Some(program) = server::program() else {
        eprintln!("  Redis is not measured: it is not installed; set TASKYARD_REDIS");
        return Ok(());
    };
    let server = RedisServer::start(&program, &folder.join("redis"))?;
    let amounts = if size.is_quick() { QUICK } else { FULL };
    let figures = ours(&server.url(), amounts).await?;
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
    Ok(())
}

async fn ours(url: &str, amounts: RedisAmounts) -> Result<RedisFigures> {
    let client = Client::open(url)?;
    warm_up(&client).await?;
    let one = Load { clients: CLIENTS, batch: 1, tasks: amounts.single };
    let put = load::put(&client, one).await.context("put one by one")?;
    let drain = load::take_and_ack(&client, one).await.context("drain one by one")?;
    let many = Load { clients: 4, batch: BATCH, tasks: amounts.batched };
    let put_batches = load::put(&client, many).await.context("put in batches")?;
    let drain_batches = load::take_and_ack(&client, many).await.context("drain in batches")?;
    let start = put_to_start(&client, amounts.starts).await.context("put to start")?;
    client.close().await?;
    Ok(RedisFigures { put, drain, put_batches, drain_batches, start })
}

/// Creates the tube by a first use, which is not measured.
async fn warm_up(client: &Client<Embedded>) -> Result<()> {
    client.put_tasks(TUBE, vec![load::task()?; BATCH], std::time::Duration::ZERO).await?;
    let tasks = client.take_many(TUBE, BATCH, std::time::Duration::ZERO).await?;
    ensure!(tasks.len() == BATCH, "{} tasks exist after {BATCH} puts", tasks.len());
    client.ack_many(&tasks).await?;
    Ok(())
}

/// One figure of a peer, where it has such.
type PeerFigure = fn(&RedisPeerFigures) -> Option<f64>;

fn add_rows(
    report: &mut Report,
    figures: &RedisFigures,
    results: &PeerResults<'_, RedisPeerFigures>,
) {
    let RedisFigures { put, drain, put_batches, drain_batches, start } = figures;
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

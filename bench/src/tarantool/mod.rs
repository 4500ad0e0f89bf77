//! Tasks on Tarantool: Taskyard compared with the figures of tarantool/queue on such a machine.
//!
//! Tarantool is started for the benchmark, with default settings (`wal_mode write`). Taskyard uses the public client, 64 clients
//! that share one engine. The queue module cannot be installed here, so its figures are from an earlier measurement, with 64
//! requests in flight on one connection.

pub mod server;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use taskyard::Client;

use super::Size;
use super::load::{self, Load, Measured, TUBE};
use super::queue_figures::warm_up;
use super::report::{Report, Row, Target};

/// Concurrent calls.
const CLIENTS: usize = 64;
/// Tasks in one call where they come in batches.
const BATCH: usize = 100;

/// What tarantool/queue did in a second: puts, takes, acks, takes with their acks.
const QUEUE: [f64; 4] = [98_000.0, 44_000.0, 40_000.0, 20_000.0];
const NAMES: [&str; 4] = ["put", "take", "ack", "take and ack"];

/// Measures tasks in batches, which must be twice as fast as tarantool/queue, and one by one.
pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let Some(server) = server::start(folder)? else { return Ok(()) };
    let client = load::open(&server.url()).await?;
    warm_up(&client, BATCH).await?;
    let tasks = if size.is_quick() { 50_000 } else { 500_000 };
    for (batch, tasks) in [(BATCH, tasks), (1, tasks / 5)] {
        let load = Load { clients: CLIENTS, batch, tasks };
        let figures = measure_four(&client, load).await?;
        for (place, measured) in figures.iter().enumerate() {
            tell(report, place, batch, measured);
        }
    }
    client.close().await?;
    Ok(())
}

async fn measure_four(client: &Client, load: Load) -> Result<[Measured; 4]> {
    let put = load::put(client, load).await.context("put")?;
    let (take, held) = load::take(client, load).await.context("take")?;
    let ack = load::ack(client, load, held).await.context("ack")?;
    let left = client.stats(TUBE).await?.tasks.total();
    ensure!(left == 0, "{left} tasks are left");
    load::put(client, load).await.context("put again")?;
    let pairs = load::take_and_ack(client, load).await.context("take and ack")?;
    Ok([put, take, ack, pairs])
}

fn tell(report: &mut Report, place: usize, batch: usize, measured: &Measured) {
    let (queue, name) = (QUEUE[place], NAMES[place]);
    let batches = if batch > 1 { format!(", batches of {batch}") } else { String::new() };
    let times = measured.rate() / queue;
    let what = format!("Tarantool {name}, {CLIENTS} in flight{batches}");
    measured.report_processor_time(report, &what);
    report.add(Row {
        what,
        figure: measured.rate(),
        unit: "tasks/s",
        target: (batch > 1).then_some(Target::AtLeast(2.0 * queue)),
        note: format!(
            "{}; tarantool/queue on such a machine {queue:.0}/s: {times:.1} times; {}",
            measured.note(),
            server::SETTINGS_NOTE
        ),
    });
}

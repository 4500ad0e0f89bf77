//! Durable puts, takes and acks in this process.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use taskyard::Client;

use super::disk;
use super::load::{self, Load, TUBE};
use super::report::{Report, Row, Target};
use super::{Size, store_in};

/// Tasks in one round, so that their payloads fit into memory; a larger backlog is measured
/// separately.
const ROUND: usize = 250_000;

pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let client = Client::open(&store_in(folder, "durable")).await?;
    let load = Load { clients: 256, batch: 1, tasks: size.tasks.min(ROUND) };
    let mut put = load::put(&client, load).await?;
    let mut pairs = load::take_and_ack(&client, load).await?;
    for _ in 1..size.tasks / load.tasks {
        put.add(&load::put(&client, load).await?)?;
        pairs.add(&load::take_and_ack(&client, load).await?)?;
    }
    put.report_processor_time(report, "durable put, 256 in flight");
    pairs.report_processor_time(report, "durable take + ack, 256 in flight");
    report.add(Row {
        what: "durable put, 256 in flight".into(),
        figure: put.rate(),
        unit: "tasks/s",
        target: Some(Target::AtLeast(250_000.0)),
        note: format!("checkpoints included: {}", put.note()),
    });
    report.add(Row {
        what: "durable take + ack, 256 in flight".into(),
        figure: pairs.rate(),
        unit: "pairs/s",
        target: Some(Target::AtLeast(200_000.0)),
        note: format!("checkpoints included: {}", pairs.note()),
    });
    one_by_one(report, folder, &client, size).await?;
    client.close().await?;
    Ok(())
}

/// One client, alternating with the measurement of the disk's own rate.
async fn one_by_one(report: &mut Report, folder: &Path, client: &Client, size: Size) -> Result<()> {
    const TURNS: u32 = 4;
    let (mut puts, mut seconds, mut syncs) = (0_u64, 0.0, 0.0);
    for _ in 0..TURNS {
        syncs += disk::sync_rate(folder, 4096, size.seconds / TURNS)? / f64::from(TURNS);
        let begin = Instant::now();
        while begin.elapsed() < size.seconds / TURNS {
            client.put_task(TUBE, load::task()?).await?;
            puts += 1;
        }
        seconds += begin.elapsed().as_secs_f64();
    }
    let rate = puts as f64 / seconds;
    let there = client.stats(TUBE).await?.tasks.ready;
    ensure!(there == puts, "{there} tasks exist after {puts} puts");
    report.add(Row {
        what: "durable put, one client".into(),
        figure: rate / syncs * 100.0,
        unit: "% of fdatasync",
        target: Some(Target::AtLeast(70.0)),
        note: format!("{rate:.0} puts/s alternating with {syncs:.0} syncs/s"),
    });
    Ok(())
}

//! Durable puts, takes and acks in this process.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use taskyard::{Client, Embedded};

use super::disk::SYNC;
use super::load::{self, Load, TUBE};
use super::report::{Report, Row, Target};
use super::{Size, store_in};

pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let client = Client::open(&store_in(folder, "durable"))?;
    let load = Load { clients: 256, batch: 1, tasks: size.tasks };
    let put = load::put(&client, load).await?;
    report.add(Row {
        what: "durable put, 256 in flight".into(),
        figure: put.rate,
        unit: "tasks/s",
        target: Some(Target::AtLeast(250_000.0)),
        note: format!("checkpoints included: {}", put.note()),
    });
    let pairs = load::take_and_ack(&client, load).await?;
    report.add(Row {
        what: "durable take + ack, 256 in flight".into(),
        figure: pairs.rate,
        unit: "pairs/s",
        target: Some(Target::AtLeast(200_000.0)),
        note: format!("checkpoints included: {}", pairs.note()),
    });
    one_by_one(report, &client, size).await?;
    client.close().await?;
    Ok(())
}

async fn one_by_one(report: &mut Report, client: &Client<Embedded>, size: Size) -> Result<()> {
    let begin = Instant::now();
    let mut puts = 0_u64;
    while begin.elapsed() < size.seconds {
        client.put_task(TUBE, load::task()?).await?;
        puts += 1;
    }
    let rate = puts as f64 / begin.elapsed().as_secs_f64();
    let there = client.stats(TUBE).await?.tasks.ready;
    ensure!(there == puts, "{there} tasks are there after {puts} puts");
    let syncs = report.figure(SYNC).unwrap_or(f64::NAN);
    report.add(Row {
        what: "durable put, one client".into(),
        figure: rate / syncs * 100.0,
        unit: "% of fdatasync",
        target: Some(Target::AtLeast(70.0)),
        note: format!("{rate:.0} puts/s beside {syncs:.0} syncs/s"),
    });
    Ok(())
}

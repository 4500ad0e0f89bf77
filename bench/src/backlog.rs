//! A backlog three times as large as the memory it may use.

use std::path::Path;

use anyhow::Result;
use taskyard::{Client, OpenOptions};

use super::load::{self, Load};
use super::report::{Report, Row, Target};
use super::{Size, store_in};

/// The memory of a benchmark task with its payload.
const TASK_BYTES: usize = 128;

pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let memory_bytes = size.tasks * TASK_BYTES / 3;
    let options = OpenOptions { memory_bytes, ..OpenOptions::default() };
    let client = Client::open_with(&store_in(folder, "backlog"), &options).await?;
    let load = Load { clients: 16, batch: 1_000, tasks: size.tasks };
    load::put(&client, load).await?;
    let pairs =
        load::take_and_ack(&client, Load { clients: 256, batch: 1, tasks: size.tasks }).await?;
    client.close().await?;
    report.add(Row {
        what: "drain of a backlog 3x the memory budget".into(),
        figure: pairs.rate(),
        unit: "tasks/s",
        target: Some(Target::AtLeast(60_000.0)),
        note: format!("256 in flight, budget {} MB: {}", memory_bytes >> 20, pairs.note()),
    });
    Ok(())
}

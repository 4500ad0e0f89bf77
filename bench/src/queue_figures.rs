//! Measures Taskyard on a database: puts and drains one by one and in batches, and the time from a put to its start.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use taskyard::Client;
use tokio::task::JoinSet;

use super::load::{self, Load, Measured, TUBE};

/// Concurrent clients, connections or workers.
pub const CLIENTS: usize = 16;
/// Clients that put or drain in batches.
const BATCH_CLIENTS: usize = 4;

/// How much to do.
#[derive(Clone, Copy)]
pub struct QueueAmounts {
    /// Tasks one by one.
    pub single: usize,
    /// Tasks in batches.
    pub batched: usize,
    /// Tasks in one call where they come in batches.
    pub batch: usize,
    /// Tasks whose start is timed.
    pub starts: usize,
}

/// The five measurements of every queue.
pub struct QueueFigures {
    /// Puts one by one, tasks a second.
    pub put: Measured,
    /// Puts in batches.
    pub put_batches: Measured,
    /// Takes and acks in batches.
    pub drain_batches: Measured,
    /// Takes and acks one by one.
    pub drain: Measured,
    /// From a put to the start at an idle worker, in microseconds.
    pub start: Histogram<u64>,
}

/// Runs all five in an empty database.
pub async fn measure(url: &str, amounts: QueueAmounts) -> Result<QueueFigures> {
    let client = load::open(url).await?;
    warm_up(&client, amounts.batch).await?;
    let one = Load { clients: CLIENTS, batch: 1, tasks: amounts.single };
    let put = load::put(&client, one).await.context("put one by one")?;
    let drain = load::take_and_ack(&client, one).await.context("drain one by one")?;
    let many = Load { clients: BATCH_CLIENTS, batch: amounts.batch, tasks: amounts.batched };
    let put_batches = load::put(&client, many).await.context("put in batches")?;
    let drain_batches = load::take_and_ack(&client, many).await.context("drain in batches")?;
    let start = put_to_start(&client, amounts.starts).await.context("put to start")?;
    client.close().await?;
    Ok(QueueFigures { put, put_batches, drain_batches, drain, start })
}

/// Creates the tube and prepares the calls by a first use, of one task and of a batch, which is not measured.
pub async fn warm_up(client: &Client, batch: usize) -> Result<()> {
    for batch in [1, batch] {
        client.put_tasks(TUBE, vec![load::task()?; batch], Duration::ZERO).await?;
        let tasks = load::take_unnamed(client, batch).await?;
        ensure!(tasks.len() == batch, "{} tasks exist after {batch} puts", tasks.len());
        client.ack_many(&tasks).await?;
    }
    Ok(())
}

/// Puts one task after the other while all workers wait; a task is started when its worker has it.
async fn put_to_start(client: &Client, starts: usize) -> Result<Histogram<u64>> {
    let (started, mut starting) = tokio::sync::mpsc::unbounded_channel();
    let mut workers = JoinSet::new();
    for _ in 0..CLIENTS {
        let (client, started) = (client.clone(), started.clone());
        workers.spawn(async move {
            loop {
                let Some(task) = client.take(TUBE, Duration::from_secs(60)).await? else {
                    continue;
                };
                let now = Instant::now();
                client.ack(&task).await?;
                if started.send(now).is_err() {
                    return Ok::<(), anyhow::Error>(());
                }
            }
        });
    }
    let mut latency = Histogram::new(3)?;
    for _ in 0..starts {
        let begin = Instant::now();
        client.put_task(TUBE, load::task()?).await?;
        let start = starting.recv().await.context("a worker failed")?;
        latency.record(start.duration_since(begin).as_micros() as u64)?;
    }
    workers.shutdown().await;
    Ok(latency)
}

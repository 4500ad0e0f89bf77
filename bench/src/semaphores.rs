//! Measures semaphores: calls a second, the cost of many waiters and many semaphores, and the delay until a free grant is used.

mod poll;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use taskyard::{Client, EnqueueItem, EventKind, GrantFinish, GrantItem, TaskId};
use tokio::task::JoinSet;

use super::report::{Report, Row, Target};
use super::{Size, store_in};

/// Concurrent callers.
const CALLERS: usize = 64;
/// Most entries in one call while a queue is filled.
const FILL: u64 = 10_000;

/// Measures the embedded store and, if there is one, PostgreSQL.
pub async fn measure(
    report: &mut Report,
    folder: &Path,
    size: Size,
    postgres: Option<&str>,
) -> Result<()> {
    let url = store_in(folder, "semaphores");
    measure_on(report, "SQLite", &url, size).await?;
    if let Some(url) = postgres {
        measure_on(report, "PostgreSQL", url, size).await?;
        if let Some(programs) = super::postgres::programs() {
            poll::measure(report, &programs.join("psql"), url)?;
        }
    }
    Ok(())
}

async fn measure_on(report: &mut Report, store: &str, url: &str, size: Size) -> Result<()> {
    let client = Arc::new(Client::open(url).await?);
    // A database may have semaphores of an earlier run.
    let run = format!("bench {}", std::process::id());
    let spread = rate(&client, &names(&run, "spread", 1000), 1, size).await?;
    report.add(Row {
        what: format!("semaphores on {store}, 1,000 of them"),
        figure: spread,
        unit: "calls/s",
        target: Some(Target::AtLeast(8_000.0)),
        note: format!("enqueue and release, {CALLERS} callers"),
    });
    let one = names(&run, "hot", 1);
    let hot = rate(&client, &one, 16, size).await? * 16.0;
    report.add(Row {
        what: format!("one hot semaphore on {store}, batches of 16"),
        figure: hot,
        unit: "tasks/s",
        target: Some(Target::AtLeast(6_000.0)),
        note: format!("enqueue and release, {CALLERS} callers"),
    });
    let single = rate(&client, &one, 1, size).await?;
    let many = rate(&client, &names(&run, "many", 10_000), 1, size).await?;
    report.add(Row {
        what: format!("1 semaphore against 10,000 on {store}, per call"),
        figure: single / many,
        unit: "times",
        target: Some(Target::AtMost(1.3)),
        note: format!("{single:.0} against {many:.0} calls/s"),
    });
    line(report, store, &client, &run, size).await?;
    latency(report, store, &client, &run, size).await?;
    client.close().await?;
    Ok(())
}

fn names(run: &str, name: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{run} {name} {number}")).collect()
}

/// Calls a second of many callers: each enqueues some tasks and releases them.
async fn rate(client: &Arc<Client>, names: &[String], batch: u64, size: Size) -> Result<f64> {
    make(client, names).await?;
    let (calls, names) = (Arc::new(AtomicU64::new(0)), Arc::new(names.to_vec()));
    let mut callers = JoinSet::new();
    let (begin, seconds) = (Instant::now(), size.seconds);
    for caller in 0..CALLERS {
        let (client, calls, names) = (client.clone(), calls.clone(), names.clone());
        callers.spawn(async move {
            let mut place = caller;
            while begin.elapsed() < seconds {
                let semaphore = client.semaphores().named(&names[place % names.len()])?;
                let first = (caller as u64) << 32;
                let entries: Vec<EnqueueItem> = (first..first + batch)
                    .map(|task| EnqueueItem { task: TaskId(task), priority: (task % 7) as f64 })
                    .collect();
                semaphore.enqueue_many(&entries).await?;
                let finish = GrantFinish::Release;
                let items: Vec<GrantItem> = entries
                    .iter()
                    .map(|wish| GrantItem { task: wish.task, grant: None, finish })
                    .collect();
                semaphore.finish_many(&items).await?;
                calls.fetch_add(2, Ordering::Relaxed);
                place += CALLERS + 1;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.context("a caller of the benchmark failed")??;
    }
    Ok(calls.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64())
}

/// Creates the semaphores, many at a time.
async fn make(client: &Arc<Client>, names: &[String]) -> Result<()> {
    let mut makers = JoinSet::new();
    for part in names.chunks(names.len().div_ceil(CALLERS)) {
        let (client, part) = (client.clone(), part.to_vec());
        makers.spawn(async move {
            for name in part {
                client.semaphores().update(&name, 1000, 900).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = makers.join_next().await {
        ended.context("cannot create a semaphore")??;
    }
    Ok(())
}

/// The cost of a call behind a short and behind a long queue, one caller.
async fn line(
    report: &mut Report,
    store: &str,
    client: &Client,
    run: &str,
    size: Size,
) -> Result<()> {
    let long = size.tasks as u64;
    let (short_name, long_name) = (format!("{run} short"), format!("{run} long"));
    fill(client, &short_name, 1000).await?;
    fill(client, &long_name, long).await?;
    // Alternating, so that a slow moment of the machine affects both.
    let (mut short, mut behind) = (0, 0);
    for _ in 0..4 {
        short += pairs(client, &short_name, size.seconds / 4).await?;
        behind += pairs(client, &long_name, size.seconds / 4).await?;
    }
    report.add(Row {
        what: format!("{long} waiters against 1,000 on {store}, per call"),
        figure: short as f64 / behind.max(1) as f64,
        unit: "times",
        target: Some(Target::AtMost(1.5)),
        note: format!("{short} against {behind} pairs in the same time, one caller"),
    });
    Ok(())
}

async fn fill(client: &Client, name: &str, count: u64) -> Result<()> {
    client.semaphores().update(name, 10, 0).await?;
    let semaphore = client.semaphores().named(name)?;
    for first in (0..count).step_by(FILL as usize) {
        let tasks = first..(first + FILL).min(count);
        let wish = |task| EnqueueItem { task: TaskId(task), priority: (task % 1000) as f64 };
        semaphore.enqueue_many(&tasks.map(wish).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

/// How often a caller can enqueue and release a task in this time.
async fn pairs(client: &Client, name: &str, time: Duration) -> Result<u64> {
    let semaphore = client.semaphores().named(name)?;
    let (begin, task) = (Instant::now(), TaskId(1 << 40));
    let mut pairs = 0;
    while begin.elapsed() < time {
        semaphore.enqueue(task, 500.0).await?;
        semaphore.release(task, None).await?;
        pairs += 1;
    }
    Ok(pairs)
}

/// From the release that frees a grant until the next holder receives it.
async fn latency(
    report: &mut Report,
    store: &str,
    client: &Client,
    run: &str,
    size: Size,
) -> Result<()> {
    let name = format!("{run} latency");
    client.semaphores().update(&name, 1, 0).await?;
    let semaphore = client.semaphores().named(&name)?;
    let mut events = semaphore.events();
    let mut latency = Histogram::<u64>::new(3)?;
    semaphore.enqueue(TaskId(0), 1.0).await?;
    let mut holder = events.next().await?;
    let begin = Instant::now();
    let mut next = 1;
    while begin.elapsed() < size.seconds {
        semaphore.acknowledge(&[holder.id]).await?;
        semaphore.enqueue(TaskId(next), 1.0).await?;
        next += 1;
        let freed = Instant::now();
        let (released, heard) =
            tokio::join!(semaphore.release(holder.task, Some(holder.grant)), events.next());
        released?;
        holder = heard?;
        anyhow::ensure!(holder.kind == EventKind::Acquired, "got {:?}", holder.kind);
        latency.record(freed.elapsed().as_micros() as u64)?;
    }
    let millis = |quantile: f64| latency.value_at_quantile(quantile) as f64 / 1000.0;
    report.add(Row {
        what: format!("from a release to the next grant on {store}, p50"),
        figure: millis(0.5),
        unit: "ms",
        target: Some(Target::AtMost(20.0)),
        note: format!("p99 {:.1} ms", millis(0.99)),
    });
    Ok(())
}

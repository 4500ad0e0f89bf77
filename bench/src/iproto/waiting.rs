//! Measures pings beside thousands of waiting takes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use taskyard::Iproto;
use tokio::task::JoinSet;

use super::super::Size;
use super::super::report::{Report, Row, Target};
use super::connect;
use super::load::{Tube, take_args};

const CONNECTIONS: usize = 100;
const TAKES: usize = 100;

pub async fn measure(report: &mut Report, address: &str, size: Size) -> Result<()> {
    let queue = connect(address)?;
    let tube = Tube::create(&queue, "parked", "fifottl").await?;
    let alone = pings(&queue, size.seconds / 4).await?;
    let mut waiting = JoinSet::new();
    let mut queues = Vec::new();
    for _ in 0..CONNECTIONS {
        let queue = connect(address)?;
        queue.ping().await?;
        for _ in 0..TAKES {
            let (queue, function) = (queue.clone(), tube.take.clone());
            waiting.spawn(async move { queue.call(&function, &take_args(100)).await });
        }
        queues.push(queue);
    }
    tokio::task::yield_now().await;
    for queue in &queues {
        // Answered after the takes of this connection were read.
        queue.ping().await?;
    }
    let crowded = pings(&queue, size.seconds / 4).await?;
    waiting.abort_all();
    while waiting.join_next().await.is_some() {}
    drop(queues);
    report.add(Row {
        what: "iproto PING beside 10,000 waiting takes, p99 more by".into(),
        figure: (crowded.1 - alone.1).max(0.0),
        unit: "ms",
        target: Some(Target::AtMost(1.0)),
        note: format!(
            "{CONNECTIONS} connections; p50 {:.3} and {:.3} ms, p99 {:.3} and {:.3} ms",
            alone.0, crowded.0, alone.1, crowded.1
        ),
    });
    Ok(())
}

/// How long a ping takes, in milliseconds: p50 and p99.
async fn pings(queue: &Iproto, time: Duration) -> Result<(f64, f64)> {
    let mut latency = Histogram::<u64>::new(3)?;
    let end = Instant::now() + time;
    while Instant::now() < end {
        let begin = Instant::now();
        queue.ping().await.context("no ping")?;
        latency.record(begin.elapsed().as_nanos() as u64)?;
    }
    ensure!(!latency.is_empty(), "no ping was answered");
    let millis = |quantile| latency.value_at_quantile(quantile) as f64 / 1e6;
    Ok((millis(0.5), millis(0.99)))
}

//! Connections that send one request after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use taskyard::Iproto;
use tokio::task::JoinSet;

use super::connect;
use super::load::{Tube, ack_args, id_of, put_args, take_args};

/// Puts a second of this many connections.
pub async fn puts(address: &str, connections: usize, time: Duration) -> Result<f64> {
    let name = format!("puts{connections}");
    run(address, &name, connections, time, false).await
}

/// Puts, each followed by a take and an ack, a second.
pub async fn cycles(address: &str, connections: usize, time: Duration) -> Result<f64> {
    let name = format!("cycles{connections}");
    run(address, &name, connections, time, true).await
}

async fn run(
    address: &str,
    name: &str,
    connections: usize,
    time: Duration,
    whole: bool,
) -> Result<f64> {
    let queue = connect(address)?;
    let tube = Arc::new(Tube::create(&queue, name, "fifottl").await?);
    let mut running = JoinSet::new();
    let begin = Instant::now();
    for _ in 0..connections {
        running.spawn(one(connect(address)?, tube.clone(), begin + time, whole));
    }
    let mut done = 0;
    while let Some(one) = running.join_next().await {
        done += one.context("the load failed")??;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let left = tube.total(&queue).await?;
    ensure!(left == if whole { 0 } else { done }, "{left} tasks are left of {done}");
    Ok(done as f64 / seconds)
}

async fn one(queue: Iproto, tube: Arc<Tube>, end: Instant, whole: bool) -> Result<u64> {
    let put = put_args();
    let mut done = 0;
    while Instant::now() < end {
        queue.call(&tube.put, &put).await?;
        if whole {
            let id = id_of(&queue.call(&tube.take, &take_args(1)).await?)?;
            queue.call(&tube.ack, &ack_args(id)).await?;
        }
        done += 1;
    }
    Ok(done)
}

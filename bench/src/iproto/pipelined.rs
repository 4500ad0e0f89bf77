//! One connection with 64 requests in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use taskyard::Iproto;
use tokio::task::JoinSet;

use super::super::Size;
use super::connect;
use super::load::{Tube, ack_args, call_all, put_args, take_args};

/// Concurrent groups of requests, and requests in each.
const LANES: usize = 4;
const GROUP: usize = 16;
/// Tasks in one round.
const ROUND: usize = 200_000;

/// Puts, takes and acks a second.
pub async fn measure(address: &str, size: Size) -> Result<[f64; 3]> {
    let queue = connect(address)?;
    let tube = Arc::new(Tube::create(&queue, "window", "fifottl").await?);
    let rounds = (size.tasks / ROUND).max(1);
    let mut seconds = [0.0; 3];
    for _ in 0..rounds {
        seconds[0] += phase(&queue, &tube, Phase::Put).await?.0;
        ensure!(tube.total(&queue).await? == ROUND as u64, "some tasks are missing");
        let (taking, ids) = phase(&queue, &tube, Phase::Take).await?;
        seconds[1] += taking;
        seconds[2] += phase(&queue, &tube, Phase::Ack(ids.into())).await?.0;
        ensure!(tube.total(&queue).await? == 0, "some tasks are left");
    }
    Ok(seconds.map(|seconds| (rounds * ROUND) as f64 / seconds))
}

#[derive(Clone)]
enum Phase {
    Put,
    Take,
    Ack(Arc<[u64]>),
}

/// Runs one verb for a round of tasks: how long it took, and which tasks they were.
async fn phase(queue: &Iproto, tube: &Arc<Tube>, phase: Phase) -> Result<(f64, Vec<u64>)> {
    let claimed = Arc::new(AtomicUsize::new(0));
    let mut lanes = JoinSet::new();
    let begin = Instant::now();
    for _ in 0..LANES {
        lanes.spawn(lane(queue.clone(), tube.clone(), phase.clone(), claimed.clone()));
    }
    let mut ids = Vec::with_capacity(ROUND);
    while let Some(lane) = lanes.join_next().await {
        ids.extend(lane.context("the load failed")??);
    }
    let seconds = begin.elapsed().as_secs_f64();
    ids.sort_unstable();
    ids.dedup();
    ensure!(ids.len() == ROUND, "{} tasks instead of {ROUND}", ids.len());
    Ok((seconds, ids))
}

async fn lane(
    queue: Iproto,
    tube: Arc<Tube>,
    phase: Phase,
    claimed: Arc<AtomicUsize>,
) -> Result<Vec<u64>> {
    let (put, take) = (put_args(), take_args(0));
    let mut done = Vec::new();
    loop {
        let first = claimed.fetch_add(GROUP, Ordering::Relaxed);
        if first >= ROUND {
            return Ok(done);
        }
        let ids = match &phase {
            Phase::Put => call_all(&queue, &tube.put, &[put.as_slice(); GROUP]).await?,
            Phase::Take => call_all(&queue, &tube.take, &[take.as_slice(); GROUP]).await?,
            Phase::Ack(ids) => {
                let group = &ids[first..(first + GROUP).min(ids.len())];
                let args: Vec<Vec<u8>> = group.iter().map(|id| ack_args(*id)).collect();
                let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
                call_all(&queue, &tube.ack, &args).await?
            }
        };
        done.extend(ids);
    }
}

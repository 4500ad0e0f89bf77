//! A hundred tasks with one call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use taskyard::Iproto;
use tokio::task::JoinSet;

use super::super::Size;
use super::super::report::{Report, Row, Target};
use super::connect;
use super::load::{Tube, payload, write_uint};

/// Connections, each sending one call after the other, and tasks in one call.
const CONNECTIONS: usize = 8;
const BATCH: usize = 100;
/// Tasks in one round.
const ROUND: usize = 200_000;

pub async fn measure(report: &mut Report, address: &str, size: Size) -> Result<()> {
    let queue = connect(address)?;
    let tube = Arc::new(Tube::create(&queue, "batches", "fifottl").await?);
    let rounds = (size.tasks / ROUND).max(1);
    let (mut putting, mut taking) = (0.0, 0.0);
    for _ in 0..rounds {
        putting += phase(address, &tube, true).await?;
        ensure!(tube.total(&queue).await? == ROUND as u64, "some tasks are missing");
        taking += phase(address, &tube, false).await?;
        ensure!(tube.total(&queue).await? == 0, "some tasks are left");
    }
    let tasks = (rounds * ROUND) as f64;
    report.add(Row {
        what: "iproto put_many of 100".into(),
        figure: tasks / putting,
        unit: "tasks/s",
        target: Some(Target::AtLeast(400_000.0)),
        note: format!("durable, {CONNECTIONS} connections"),
    });
    report.add(Row {
        what: "iproto take_many + ack_many of 100".into(),
        figure: tasks / taking,
        unit: "tasks/s",
        target: Some(Target::AtLeast(250_000.0)),
        note: format!("durable, {CONNECTIONS} connections"),
    });
    Ok(())
}

async fn phase(address: &str, tube: &Arc<Tube>, put: bool) -> Result<f64> {
    let claimed = Arc::new(AtomicUsize::new(0));
    let mut running = JoinSet::new();
    let queues: Vec<Iproto> = (0..CONNECTIONS).map(|_| connect(address)).collect::<Result<_>>()?;
    for queue in &queues {
        queue.ping().await?;
    }
    let begin = Instant::now();
    for queue in queues {
        let (tube, claimed) = (tube.clone(), claimed.clone());
        running.spawn(async move {
            while claimed.fetch_add(BATCH, Ordering::Relaxed) < ROUND {
                if put {
                    put_batch(&queue, &tube).await?
                } else {
                    take_batch(&queue, &tube).await?
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(one) = running.join_next().await {
        one.context("the load failed")??;
    }
    Ok(begin.elapsed().as_secs_f64())
}

async fn put_batch(queue: &Iproto, tube: &Tube) -> Result<()> {
    let mut args = vec![0x91, 0xdc, 0, BATCH as u8];
    let payload = payload();
    for _ in 0..BATCH {
        args.push(0x91);
        args.extend_from_slice(&payload);
    }
    let put = ids_of(&queue.call(&tube.put_many, &args).await?)?;
    ensure!(put.len() == BATCH, "{} tasks were put", put.len());
    Ok(())
}

async fn take_batch(queue: &Iproto, tube: &Tube) -> Result<()> {
    let taken = ids_of(&queue.call(&tube.take_many, &[0x92, BATCH as u8, 0]).await?)?;
    ensure!(taken.len() == BATCH, "{} tasks were taken", taken.len());
    ack_all(queue, tube, &taken).await
}

/// Acks these tasks with one call.
pub async fn ack_all(queue: &Iproto, tube: &Tube, ids: &[u64]) -> Result<()> {
    let mut args = vec![0x91];
    rmp::encode::write_array_len(&mut args, ids.len() as u32)?;
    ids.iter().for_each(|id| write_uint(&mut args, *id));
    let acked = ids_of(&queue.call(&tube.ack_many, &args).await?)?;
    ensure!(acked.len() == ids.len(), "{} tasks of {} were acked", acked.len(), ids.len());
    Ok(())
}

/// The ids in a list of tasks that carry what [`payload`] makes.
pub fn ids_of(results: &[u8]) -> Result<Vec<u64>> {
    let mut rest = results;
    ensure!(rmp::decode::read_array_len(&mut rest)? == 1, "not one list");
    let count = rmp::decode::read_array_len(&mut rest)?;
    let mut ids = Vec::with_capacity(count as usize);
    let data = payload().len();
    for _ in 0..count {
        ensure!(rmp::decode::read_array_len(&mut rest)? == 3, "not a task");
        ids.push(rmp::decode::read_int(&mut rest)?);
        // One letter for the state, then the data.
        rest = rest.get(2 + data..).context("a task is cut short")?;
    }
    Ok(ids)
}

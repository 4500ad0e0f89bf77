//! Few sub-queues with many tasks each, all but one of each busy: where the original scans.

use std::time::Instant;

use anyhow::{Result, ensure};
use taskyard::Iproto;

use super::super::Size;
use super::super::report::{Report, Row};
use super::batches::{ack_all, ids_of};
use super::connect;
use super::load::{Tube, payload, write_uint};

/// Sub-queues.
const KEYS: usize = 10;
/// Tasks put with one call.
const BATCH: usize = 1000;

/// Both tubes are drained alternately, in this many parts, so that both see the same minute of the machine.
const PARTS: usize = 20;

pub async fn measure(report: &mut Report, address: &str, size: Size) -> Result<()> {
    let queue = connect(address)?;
    let tasks = size.tasks + size.tasks / 2;
    let tubes = [
        fill(&queue, "subqueues", "utubettl", tasks).await?,
        fill(&queue, "plain", "fifottl", tasks).await?,
    ];
    let mut seconds = [0.0; 2];
    for part in 0..PARTS {
        let end = tasks * (PARTS - part - 1) / PARTS;
        for (tube, seconds) in tubes.iter().zip(&mut seconds) {
            *seconds += drain(&queue, tube, end).await?;
        }
    }
    let [busy, plain] = seconds.map(|seconds| tasks as f64 / seconds);
    report.add(Row {
        what: format!("iproto drain of {KEYS} sub-queues with {} tasks each", tasks / KEYS),
        figure: busy,
        unit: "tasks/s",
        target: None,
        note: format!(
            "durable, {KEYS} at a time; without sub-queues {plain:.0}/s: {:.2} times",
            busy / plain
        ),
    });
    Ok(())
}

/// Creates a tube with this many tasks.
async fn fill(queue: &Iproto, name: &str, kind: &str, tasks: usize) -> Result<Tube> {
    let tube = Tube::create(queue, name, kind).await?;
    let payload = payload();
    for first in (0..tasks).step_by(BATCH) {
        let mut args = vec![0x91];
        let count = BATCH.min(tasks - first);
        rmp::encode::write_array_len(&mut args, count as u32)?;
        for number in first..first + count {
            args.push(0x92);
            args.extend_from_slice(&payload);
            rmp::encode::write_map_len(&mut args, 1)?;
            rmp::encode::write_str(&mut args, "utube")?;
            write_uint(&mut args, (number % KEYS) as u64);
        }
        queue.call(&tube.put_many, &args).await?;
    }
    ensure!(tube.total(queue).await? == tasks as u64, "some tasks are missing");
    Ok(tube)
}

/// Drains a tube until `end` tasks are left, as many at a time as there are sub-queues: how long it took.
async fn drain(queue: &Iproto, tube: &Tube, end: usize) -> Result<f64> {
    let mut left = tube.total(queue).await? as usize;
    let begin = Instant::now();
    while left > end {
        let taken = ids_of(&queue.call(&tube.take_many, &[0x92, KEYS as u8, 0]).await?)?;
        ensure!(!taken.is_empty(), "{left} tasks are left and none can be taken");
        ack_all(queue, tube, &taken).await?;
        left -= taken.len();
    }
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(tube.total(queue).await? == left as u64, "tasks are missing");
    Ok(seconds)
}

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

pub async fn measure(report: &mut Report, address: &str, size: Size) -> Result<()> {
    let queue = connect(address)?;
    let tasks = size.tasks + size.tasks / 2;
    let busy = drain(&queue, "subqueues", "utubettl", tasks).await?;
    let plain = drain(&queue, "plain", "fifottl", size.tasks / 2).await?;
    report.add(Row {
        what: format!("iproto drain of {KEYS} sub-queues with {} tasks each", tasks / KEYS),
        figure: busy,
        unit: "tasks/s",
        target: None,
        note: format!("durable, {KEYS} at a time; without sub-queues {plain:.0}/s"),
    });
    Ok(())
}

/// Fills a tube and drains it, as many tasks at a time as there are sub-queues.
async fn drain(queue: &Iproto, name: &str, kind: &str, tasks: usize) -> Result<f64> {
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
    ensure!(tube.total(queue).await? == tasks as u64, "not all tasks are there");
    let begin = Instant::now();
    let mut left = tasks;
    while left > 0 {
        let taken = ids_of(&queue.call(&tube.take_many, &[0x92, KEYS as u8, 0]).await?)?;
        ensure!(!taken.is_empty(), "{left} tasks are left and none can be taken");
        ack_all(queue, &tube, &taken).await?;
        left -= taken.len();
    }
    let rate = tasks as f64 / begin.elapsed().as_secs_f64();
    ensure!(tube.total(queue).await? == 0, "some tasks are left");
    Ok(rate)
}

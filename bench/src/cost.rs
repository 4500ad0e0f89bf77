//! Measures the cost of a take in tubes of different sizes: it must not grow.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use taskyard::{Client, Finish, FinishItem, Holder, Kind, NewTask, Span, Task, TubeOptions};

use super::Size;
use super::load::{self, Load, TUBE};
use super::report::{Report, Row, Target};

/// Tasks in one call, so that the rules are measured and not the calls.
const BATCH: usize = 100;
/// Calls in one measurement.
const CALLS: usize = 2_000;

pub async fn measure(report: &mut Report, size: Size) -> Result<()> {
    let small = by_size(1_000).await?;
    let large = by_size(size.tasks).await?;
    report.add(Row {
        what: format!("take, {} tasks against 1,000", size.tasks),
        figure: large / small,
        unit: "times the cost",
        target: Some(Target::AtMost(1.5)),
        note: format!("{:.0} ns against {:.0} ns a take + release", large * 1e9, small * 1e9),
    });
    let idle = by_busy_subqueues(0).await?;
    let busy = by_busy_subqueues(100_000).await?;
    report.add(Row {
        what: "take, 100,000 busy sub-queues against none".into(),
        figure: busy / idle,
        unit: "times the cost",
        target: Some(Target::AtMost(1.5)),
        note: format!("{:.0} ns against {:.0} ns a take + release", busy * 1e9, idle * 1e9),
    });
    Ok(())
}

/// Seconds for a take and a release in a tube of so many tasks.
async fn by_size(tasks: usize) -> Result<f64> {
    let client = Client::open("memory:").await?;
    load::put(&client, Load { clients: 4, batch: 1_000, tasks }).await?;
    let seconds = take_and_release(&client).await?;
    client.close().await?;
    Ok(seconds)
}

/// Seconds for a take and a release while so many sub-queues are busy, each with one more task
/// that waits behind the running one.
async fn by_busy_subqueues(busy: usize) -> Result<f64> {
    let client = Client::open("memory:").await?;
    client.create(TUBE, TubeOptions::new(Kind::UtubeTtl)).await?;
    let task = |subqueue: String| -> Result<NewTask> {
        Ok(NewTask { subqueue: Some(subqueue.into()), ..load::task()? })
    };
    for round in 0..busy / 1_000 {
        let names = (0..1_000).map(|number| format!("busy {round} {number}"));
        let pairs = names.flat_map(|name| [task(name.clone()), task(name)]);
        client.put_tasks(TUBE, pairs.collect::<Result<_>>()?, Duration::ZERO).await?;
    }
    let mut taken = 0;
    while taken < busy {
        taken += client.take_many(TUBE, 1_000, Duration::ZERO).await?.len();
    }
    let idle = (0..BATCH * 2).map(|number| task(format!("idle {number}")));
    client.put_tasks(TUBE, idle.collect::<Result<_>>()?, Duration::ZERO).await?;
    let seconds = take_and_release(&client).await?;
    client.close().await?;
    Ok(seconds)
}

async fn take_and_release(client: &Client) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..CALLS {
        let tasks = client.take_many(TUBE, BATCH, Duration::ZERO).await?;
        ensure!(tasks.len() == BATCH, "a take gave {} tasks", tasks.len());
        client.finish(TUBE, tasks.iter().map(release).collect()).await?;
    }
    Ok(begin.elapsed().as_secs_f64() / (CALLS * BATCH) as f64)
}

fn release(task: &Task) -> FinishItem {
    let holder = task.task.lease.map_or(Holder::Any, Holder::Lease);
    let finish = Finish::Release { delay: Span::ZERO, counted: false };
    FinishItem { id: task.id(), holder, finish }
}

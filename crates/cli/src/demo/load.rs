//! The producers, the workers and the operator of the example.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use taskyard::{
    Client, Error, Refusal, Result, Schedule, SemaphoreChange, Span, Task, TimingRule, TubeName,
    new_task,
};
use taskyard_core::Take;
use tokio::time::sleep;

use super::jobs::{JOBS, Job, SCHEDULED, SEMAPHORE};

/// The lease of a task: longer than any of them runs.
const LEASE: Span = Span::from_secs(30);
/// How long one take waits.
const TAKE_WAIT: Span = Span::from_secs(60);
/// The operator looks this often.
const OPERATOR_EVERY: Duration = Duration::from_secs(15);
/// With more buried tasks the operator kicks some; with twice as many nothing is put.
const BURIED_MAX: u64 = 30;
/// How long a worker waits after a take that failed.
const AFTER_ERROR: Duration = Duration::from_secs(5);

/// Creates the tubes, the semaphore and the schedule, and puts the first tasks.
pub async fn prepare(client: &Client) -> Result<()> {
    client.semaphores().create(SEMAPHORE, SemaphoreChange::limits(2, 1)).await?;
    let mut rng = Rng::new();
    for job in &JOBS {
        client.create(job.tube, job.options()).await?;
        let count = if job.every_ms.is_some() { 12 } else { 0 };
        for number in 0..count {
            let mut task = job.task(&mut rng)?;
            if number == 0 {
                task.delay = Some(Span::from_secs(30));
            }
            client.put_task(job.tube, task).await?;
        }
    }
    let rule = TimingRule::Every { every: Span::from_secs(5), start: None };
    let report = new_task(&serde_json::json!({ "report": "sales" }))?;
    client.schedules().set(Schedule::new("sales report", SCHEDULED, report, &rule)?).await?;
    Ok(())
}

/// The error if the queue stops. Others end no loop: a user of the page may have dropped the tube or deleted the task.
fn unless_stopping<T>(answer: Result<T>) -> Result<()> {
    match answer {
        Err(error @ Error::Refused(Refusal::ShuttingDown)) => Err(error),
        _ => Ok(()),
    }
}

/// Starts everything that works; it ends with the queue.
pub fn start(client: &Client) {
    for job in &JOBS {
        if let Some(every) = job.every_ms {
            tokio::spawn(produce(client.clone(), job, Duration::from_millis(every)));
        }
        for number in 1..=job.workers {
            tokio::spawn(work(client.clone(), job, format!("{}-{number}", job.worker).into()));
        }
    }
    tokio::spawn(operate(client.clone()));
}

/// Puts tasks while not too many wait or are buried.
async fn produce(client: Client, job: &'static Job, every: Duration) -> Result<()> {
    let mut rng = Rng::new();
    loop {
        unless_stopping(put_if_few(&client, job, &mut rng).await)?;
        // Between half and one and a half of it.
        sleep(every.mul_f64(0.5 + rng.f64())).await;
    }
}

async fn put_if_few(client: &Client, job: &Job, rng: &mut Rng) -> Result<()> {
    let tasks = client.stats(job.tube).await?.tasks;
    if tasks.ready + tasks.delayed < job.waiting_max && tasks.buried < 2 * BURIED_MAX {
        client.put_task(job.tube, job.task(rng)?).await?;
    }
    Ok(())
}

/// Takes tasks, works on them, and acks or fails them.
async fn work(client: Client, job: &'static Job, name: Arc<str>) -> Result<()> {
    let mut rng = Rng::new();
    let take = Take {
        tube: TubeName::new(job.tube)?,
        count: 1,
        session: None,
        lease: Some(LEASE),
        worker: Some(name),
        wait: TAKE_WAIT,
    };
    loop {
        let tasks = match client.take_with(take.clone()).await {
            Ok(tasks) => tasks,
            Err(error) => {
                unless_stopping::<()>(Err(error))?;
                sleep(AFTER_ERROR).await;
                continue;
            }
        };
        for task in tasks {
            sleep(job.run_time(&mut rng)).await;
            finish(&client, job, &mut rng, &task).await?;
        }
    }
}

async fn finish(client: &Client, job: &Job, rng: &mut Rng, task: &Task) -> Result<()> {
    let done = match job.failure(rng) {
        None => client.ack_with(task, &serde_json::json!({ "status": "ok" })).await,
        Some((error, true)) => client.fail(task, error).await,
        Some((error, false)) => client.bury_with(task, error).await,
    };
    unless_stopping(done)
}

/// Kicks buried tasks before they become too many.
async fn operate(client: Client) -> Result<()> {
    loop {
        sleep(OPERATOR_EVERY).await;
        for job in &JOBS {
            unless_stopping(kick_if_many(&client, job).await)?;
        }
    }
}

async fn kick_if_many(client: &Client, job: &Job) -> Result<()> {
    let buried = client.stats(job.tube).await?.tasks.buried;
    if buried > BURIED_MAX {
        client.kick(job.tube, buried - BURIED_MAX / 2).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dropping one tube on the page ended the operator for all of them, so buried tasks grew without a bound.
    #[test]
    fn only_the_end_of_the_queue_ends_a_loop() {
        let missing: Result<()> = TubeName::new("").map(drop).map_err(Error::from);
        assert!(missing.is_err() && unless_stopping(missing).is_ok());
        let stopping: Result<()> = Err(Error::Refused(Refusal::ShuttingDown));
        assert!(unless_stopping(stopping).is_err());
    }
}

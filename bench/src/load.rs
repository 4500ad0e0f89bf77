//! Runs concurrent clients and measures their calls.

use std::process;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde_json::json;
use taskyard::{Client, Key, KeyRequest, NewTask, Take, Task, TubeName, bytes_task, new_task};
use tokio::task::JoinSet;

use super::processor_time::seconds_used;
use super::report::{Report, Row};

/// The payload of every task: 100 bytes.
const PAYLOAD: [u8; 100] = [0x5A; 100];
/// The tube of every benchmark.
pub const TUBE: &str = "bench";

/// How the load is spread.
#[derive(Clone, Copy)]
pub struct Load {
    /// Concurrent clients, each waiting for its reply.
    pub clients: usize,
    /// Tasks in one call.
    pub batch: usize,
    /// Tasks in all.
    pub tasks: usize,
}

/// The result of a load.
pub struct Measured {
    tasks: usize,
    seconds: f64,
    /// Seconds of processor time of this process, in which clients and often engine and store are.
    processor: f64,
    /// How long each call took, in microseconds.
    latency: Histogram<u64>,
}

impl Measured {
    /// Tasks a second.
    pub fn rate(&self) -> f64 {
        self.tasks as f64 / self.seconds
    }

    /// Adds the result of another round.
    pub fn add(&mut self, other: &Measured) -> Result<()> {
        self.tasks += other.tasks;
        self.seconds += other.seconds;
        self.processor += other.processor;
        Ok(self.latency.add(&other.latency)?)
    }

    /// Adds a row with the processor time of this process for each task: on a shared machine it says more than a rate.
    pub fn report_processor_time(&self, report: &mut Report, what: &str) {
        report.add(Row {
            what: format!("{what}: processor time"),
            figure: self.processor * 1e6 / self.tasks as f64,
            unit: "µs/task",
            target: None,
            note: format!(
                "of the benchmark's process, {:.2} s for {} tasks",
                self.processor, self.tasks
            ),
        });
    }

    /// The latencies as a note.
    pub fn note(&self) -> String {
        let millis = |micros: u64| micros as f64 / 1000.0;
        let p50 = millis(self.latency.value_at_quantile(0.5));
        let p99 = millis(self.latency.value_at_quantile(0.99));
        format!("p50 {p50:.2} ms, p99 {p99:.2} ms, max {:.1} ms", millis(self.latency.max()))
    }
}

/// A client that gives its puts no random keys: what the queue does for them is measured, and other queues have none. What they cost is
/// measured by the part `keys`.
pub async fn open(url: &str) -> Result<Client> {
    Ok(Client::open(url).await?.idempotent(false))
}

/// A task of the benchmark.
pub fn task() -> Result<NewTask> {
    Ok(bytes_task(&PAYLOAD)?)
}

/// A task with a map of about 100 bytes, which has a text as JSON, unlike binary data.
pub fn json_task() -> Result<NewTask> {
    let letter = json!({
        "to": "alice@example.com", "subject": "Your invoice of March",
        "template": "invoice", "number": 1_234_567, "urgent": false,
    });
    Ok(new_task(&letter)?)
}

/// A task with a key that no other task has.
pub fn keyed_task() -> Result<NewTask> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let key = KeyRequest::new(Key::new(&format!("invoice-{number}"))?);
    Ok(NewTask { key: Some(Box::new(key)), ..task()? })
}

/// Puts tasks.
pub async fn put(client: &Client, load: Load) -> Result<Measured> {
    put_each(client, load, task).await
}

/// Puts the tasks that a function makes.
pub async fn put_each(
    client: &Client,
    load: Load,
    new: fn() -> Result<NewTask>,
) -> Result<Measured> {
    let before = client.tubes().await?.iter().map(|tube| tube.stats.tasks.ready).sum::<u64>();
    let measured = put_uncounted(client, load, new).await?;
    let after = client.stats(TUBE).await?.tasks.ready;
    ensure!(after == before + load.tasks as u64, "{after} tasks exist after the puts");
    Ok(measured)
}

/// The same without counting the tasks in the tube: a server on a database shows counts of a moment ago.
pub async fn put_uncounted(
    client: &Client,
    load: Load,
    new: fn() -> Result<NewTask>,
) -> Result<Measured> {
    let client = client.clone();
    run(load, move |count| {
        let client = client.clone();
        async move {
            let tasks = (0..count).map(|_| new()).collect::<Result<_>>()?;
            Ok(client.put_tasks(TUBE, tasks, Duration::ZERO).await?.len())
        }
    })
    .await
}

/// Takes tasks and acknowledges them; the tube has exactly this many.
pub async fn take_and_ack(client: &Client, load: Load) -> Result<Measured> {
    let client = client.clone();
    let counter = client.clone();
    let measured = run(load, move |count| {
        let client = client.clone();
        async move {
            let tasks = client.take_many(TUBE, count, Duration::ZERO).await?;
            client.ack_many(&tasks).await?;
            Ok(tasks.len())
        }
    })
    .await?;
    let stats = counter.stats(TUBE).await?;
    ensure!(stats.tasks.total() == 0, "{} tasks are left", stats.tasks.total());
    Ok(measured)
}

/// Takes tasks without the name of a worker, which servers from before task stories refuse.
pub async fn take_unnamed(client: &Client, count: usize) -> Result<Vec<Task>> {
    let (tube, wait) = (TubeName::new(TUBE)?, Duration::ZERO.into());
    let take = Take { tube, count, session: None, lease: None, worker: None, wait };
    Ok(client.take_with(take).await?)
}

/// The tasks that clients hold.
pub type HeldTasks = Vec<Task>;

/// Takes tasks and keeps them.
pub async fn take(client: &Client, load: Load) -> Result<(Measured, HeldTasks)> {
    let held = Arc::new(Mutex::new(Vec::with_capacity(load.tasks)));
    let (client, holder) = (client.clone(), Arc::clone(&held));
    let call = move |count| {
        let (client, held) = (client.clone(), Arc::clone(&holder));
        async move {
            let tasks = take_unnamed(&client, count).await?;
            let taken = tasks.len();
            held.lock().unwrap_or_else(PoisonError::into_inner).extend(tasks);
            Ok(taken)
        }
    };
    let measured = run(load, call).await?;
    let held = std::mem::take(&mut *held.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((measured, held))
}

/// Acknowledges the tasks that are held. All of them must be.
pub async fn ack(client: &Client, load: Load, held: HeldTasks) -> Result<Measured> {
    let client = client.clone();
    let held = Arc::new(Mutex::new(held));
    let call = move |count| {
        let (client, held) = (client.clone(), Arc::clone(&held));
        async move {
            let tasks = {
                let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
                let left = held.len().saturating_sub(count);
                held.split_off(left)
            };
            client.ack_many(&tasks).await?;
            Ok(tasks.len())
        }
    };
    run(load, call).await
}

/// Runs `call` from many clients at once; its argument is the number of tasks that it must process.
pub async fn run<C, F>(load: Load, call: C) -> Result<Measured>
where
    C: Fn(usize) -> F + Clone + Send + 'static,
    F: Future<Output = Result<usize>> + Send + 'static,
{
    let claimed = Arc::new(AtomicUsize::new(0));
    let mut running = JoinSet::new();
    let (begin, used) = (Instant::now(), seconds_used(process::id())?);
    for _ in 0..load.clients {
        running.spawn(one_client(load, claimed.clone(), call.clone()));
    }
    let mut latency = Histogram::new(3)?;
    while let Some(ended) = running.join_next().await {
        latency.add(ended.context("a client of the benchmark failed")??)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let processor = seconds_used(process::id())? - used;
    Ok(Measured { tasks: load.tasks, seconds, processor, latency })
}

async fn one_client<C, F>(load: Load, claimed: Arc<AtomicUsize>, call: C) -> Result<Histogram<u64>>
where
    C: Fn(usize) -> F,
    F: Future<Output = Result<usize>>,
{
    let mut latency = Histogram::new(3)?;
    loop {
        let first = claimed.fetch_add(load.batch, Ordering::Relaxed);
        let count = load.batch.min(load.tasks.saturating_sub(first));
        if count == 0 {
            return Ok(latency);
        }
        let begin = Instant::now();
        let done = call(count).await?;
        ensure!(done == count, "{done} tasks were processed instead of {count}");
        latency.record(begin.elapsed().as_micros() as u64)?;
    }
}

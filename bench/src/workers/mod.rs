//! Typed workers with empty handlers and workers with an empty function: the cost of the runtime itself.

mod apalis;
mod note;

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use taskyard::{Client, Iproto, NewTask};
use taskyard_core::Body;
use taskyard_worker::{
    Delivery, Dispatcher, Handler, HandlerStats, PutOptions, Settings, TypedTask, Worker,
};
use tokio::sync::{Notify, mpsc};

use super::iproto::BenchServer;
use super::report::{Report, Row, Target};
use super::{Size, store_in};
use note::{Note, note};

const PROCESSORS: usize = 4;
const BATCH: usize = 100;
/// How many functions may run at a time.
const CONCURRENCY: usize = 10;
/// The turns of each kind of worker.
const ROUNDS: usize = 3;

/// Runs all measurements of workers.
pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    codec(report)?;
    let peer = apalis::measure(folder, size.tasks, PROCESSORS, BATCH).context("apalis")?;
    let beside = |rate: f64| match &peer {
        Some(peer) => format!("{:.0} times {}", rate / peer.drain, peer.name()),
        None => "apalis is not installed".into(),
    };
    let client = Client::open(&store_in(folder, "workers")).await?;
    let (rate, ratio) = beside_functions(&client, size.tasks).await.context("in process")?;
    report.add(Row {
        what: "workers in process, durable".into(),
        figure: rate,
        unit: "tasks/s",
        target: Some(Target::AtLeast(150_000.0)),
        note: format!("{PROCESSORS} processors, batches of {BATCH}; {}", beside(rate)),
    });
    report.add(ratio);
    latency(report, &client, peer.as_ref()).await?;
    client.close().await?;
    let server = BenchServer::start(&store_in(folder, "workers-network"))?;
    let over_iproto = Client::new(Iproto::new(&server.address)?).idempotent(false);
    let (rate, ratio) = beside_functions(&over_iproto, size.tasks).await.context("over iproto")?;
    server.stop()?;
    report.add(Row {
        what: "workers over the network, durable".into(),
        figure: rate,
        unit: "tasks/s",
        target: Some(Target::AtLeast(80_000.0)),
        note: format!("the same over iproto, server in this process; {}", beside(rate)),
    });
    report.add(Row { what: format!("{} over the network", ratio.what), ..ratio });
    Ok(())
}

/// Typed tasks a second, and a function worker beside it. Both work on a third of the tasks in turns, and the best turn of
/// each counts.
async fn beside_functions(client: &Client, tasks: usize) -> Result<(f64, Row)> {
    let part = tasks / ROUNDS;
    let (mut typed, mut functions) = (0.0_f64, 0.0_f64);
    for _ in 0..ROUNDS {
        typed = typed.max(drain(client, part).await?);
        functions = functions.max(drain_by_function(client, part).await?);
    }
    let note = format!("{functions:.0} tasks/s with an empty function, concurrency {CONCURRENCY}");
    let row = Row {
        what: "function worker beside typed workers".into(),
        figure: 100.0 * functions / typed,
        unit: "%",
        target: Some(Target::AtLeast(80.0)),
        note,
    };
    Ok((typed, row))
}

/// Puts the tasks of a measurement.
async fn fill(client: &Client, tube: &str, tasks: usize) -> Result<()> {
    for first in (0..tasks).step_by(1000) {
        let of = |user: usize| NewTask::new(Body::new(&note(user as i64).encode()));
        let batch = (first..tasks.min(first + 1000)).map(of).collect();
        client.put_tasks(tube, batch, Duration::ZERO).await?;
    }
    Ok(())
}

/// Fills a tube and lets a function empty it.
async fn drain_by_function(client: &Client, tasks: usize) -> Result<f64> {
    const TUBE: &str = "function";
    fill(client, TUBE, tasks).await?;
    let before = client.stats(TUBE).await?.calls.ack;
    let (left, finished) = (Arc::new(AtomicUsize::new(tasks)), Arc::new(Notify::new()));
    let stop = finished.clone();
    let begin = Instant::now();
    let worker = client.worker(TUBE).concurrency(CONCURRENCY);
    let function = move |(_user, _text, _urgent): (i64, String, bool), _| {
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            finished.notify_one();
        }
        async { Ok::<(), String>(()) }
    };
    // The last acks are part of the time: they are sent before the worker ends.
    let stopped = async {
        stop.notified().await;
        while client.stats(TUBE).await.is_ok_and(|stats| stats.tasks.total() > 0) {}
    };
    let seconds = {
        let mut seconds = 0.0;
        let stopped = async {
            stopped.await;
            seconds = begin.elapsed().as_secs_f64();
        };
        worker.run_until(stopped, function).await?;
        seconds
    };
    let done = client.stats(TUBE).await?.calls.ack - before;
    ensure!(done == tasks as u64, "{done} tasks were done");
    Ok(tasks as f64 / seconds)
}

/// Fills a queue and lets a worker empty it.
async fn drain(client: &Client, tasks: usize) -> Result<f64> {
    let (done, finished) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let handler = {
        let (done, finished) = (done.clone(), finished.clone());
        Handler::new(move |_, store, notes: Vec<Note>| {
            let (done, finished) = (done.clone(), finished.clone());
            async move {
                let ids: Vec<_> = notes.iter().map(|note| note.task_id).collect();
                let settled = store.done(&ids).await?;
                if done.fetch_add(settled.done, Ordering::Relaxed) + settled.done == tasks {
                    finished.notify_one();
                }
                Ok(HandlerStats { processed: settled.done, ..HandlerStats::default() })
            }
        })
    };
    let settings =
        Settings { max_processors: PROCESSORS, batch_size: BATCH, ..Settings::default() };
    let dispatcher = Dispatcher::new([(Note::QUEUE, Some(handler))]);
    let worker = Worker::builder("bench", client.clone(), dispatcher).settings(settings).build()?;
    worker.init().await?;
    fill(client, Note::QUEUE.name, tasks).await?;
    let before = client.stats(Note::QUEUE.name).await?.calls.ack;
    let begin = Instant::now();
    let runner = worker.clone();
    let running = tokio::spawn(async move { runner.run().await });
    finished.notified().await;
    let seconds = begin.elapsed().as_secs_f64();
    worker.graceful_stop().await;
    running.await??;
    let stats = client.stats(Note::QUEUE.name).await?;
    ensure!(stats.tasks.total() == 0, "{} tasks are left", stats.tasks.total());
    let done = stats.calls.ack - before;
    ensure!(done == tasks as u64, "{done} tasks were done");
    Ok(tasks as f64 / seconds)
}

/// From the beginning of a put to the beginning of its handler, on a worker with nothing else to do.
async fn latency(
    report: &mut Report,
    client: &Client,
    peer: Option<&apalis::Figures>,
) -> Result<()> {
    let (begun, mut beginnings) = mpsc::unbounded_channel();
    let handler = Handler::new(move |_, store, notes: Vec<Note>| {
        let now = Instant::now();
        let begun = begun.clone();
        async move {
            store.done(&notes.iter().map(|note| note.task_id).collect::<Vec<_>>()).await?;
            begun.send(now)?;
            Ok(HandlerStats::default())
        }
    });
    let dispatcher = Dispatcher::new([(Note::QUEUE, Some(handler))]);
    let worker = Worker::builder("idle", client.clone(), dispatcher).build()?;
    worker.init().await?;
    let runner = worker.clone();
    let running = tokio::spawn(async move { runner.run().await });
    let mut histogram: Histogram<u64> = Histogram::new(3)?;
    for user in 0..2000 {
        let begin = Instant::now();
        note(user).put(client, PutOptions::default()).await?;
        let handled = beginnings.recv().await.context("the worker ended")?;
        histogram.record(handled.duration_since(begin).as_micros() as u64)?;
    }
    worker.graceful_stop().await;
    running.await??;
    let millis = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    let of = |peer: &apalis::Figures| {
        format!("; apalis p50 {:.2} ms, p99 {:.2} ms", peer.start_p50, peer.start_p99)
    };
    let beside = peer.map(of).unwrap_or_default();
    report.add(Row {
        what: "put to handler on an idle worker, p50".into(),
        figure: millis(0.5),
        unit: "ms",
        target: Some(Target::AtMost(1.0)),
        note: format!("durable, in process; p99 {:.2} ms{beside}", millis(0.99)),
    });
    Ok(())
}

/// Writing and reading tasks on one core.
fn codec(report: &mut Report) -> Result<()> {
    const ROUNDS: usize = 3_000_000;
    let task = note(123_456);
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        black_box(black_box(&task).encode());
    }
    let written = ROUNDS as f64 / begin.elapsed().as_secs_f64();
    let payload = task.encode();
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        black_box(Note::decode(Delivery::default(), black_box(&payload))?);
    }
    let read = ROUNDS as f64 / begin.elapsed().as_secs_f64();
    for (what, figure) in [("codec: tasks written", written), ("codec: tasks read", read)] {
        report.add(Row {
            what: what.into(),
            figure,
            unit: "/s",
            target: Some(Target::AtLeast(5_000_000.0)),
            note: format!("one core, three fields, {} bytes", payload.len()),
        });
    }
    Ok(())
}

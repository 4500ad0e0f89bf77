//! Typed workers with empty handlers: the cost of the runtime itself.

mod apalis;
mod note;

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use taskyard::{Client, Execute, Iproto, NewTask};
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

/// Runs all measurements of workers.
pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    codec(report)?;
    let peer = apalis::measure(folder, size.tasks, PROCESSORS, BATCH).context("apalis")?;
    let beside = |rate: f64| match &peer {
        Some(peer) => format!("{:.0} times {}", rate / peer.drain, peer.name()),
        None => "apalis is not installed".into(),
    };
    let client = Client::open(&store_in(folder, "workers")).await?;
    let rate = drain(client.clone(), size.tasks).await.context("in process")?;
    report.add(Row {
        what: "workers in process, durable".into(),
        figure: rate,
        unit: "tasks/s",
        target: Some(Target::AtLeast(150_000.0)),
        note: format!("{PROCESSORS} processors, batches of {BATCH}; {}", beside(rate)),
    });
    latency(report, client.clone(), peer.as_ref()).await?;
    client.close().await?;
    let server = BenchServer::start(&store_in(folder, "workers-network"))?;
    let rate = drain(Iproto::new(&server.address)?, size.tasks).await.context("over iproto")?;
    server.stop()?;
    report.add(Row {
        what: "workers over the network, durable".into(),
        figure: rate,
        unit: "tasks/s",
        target: Some(Target::AtLeast(80_000.0)),
        note: format!("the same over iproto, server in this process; {}", beside(rate)),
    });
    Ok(())
}

/// Fills a queue and lets a worker empty it.
async fn drain<E: Execute + Clone + 'static>(queue: E, tasks: usize) -> Result<f64> {
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
    let worker = Worker::builder("bench", queue.clone(), dispatcher).settings(settings).build()?;
    worker.init().await?;
    let client = Client::new(queue);
    for first in (0..tasks).step_by(1000) {
        let of = |user: usize| NewTask::new(Body::new(&note(user as i64).encode()));
        let batch = (first..tasks.min(first + 1000)).map(of).collect();
        client.put_tasks(Note::QUEUE.name, batch, Duration::ZERO).await?;
    }
    let begin = Instant::now();
    let runner = worker.clone();
    let running = tokio::spawn(async move { runner.run().await });
    finished.notified().await;
    let seconds = begin.elapsed().as_secs_f64();
    worker.graceful_stop().await;
    running.await??;
    let stats = client.stats(Note::QUEUE.name).await?;
    ensure!(stats.tasks.total() == 0, "{} tasks are left", stats.tasks.total());
    ensure!(stats.calls.ack == tasks as u64, "{} tasks were done", stats.calls.ack);
    Ok(tasks as f64 / seconds)
}

/// From the beginning of a put to the beginning of its handler, on a worker with nothing else to do.
async fn latency<E: Execute + Clone + 'static>(
    report: &mut Report,
    queue: E,
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
    let worker = Worker::builder("idle", queue.clone(), dispatcher).build()?;
    worker.init().await?;
    let runner = worker.clone();
    let running = tokio::spawn(async move { runner.run().await });
    let mut histogram: Histogram<u64> = Histogram::new(3)?;
    for user in 0..2000 {
        let begin = Instant::now();
        note(user).put(&queue, PutOptions::default()).await?;
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

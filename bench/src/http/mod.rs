//! Puts, takes and acks over HTTP, in batches and one by one; the server runs in this process.

mod one_by_one;
mod raw_client;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use taskyard::OpenOptions;
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, Server};
use tokio::sync::oneshot;

use super::iproto::BenchServer;
use super::load::{self, Load};
use super::report::{Report, Row, Target};
use super::{Size, store_in};
use one_by_one::{CONNECTIONS, HttpPhase};

pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    in_batches(report, folder, size).await?;
    for (store, url) in
        [("durable", store_in(folder, "http-singles")), ("memory", "memory:".into())]
    {
        let measured = singles(&url, size.tasks)?;
        for ((what, asked), phase) in
            [("put", 60_000.0), ("take + ack", 30_000.0)].into_iter().zip(measured)
        {
            add_rows(report, (store, what), asked, phase);
        }
    }
    Ok(())
}

/// Batches of the public client, on the durable store.
async fn in_batches(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let store = taskyard_stores::open(&store_in(folder, "http"), &OpenOptions::default())?;
    let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
    let server = Server::bind(Config::new("127.0.0.1:0".parse()?), engine).await?;
    let client = load::open(&server.url()).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async { _ = stopped.await }));
    let load = Load { clients: 16, batch: 100, tasks: size.tasks };
    let put = load::put(&client, load).await?;
    report.add(Row {
        what: "HTTP put, batches of 100".into(),
        figure: put.rate(),
        unit: "tasks/s",
        target: Some(Target::AtLeast(100_000.0)),
        note: format!("durable, 16 connections, client on the same cores: {}", put.note()),
    });
    put.report_processor_time(report, "HTTP put, batches of 100");
    let pairs = load::take_and_ack(&client, load).await?;
    report.add(Row {
        what: "HTTP take + ack, batches of 100".into(),
        figure: pairs.rate(),
        unit: "tasks/s",
        target: None,
        note: format!("durable, 16 connections, client on the same cores: {}", pairs.note()),
    });
    pairs.report_processor_time(report, "HTTP take + ack, batches of 100");
    drop(stop);
    serving.await.context("the server failed")??;
    Ok(())
}

/// Single requests: the server on its own threads, as `serve` has them, and the load on one thread.
fn singles(store: &str, tasks: usize) -> Result<[HttpPhase; 2]> {
    let load = || {
        // Created and dropped on that thread: a runtime cannot be dropped inside another one.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let server = BenchServer::start(store)?;
        let measured = runtime.block_on(one_by_one::measure(&server.http_address, tasks))?;
        server.stop()?;
        Ok(measured)
    };
    let named = std::thread::Builder::new().name("bench-load".into());
    // The runtime of the other parts is idle meanwhile.
    std::thread::scope(|scope| {
        named.spawn_scoped(scope, load)?.join().map_err(|_| anyhow!("the load failed"))?
    })
}

fn add_rows(report: &mut Report, (store, what): (&str, &str), asked: f64, phase: HttpPhase) {
    let what = format!("HTTP {what}, {CONNECTIONS} connections one by one, {store}");
    let (server, load) = phase.micros();
    report.add(Row {
        what: what.clone(),
        figure: phase.rate(),
        unit: "tasks/s",
        target: Some(Target::AtLeast(asked)),
        note: format!("{} tasks, load on one thread of the same cores", phase.tasks),
    });
    report.add(Row {
        what: format!("{what}: processor time of the server"),
        figure: server,
        unit: "µs/task",
        target: None,
        note: format!("the load took {load:.1} µs more"),
    });
}

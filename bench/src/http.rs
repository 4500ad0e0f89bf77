//! Puts over HTTP in batches, the server in this process, on the durable store.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use taskyard::OpenOptions;
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, Server};
use tokio::sync::oneshot;

use super::load::{self, Load};
use super::report::{Report, Row, Target};
use super::{Size, store_in};

pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
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

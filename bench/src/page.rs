//! The dashboard in Chromium with many tubes and tasks: when a view shows its rows, and how smooth it is while tasks are put.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;
use taskyard::{Client, Kind, OpenOptions, TubeOptions};
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, Server};
use tokio::sync::oneshot;

use super::load::{self, Load, TUBE};
use super::peers::Peer;
use super::report::{Report, Row, Target};
use super::{Size, store_in};

const TUBES: usize = 1_000;
/// The pause between two puts into other tubes, so that the numbers of the page change all the time.
const PUT_EVERY: Duration = Duration::from_millis(5);

const PAGE: Peer = Peer { name: "Chromium", script: "page.mjs", interpreter: "TASKYARD_NODE" };

/// What was measured of a view, in milliseconds and frames per second.
#[derive(Deserialize)]
struct View {
    name: String,
    /// From the request until the rows are shown.
    first: f64,
    frames: f64,
    p99: f64,
    longest: f64,
    /// How many times the page was busy for more than 50 ms.
    long: u64,
}

pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let store = taskyard_stores::open(&store_in(folder, "page"), &OpenOptions::default())?;
    let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
    let server = Server::bind(Config::new("127.0.0.1:0".parse()?), engine).await?;
    let url = server.url();
    let client = load::open(&url).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async { _ = stopped.await }));
    load::put(&client, Load { clients: 4, batch: 1_000, tasks: size.tasks }).await?;
    for number in 0..TUBES {
        client.create(&tube(number), TubeOptions::new(Kind::FifoTtl)).await?;
    }
    let changes = tokio::spawn(change(client.clone()));
    let views = tokio::task::spawn_blocking(move || browse(&url, size)).await?;
    changes.abort();
    match views {
        Ok(views) => views.iter().for_each(|view| add(report, view, size)),
        Err(error) => eprintln!("the dashboard was not measured: {error:#}"),
    }
    drop(stop);
    serving.await.context("the server failed")??;
    Ok(())
}

fn tube(number: usize) -> String {
    format!("tube-{number:04}")
}

/// Puts into one tube after the other.
async fn change(client: Client) -> Result<()> {
    for number in (0..TUBES).cycle() {
        client.put(&tube(number), &number).await?;
        tokio::time::sleep(PUT_EVERY).await;
    }
    Ok(())
}

fn browse(url: &str, size: Size) -> Result<Vec<View>> {
    let rows = |table: &str, count: usize| {
        format!("document.querySelectorAll('.{table} tbody tr').length >= {count}")
    };
    let views = json!([
        { "name": "overview, 1,000 tubes", "path": "/", "shown": rows("tubes", 100) },
        { "name": "tube, its tasks", "path": format!("/tubes/{TUBE}"), "shown": rows("tasks", 50) },
        { "name": "tube, its charts", "path": format!("/tubes/{TUBE}?show=charts&range=1h"),
            "shown": "document.querySelector('.line.put')?.getAttribute('d')" },
        { "name": "task", "path": format!("/tubes/{TUBE}/tasks/{}", size.tasks / 2),
            "shown": "document.querySelector('.state-badge')?.textContent === 'ready'" },
    ]);
    let seconds = if size.is_quick() { 3 } else { 15 };
    PAGE.run(&json!({ "url": url, "views": views, "seconds": seconds }))
}

fn add(report: &mut Report, view: &View, size: Size) {
    report.add(Row {
        what: format!("dashboard: {}", view.name),
        figure: view.longest,
        unit: "ms",
        target: Some(Target::AtMost(100.0)),
        note: format!(
            "longest time between two frames; p99 {:.0} ms, {:.0} frames/s, {} times busy for over 50 ms; \
             rows after {:.0} ms; {} tasks, 200 puts/s",
            view.p99, view.frames, view.long, view.first, size.tasks
        ),
    });
}

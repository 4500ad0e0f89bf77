//! A summary of all tubes and the server, for the dashboard and the command line.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::Method;
use axum::response::Response;
use serde::Serialize;
use taskyard_core::{Calls, Counts};
use taskyard_wire::http::{CallCounts, TaskCounts, TubeAnswer};

use super::request::QueryParams;
use super::tubes::{TubesQuery, drain, internal, tubes};
use super::{Refusal, RequestApp, Route, ok};
use crate::tube_rows::{add_calls, add_tasks};

/// All tubes, their totals, and the server. Two of these and the time between them give rates.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct StatsAnswer {
    /// The time of this summary, in seconds since the epoch.
    time: f64,
    /// The tubes, by name.
    tubes: Vec<TubeAnswer>,
    /// All tubes together.
    total: TotalAnswer,
    /// The server itself.
    server: ServerAnswer,
}

/// All tubes together.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct TotalAnswer {
    /// The number of tubes.
    tubes: u64,
    /// Tasks by state.
    tasks: TaskCounts,
    /// The number of calls that took effect since the store was opened.
    calls: CallCounts,
    /// Consumers that wait for a task on this server.
    consumers: u64,
}

/// The server itself.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct ServerAnswer {
    /// Its version.
    version: String,
    /// The name of the command line program on the server's machine.
    program: String,
    /// The name of the store.
    store: String,
    /// Whether an acknowledged task is on disk.
    durable: bool,
    /// What happens to acknowledged tasks when the machine fails, if that depends on the settings
    /// of a database.
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<String>,
    /// The features that the store does not support.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unsupported: Vec<String>,
    /// How long it has been running, in seconds.
    uptime: f64,
    /// Open connections.
    connections: u64,
}

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = ("stats", "Show all tubes with their totals, and the server");
    let route = Route::new(Method::GET, "/v1/stats", about, stats)
        .query_param(internal())
        .query_param(drain())
        .responds::<StatsAnswer>("Tubes, totals and server")
        .uses_engine();
    vec![route]
}

async fn stats(
    app: RequestApp,
    QueryParams(query): QueryParams<TubesQuery>,
) -> Result<Response, Refusal> {
    let tubes = tubes(&app, query).await?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    ok(&StatsAnswer { time, total: total(&tubes), tubes, server: server(&app) })
}

fn server(app: &RequestApp) -> ServerAnswer {
    let store = app.engine.capabilities();
    ServerAnswer {
        version: env!("CARGO_PKG_VERSION").into(),
        program: app.program.clone(),
        store: store.name.into(),
        durable: store.durable,
        durability: app.engine.durability(),
        unsupported: app.engine.unsupported().iter().map(|what| (*what).to_owned()).collect(),
        uptime: app.started.elapsed().as_secs_f64(),
        connections: app.connections() as u64,
    }
}

fn total(tubes: &[TubeAnswer]) -> TotalAnswer {
    let mut tasks = Counts::default();
    let mut calls = Calls::default();
    for tube in tubes {
        add_tasks(&mut tasks, tube.tasks.into());
        add_calls(&mut calls, tube.calls.into());
    }
    TotalAnswer {
        tubes: tubes.len() as u64,
        tasks: tasks.into(),
        calls: calls.into(),
        consumers: tubes.iter().map(|tube| tube.consumers).sum(),
    }
}

//! Accepts clients over WebSocket and plain HTTP, and serves the status and a small web page.
//!
//! All endpoints are under `/pool`. Authentication is done by the server that hosts the gateway.

mod client_limits;
mod client_task;
mod file_cache;
mod handle;
mod page;
mod plain;
mod shared;
mod socket;
mod stdin_queue;
mod upgrade;

use std::net::{IpAddr, SocketAddr};

use axum::Extension;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;

pub use client_task::{ClientTask, NextFrame};
pub use handle::{BoxFuture, PoolHandle, TaskHandle, Unavailable};
pub use page::has as is_page;
pub use shared::{Gateway, InputBufferFull};

/// All endpoints of the pool.
pub fn router(gateway: Gateway) -> Router {
    let router = Router::new()
        .route("/pool/status", get(status))
        .route("/pool/programs", get(programs))
        .route("/pool/run/{program}", post(plain::run).get(socket::batch))
        .route("/pool/run/{program}/interactive", get(socket::interactive));
    page::add(router).with_state(gateway)
}

async fn status(State(gateway): State<Gateway>) -> Response {
    match gateway.0.pool.status().await {
        Ok(body) => Json(body).into_response(),
        Err(error) => refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    }
}

/// The programs, as the page needs them.
async fn programs(State(gateway): State<Gateway>) -> Response {
    let programs = gateway.0.programs.iter().map(|(name, program)| {
        json!({
            "name": name,
            "input": program.input,
            "formats": program.formats.keys().collect::<Vec<_>>(),
            "format": program.default_format(),
            "interactive": !program.interactive.is_empty(),
            "example": program.example,
        })
    });
    Json(programs.collect::<Vec<_>>()).into_response()
}

/// The address of the client, if the server provides it.
pub(crate) type Peer = Option<Extension<ConnectInfo<SocketAddr>>>;

fn address(peer: Peer) -> Option<IpAddr> {
    peer.map(|Extension(ConnectInfo(peer))| peer.ip())
}

fn refusal(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({ "error": { "error": error } }))).into_response()
}

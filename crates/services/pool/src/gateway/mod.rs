//! The way in: WebSocket and plain HTTP for clients, status for operators, a small page for people.
//!
//! It answers under `/pool`. Who may ask at all is decided outside, by the server that hosts it.

mod files;
mod gate;
mod page;
mod plain;
mod socket;
mod turns;
mod upgrade;
mod visit;
mod words;
mod yard;

use std::net::{IpAddr, SocketAddr};

use axum::Extension;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;

pub use gate::{Gate, HeldError};
pub use page::has as is_page;
pub use visit::{News, Visit};
pub use yard::{Away, Soon, Stay, Yard};

/// Every address of the pool.
pub fn router(gate: Gate) -> Router {
    let router = Router::new()
        .route("/pool/status", get(status))
        .route("/pool/programs", get(programs))
        .route("/pool/run/{program}", post(plain::run).get(socket::batch))
        .route("/pool/run/{program}/interactive", get(socket::interactive));
    page::add(router).with_state(gate)
}

async fn status(State(gate): State<Gate>) -> Response {
    match gate.0.yard.status().await {
        Ok(body) => Json(body).into_response(),
        Err(error) => refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    }
}

/// What the page needs to know about the programs.
async fn programs(State(gate): State<Gate>) -> Response {
    let programs = gate.0.programs.iter().map(|(name, program)| {
        json!({
            "name": name,
            "input": program.input,
            "formats": program.formats.keys().collect::<Vec<_>>(),
            "format": program.usual_format(),
            "interactive": !program.interactive.is_empty(),
            "example": program.example,
        })
    });
    Json(programs.collect::<Vec<_>>()).into_response()
}

/// Who asks, where the server tells it.
pub(crate) type Peer = Option<Extension<ConnectInfo<SocketAddr>>>;

fn address(peer: Peer) -> Option<IpAddr> {
    peer.map(|Extension(ConnectInfo(peer))| peer.ip())
}

fn refusal(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({ "error": { "error": error } }))).into_response()
}

//! Measures other queues on Redis.

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;

use super::server::RedisServer;
use super::{BATCH, CLIENTS, RedisAmounts};
use crate::peers::{Peer, StartLatency};

/// All queues that are measured.
pub const PEERS: &[Peer] = &[
    Peer { name: "BullMQ", script: "bullmq.js", interpreter: "TASKYARD_NODE" },
    Peer { name: "dramatiq", script: "dramatiq-worker.py", interpreter: "TASKYARD_PEERS_PYTHON" },
];

/// The figures that a peer reports.
#[derive(Deserialize)]
pub struct RedisPeerFigures {
    version: String,
    settings: String,
    pub put: f64,
    pub put_batches: Option<f64>,
    pub drain: f64,
    pub start: StartLatency,
}

/// Runs a peer's program on a server.
pub fn measure(
    peer: &Peer,
    server: &RedisServer,
    amounts: RedisAmounts,
) -> Result<RedisPeerFigures> {
    let figures: RedisPeerFigures = peer.run(&json!({
        "port": server.port(),
        "seconds": amounts.seconds,
        "clients": CLIENTS,
        "batch": BATCH,
        "backlog": amounts.backlog,
        "starts": amounts.ours.starts.min(300),
    }))?;
    let RedisPeerFigures { version, settings, put, drain, start, .. } = &figures;
    eprintln!(
        "  {} {version}: put {put:.0}/s, work {drain:.0}/s, put to start p50 {:.2} ms, p99 {:.2} ms \
         ({settings})",
        peer.name, start.p50, start.p99,
    );
    Ok(figures)
}

//! What people would use instead, run as programs of their own.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;
use serde_json::json;

use super::server::Server;
use super::{Amounts, BATCH, CLIENTS};

/// Another queue.
pub struct Peer {
    pub name: &'static str,
    /// Its program in the folder of `TASKYARD_PEERS`.
    script: &'static str,
    /// Where the interpreter of that is told.
    interpreter: &'static str,
}

/// All that are measured beside ours.
pub const PEERS: &[Peer] = &[
    Peer { name: "BullMQ", script: "bullmq.js", interpreter: "TASKYARD_NODE" },
    Peer { name: "dramatiq", script: "dramatiq-worker.py", interpreter: "TASKYARD_PEERS_PYTHON" },
];

/// What a peer says it did.
#[derive(Deserialize)]
pub struct PeerFigures {
    version: String,
    settings: String,
    pub put: f64,
    pub put_batches: Option<f64>,
    pub drain: f64,
    pub start: Start,
}

/// Milliseconds from a put to its start.
#[derive(Deserialize)]
pub struct Start {
    pub p50: f64,
    p99: f64,
}

/// Runs a peer's program; what it prints last is its answer.
pub fn measure(peer: &Peer, server: &Server, amounts: Amounts) -> Result<PeerFigures> {
    let missing = "its packages are not here; `cargo xtask bench` brings them";
    let told = |name: &str| std::env::var_os(name).map(PathBuf::from).context(missing);
    let settings = json!({
        "port": server.port(),
        "seconds": amounts.seconds,
        "clients": CLIENTS,
        "batch": BATCH,
        "backlog": amounts.backlog,
        "starts": amounts.starts.min(300),
    });
    let mut command = Command::new(told(peer.interpreter)?);
    command.arg(told("TASKYARD_PEERS")?.join(peer.script)).arg(settings.to_string());
    command.env("NODE_PATH", told("TASKYARD_PEERS_NODE_MODULES")?);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "its program failed: {}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed.lines().last().ok_or_else(|| anyhow!("its program said nothing"))?;
    let figures: PeerFigures =
        serde_json::from_str(line).with_context(|| format!("its program said {line}"))?;
    let PeerFigures { version, settings, put, drain, start, .. } = &figures;
    eprintln!(
        "  {} {version}: put {put:.0}/s, work {drain:.0}/s, put to start p50 {:.2} ms, p99 {:.2} ms \
         ({settings})",
        peer.name, start.p50, start.p99,
    );
    Ok(figures)
}

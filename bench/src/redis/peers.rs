//! Other queues, run as separate programs.

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
    /// The environment variable with its interpreter.
    interpreter: &'static str,
}

/// All queues that are measured.
pub const PEERS: &[Peer] = &[
    Peer { name: "BullMQ", script: "bullmq.js", interpreter: "TASKYARD_NODE" },
    Peer { name: "dramatiq", script: "dramatiq-worker.py", interpreter: "TASKYARD_PEERS_PYTHON" },
];

/// The figures that a peer reports.
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

/// Runs a peer's program; its last line is the result.
pub fn measure(peer: &Peer, server: &Server, amounts: Amounts) -> Result<PeerFigures> {
    let missing = "its packages are not installed; `cargo xtask bench` installs them";
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
    let line = printed.lines().last().ok_or_else(|| anyhow!("its program printed nothing"))?;
    let figures: PeerFigures =
        serde_json::from_str(line).with_context(|| format!("its program printed {line}"))?;
    let PeerFigures { version, settings, put, drain, start, .. } = &figures;
    eprintln!(
        "  {} {version}: put {put:.0}/s, work {drain:.0}/s, put to start p50 {:.2} ms, p99 {:.2} ms \
         ({settings})",
        peer.name, start.p50, start.p99,
    );
    Ok(figures)
}

//! Other queues, run as separate programs.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Amounts;
use super::cluster::Cluster;
use super::taskyard::{BATCH, CLIENTS};

/// Another queue.
pub struct Peer {
    pub name: &'static str,
    /// Its program in the folder of `TASKYARD_PEERS`.
    script: &'static str,
    /// The environment variable with its interpreter.
    interpreter: &'static str,
    /// Removes its data from the database.
    pub clean: &'static str,
}

/// All queues that are measured.
pub const PEERS: &[Peer] = &[GRAPHILE, PG_BOSS, PROCRASTINATE];

pub const GRAPHILE: Peer = Peer {
    name: "graphile-worker",
    script: "graphile-worker.js",
    interpreter: "TASKYARD_NODE",
    clean: "DROP SCHEMA IF EXISTS graphile_worker CASCADE",
};

const PG_BOSS: Peer = Peer {
    name: "pg-boss",
    script: "pg-boss.js",
    interpreter: "TASKYARD_NODE",
    clean: "DROP SCHEMA IF EXISTS pgboss CASCADE",
};

const PROCRASTINATE: Peer = Peer {
    name: "procrastinate",
    script: "procrastinate-worker.py",
    interpreter: "TASKYARD_PEERS_PYTHON",
    clean: "DROP SCHEMA public CASCADE; CREATE SCHEMA public",
};

/// The figures that a peer reports.
#[derive(Deserialize)]
pub struct PeerFigures {
    version: String,
    settings: String,
    put: f64,
    put_batches: f64,
    drain_batches: f64,
    drain: f64,
    pub start: Start,
}

/// Milliseconds from a put to its start.
#[derive(Deserialize)]
pub struct Start {
    pub p50: f64,
    p99: f64,
}

impl PeerFigures {
    pub fn put(&self) -> f64 {
        self.put
    }

    pub fn put_batches(&self) -> f64 {
        self.put_batches
    }

    pub fn drain_batches(&self) -> f64 {
        self.drain_batches
    }

    pub fn drain(&self) -> f64 {
        self.drain
    }
}

/// Runs the same five measurements.
pub fn measure(peer: &Peer, cluster: &Cluster, amounts: Amounts) -> Result<PeerFigures> {
    let figures: PeerFigures = run(peer, cluster, amounts, Value::Null)?;
    let PeerFigures { version, settings, put, put_batches, drain_batches, drain, start } = &figures;
    eprintln!(
        "  {} {version}: put {put:.0}/s, in batches {put_batches:.0}/s, drain in batches \
         {drain_batches:.0}/s, one by one {drain:.0}/s, put to start p50 {:.2} ms, p99 {:.2} ms \
         ({settings})",
        peer.name, start.p50, start.p99,
    );
    Ok(figures)
}

/// Runs a peer's program; its last line is the result.
pub fn run<T: for<'a> Deserialize<'a>>(
    peer: &Peer,
    cluster: &Cluster,
    amounts: Amounts,
    held: Value,
) -> Result<T> {
    let missing = "its packages are not installed; `cargo xtask bench` installs them";
    let told = |name: &str| std::env::var_os(name).map(PathBuf::from).context(missing);
    let settings = json!({
        "socket": cluster.socket(),
        "seconds": amounts.seconds,
        "clients": CLIENTS,
        "batch": BATCH,
        "backlog": amounts.backlog,
        "starts": amounts.starts.min(300),
        "held": held,
    });
    let mut command = Command::new(told(peer.interpreter)?);
    command.arg(told("TASKYARD_PEERS")?.join(peer.script)).arg(settings.to_string());
    command.env("NODE_PATH", told("TASKYARD_PEERS_NODE_MODULES")?);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "its program failed: {}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed.lines().last().ok_or_else(|| anyhow!("its program printed nothing"))?;
    serde_json::from_str(line).with_context(|| format!("its program printed {line}"))
}

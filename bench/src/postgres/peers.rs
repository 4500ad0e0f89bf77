//! Measures other queues on PostgreSQL.

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::{BATCH, CLIENTS, PostgresAmounts};
use crate::peers::{Peer, StartLatency};

/// All queues that are measured, each with the statement that removes its data.
pub const PEERS: &[(Peer, &str)] = &[
    (GRAPHILE, "DROP SCHEMA IF EXISTS graphile_worker CASCADE"),
    (PG_BOSS, "DROP SCHEMA IF EXISTS pgboss CASCADE"),
    (PROCRASTINATE, "DROP SCHEMA public CASCADE; CREATE SCHEMA public"),
    (PGMQ, "DROP SCHEMA IF EXISTS pgmq CASCADE"),
];

pub const GRAPHILE: Peer =
    Peer { name: "graphile-worker", script: "graphile-worker.js", interpreter: "TASKYARD_NODE" };

const PG_BOSS: Peer = Peer { name: "pg-boss", script: "pg-boss.js", interpreter: "TASKYARD_NODE" };

const PROCRASTINATE: Peer = Peer {
    name: "procrastinate",
    script: "procrastinate-worker.py",
    interpreter: "TASKYARD_PEERS_PYTHON",
};

const PGMQ: Peer = Peer { name: "pgmq", script: "pgmq.py", interpreter: "TASKYARD_PEERS_PYTHON" };

/// The figures that a peer reports.
#[derive(Deserialize)]
pub struct PostgresPeerFigures {
    version: String,
    settings: String,
    put: f64,
    /// Not every peer is measured with keys.
    #[serde(default)]
    put_keyed: Option<f64>,
    put_batches: f64,
    drain_batches: f64,
    drain: f64,
    pub start: StartLatency,
}

impl PostgresPeerFigures {
    pub fn put(&self) -> f64 {
        self.put
    }

    pub fn put_keyed(&self) -> Option<f64> {
        self.put_keyed
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
pub fn measure(
    peer: &Peer,
    cluster: &Cluster,
    amounts: PostgresAmounts,
) -> Result<PostgresPeerFigures> {
    let figures: PostgresPeerFigures = run(peer, cluster, amounts, Value::Null)?;
    let PostgresPeerFigures {
        version,
        settings,
        put,
        put_batches,
        drain_batches,
        drain,
        start,
        ..
    } = &figures;
    eprintln!(
        "  {} {version}: put {put:.0}/s, in batches {put_batches:.0}/s, drain in batches \
         {drain_batches:.0}/s, one by one {drain:.0}/s, put to start p50 {:.2} ms, p99 {:.2} ms \
         ({settings})",
        peer.name, start.p50, start.p99,
    );
    Ok(figures)
}

/// Runs a peer's program on a cluster, also while a snapshot is held.
pub fn run<T: for<'a> Deserialize<'a>>(
    peer: &Peer,
    cluster: &Cluster,
    amounts: PostgresAmounts,
    held: Value,
) -> Result<T> {
    peer.run(&json!({
        "socket": cluster.socket(),
        "seconds": amounts.seconds,
        "clients": CLIENTS,
        "batch": BATCH,
        "backlog": amounts.backlog,
        "starts": amounts.ours.starts.min(300),
        "held": held,
    }))
}

//! Tasks on PostgreSQL: Taskyard compared with other queues, on the same server.
//!
//! The server is started for the benchmark and is durable. Taskyard uses the public client, 16 clients
//! that share one engine; the others are programs in the folder `bench`, which `cargo xtask bench`
//! installs with their packages.

mod cluster;
mod peers;
mod servers;
mod snapshot;

use std::path::Path;

use anyhow::{Result, bail};

use super::Size;
use super::load::{self, Load, Measured, TUBE};
use super::peers::{PeerResults, compare};
use super::queue_figures::{self, CLIENTS, QueueAmounts, QueueFigures};
use super::report::{Report, Row, Target};
pub use cluster::programs;
use cluster::{Cluster, SETTINGS_NOTE};
use peers::{PEERS, PostgresPeerFigures};
use servers::ServersAmounts;

/// Tasks in one call where they come in batches.
const BATCH: usize = 1_000;

/// How much to do.
#[derive(Clone, Copy)]
pub struct PostgresAmounts {
    /// For Taskyard.
    ours: QueueAmounts,
    /// How long one measurement of a peer takes.
    seconds: f64,
    /// How many tasks a peer drains in batches.
    backlog: usize,
    /// Rounds under a snapshot, and the tasks in each.
    rounds: usize,
    round: usize,
    /// For several servers.
    servers: ServersAmounts,
}

const FULL: PostgresAmounts = PostgresAmounts {
    ours: QueueAmounts { single: 60_000, batched: 500_000, batch: BATCH, starts: 1_000 },
    seconds: 3.0,
    backlog: 100_000,
    rounds: 20,
    round: 100_000,
    servers: ServersAmounts { single: 40_000, batched: 400_000 },
};
const QUICK: PostgresAmounts = PostgresAmounts {
    ours: QueueAmounts { single: 10_000, batched: 100_000, batch: BATCH, starts: 200 },
    seconds: 1.0,
    backlog: 30_000,
    rounds: 4,
    round: 25_000,
    servers: ServersAmounts { single: 8_000, batched: 80_000 },
};

impl PostgresAmounts {
    fn of(size: Size) -> Self {
        if size.is_quick() { QUICK } else { FULL }
    }
}

/// Measures Taskyard and the others.
pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let Some(cluster) = start(folder)? else { return Ok(()) };
    let amounts = PostgresAmounts::of(size);
    let figures = queue_figures::measure(&cluster.url(), amounts.ours).await?;
    let keyed = put_keyed(&cluster.url(), amounts.ours).await?;
    let mut results = Vec::new();
    for (peer, remove_data) in PEERS {
        cluster.sql("CHECKPOINT")?;
        let measured = peers::measure(peer, &cluster, amounts);
        if let Err(why) = &measured {
            eprintln!("  {} is not measured: {why:#}", peer.name);
        }
        results.push((peer, measured));
        cluster.sql(remove_data)?;
    }
    add_rows(report, &figures, &results);
    add_keyed_row(report, &keyed, &results);
    Ok(())
}

/// Puts with a unique key, one by one.
async fn put_keyed(url: &str, amounts: QueueAmounts) -> Result<Measured> {
    let client = load::open(url).await?;
    let load = Load { clients: CLIENTS, batch: 1, tasks: amounts.single };
    let measured = load::put_each(&client, load, load::keyed_task).await?;
    client.truncate(TUBE).await?;
    client.close().await?;
    Ok(measured)
}

fn add_keyed_row(
    report: &mut Report,
    keyed: &Measured,
    results: &PeerResults<'_, PostgresPeerFigures>,
) {
    let best = results.iter().filter_map(|(_, peer)| peer.as_ref().ok()?.put_keyed());
    let best = best.fold(0.0, f64::max);
    let note = compare(results, |peer| match peer.put_keyed() {
        Some(theirs) => format!("{theirs:.0}/s: {:.1} times", keyed.rate() / theirs),
        None => "not measured with keys".into(),
    });
    report.add(Row {
        what: format!("PostgreSQL put with a key, {CLIENTS} clients"),
        figure: keyed.rate(),
        unit: "tasks/s",
        target: Some(Target::AtLeast(best)),
        note: format!("{}; {note}", keyed.note()),
    });
}

/// Measures Taskyard and the best of the others while a snapshot is open.
pub async fn measure_held(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let Some(cluster) = start(folder)? else { return Ok(()) };
    snapshot::measure(report, &cluster, PostgresAmounts::of(size)).await
}

/// Measures one server and several on one database.
pub async fn measure_servers(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let folder = &folder.canonicalize()?;
    let Some(cluster) = start(folder)? else { return Ok(()) };
    servers::measure(report, &cluster, folder, PostgresAmounts::of(size).servers).await
}

/// A database for a part that needs one.
pub enum Database {
    Given(String),
    Own(Cluster),
}

impl Database {
    pub fn url(&self) -> String {
        match self {
            Database::Given(url) => url.clone(),
            Database::Own(cluster) => cluster.url(),
        }
    }

    /// The first process of its server, if that was started for it.
    pub fn process(&self) -> Option<u32> {
        match self {
            Database::Given(_) => None,
            Database::Own(cluster) => Some(cluster.id()),
        }
    }

    /// The URL of a new database beside it.
    pub fn another(&self, name: &str) -> Result<String> {
        let Database::Own(cluster) = self else {
            bail!("no database is created on a given server")
        };
        cluster.sql(&format!("CREATE DATABASE {name}"))?;
        Ok(cluster.url_of(name))
    }
}

/// The database given by the user, or else one of a server started for it, if possible.
pub fn database(folder: &Path, given: Option<&str>) -> Result<Option<Database>> {
    match given {
        Some(url) => Ok(Some(Database::Given(url.to_owned()))),
        None => Ok(start(folder)?.map(Database::Own)),
    }
}

fn start(folder: &Path) -> Result<Option<Cluster>> {
    let Some(programs) = cluster::programs() else {
        eprintln!("  PostgreSQL is not measured: it is not installed; set TASKYARD_POSTGRES");
        return Ok(None);
    };
    Cluster::start(programs, &folder.join("postgres")).map(Some)
}

fn add_rows(
    report: &mut Report,
    figures: &QueueFigures,
    results: &PeerResults<'_, PostgresPeerFigures>,
) {
    let QueueFigures { put, put_batches, drain_batches, drain, start } = figures;
    let rates = [
        (format!("put, {CLIENTS} clients"), put, 10_000.0, PostgresPeerFigures::put as fn(&_) -> _),
        (
            format!("put, batches of {BATCH}"),
            put_batches,
            120_000.0,
            PostgresPeerFigures::put_batches,
        ),
        ("drain, batches".into(), drain_batches, 45_000.0, PostgresPeerFigures::drain_batches),
        (format!("drain, {CLIENTS} workers"), drain, 5_000.0, PostgresPeerFigures::drain),
    ];
    for (what, measured, wanted, theirs) in rates {
        let note = compare(results, |theirs_all| {
            let theirs = theirs(theirs_all);
            format!("{theirs:.0}/s: {:.1} times", measured.rate() / theirs)
        });
        report.add(Row {
            what: format!("PostgreSQL {what}"),
            figure: measured.rate(),
            unit: "tasks/s",
            target: Some(Target::AtLeast(wanted)),
            note: format!("{}; {note}", measured.note()),
        });
        measured.report_processor_time(report, &format!("PostgreSQL {what}"));
    }
    let millis = |quantile| start.value_at_quantile(quantile) as f64 / 1000.0;
    let note = compare(results, |theirs| format!("{:.2} ms", theirs.start.p50));
    report.add(Row {
        what: "PostgreSQL put to start, p50".into(),
        figure: millis(0.5),
        unit: "ms",
        target: Some(Target::AtMost(2.0)),
        note: format!(
            "{CLIENTS} idle workers; p99 {:.2} ms; {note}; {SETTINGS_NOTE}",
            millis(0.99)
        ),
    });
}

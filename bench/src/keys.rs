//! Puts with a unique key, compared with puts without one, on each store.

use std::path::Path;

use anyhow::{Context, Result};
use taskyard::{Client, Execute};

use super::load::{self, Load, Measured};
use super::queue_figures::{CLIENTS, warm_up};
use super::redis::server::{self as redis_server, RedisServer};
use super::report::{Report, Row, Target};
use super::{Size, postgres, store_in, tarantool};

/// Turns of a comparison.
const TURNS: usize = 4;
/// Tasks in one call where they come in batches.
const BATCH: usize = 100;
/// Part of the rate without keys that is asked.
const ASKED: f64 = 70.0;

pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let embedded = size.tasks / 10;
    one_store(report, "memory", "memory:", 256, embedded).await?;
    one_store(report, "SQLite", &store_in(folder, "keys"), 256, embedded).await?;
    let shared = size.tasks / 50;
    if let Some(database) = postgres::database(folder, None)? {
        one_store(report, "PostgreSQL", &database.url(), CLIENTS, shared).await?;
    }
    match redis_server::program() {
        Some(program) => {
            let server = RedisServer::start(&program, &folder.join("redis"))?;
            one_store(report, "Redis", &server.url(), CLIENTS, shared).await?;
        }
        None => eprintln!("  Redis is not measured: it is not installed; set TASKYARD_REDIS"),
    }
    if let Some(server) = tarantool::server::start(folder)? {
        one_store(report, "Tarantool", &server.url(), 64, shared).await?;
    }
    Ok(())
}

/// How tasks are put.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PutKind {
    Plain,
    Key,
    /// With the random key that clients give to puts which may be repeated; embedded stores need none.
    RandomKey,
}

impl PutKind {
    /// How the report names it, and the part of the rate of plain puts that is asked.
    fn row(self) -> (&'static str, Option<Target>) {
        match self {
            PutKind::Plain => ("put without a key", None),
            PutKind::Key => ("put with a key", Some(Target::AtLeast(ASKED))),
            PutKind::RandomKey => ("put with a random key", Some(Target::AtLeast(ASKED))),
        }
    }

    /// Puts, and then takes and acknowledges all.
    async fn measure(self, client: &Client, load: Load) -> Result<Measured> {
        let client = client.clone().idempotent(self == PutKind::RandomKey);
        let new = if self == PutKind::Key { load::keyed_task } else { load::task };
        let put = load::put_each(&client, load, new).await?;
        load::take_and_ack(&client, Load { batch: BATCH, ..load }).await?;
        Ok(put)
    }
}

/// Puts with and without keys in turns, one by one and in batches. Tasks are taken and acknowledged between turns.
async fn one_store(
    report: &mut Report,
    name: &str,
    url: &str,
    clients: usize,
    tasks: usize,
) -> Result<()> {
    let client = load::open(url).await?;
    warm_up(&client, BATCH).await?;
    let is_shared = client.may_lose_replies();
    let mut kinds = vec![PutKind::Plain, PutKind::Key];
    kinds.extend(is_shared.then_some(PutKind::RandomKey));
    let loads = [
        (Load { clients, batch: 1, tasks }, format!("{clients} clients")),
        (Load { clients: 4, batch: BATCH, tasks: tasks * 4 }, format!("batches of {BATCH}")),
    ];
    for (load, how) in loads {
        let measured = in_turns(&client, load, &kinds).await.context(how.clone())?;
        let plain = measured[0].rate();
        for (kind, put) in kinds.iter().zip(&measured).skip(1) {
            let (what, target) = kind.row();
            report.add(Row {
                what: format!("{what}, {name}, {how}"),
                figure: put.rate() / plain * 100.0,
                unit: "% of without",
                target,
                note: format!("{:.0} and {plain:.0} tasks/s, {TURNS} turns", put.rate()),
            });
        }
    }
    client.close().await?;
    Ok(())
}

/// Measures all kinds in turns, every other time in the opposite order; the first turn is not counted, because databases are slower
/// until their caches and logs have grown.
async fn in_turns(client: &Client, load: Load, kinds: &[PutKind]) -> Result<Vec<Measured>> {
    for kind in kinds {
        kind.measure(client, load).await?;
    }
    let mut all: Vec<Option<Measured>> = kinds.iter().map(|_| None).collect();
    for turn in 0..TURNS {
        let forward = 0..kinds.len();
        let order: Vec<usize> =
            if turn % 2 == 0 { forward.collect() } else { forward.rev().collect() };
        for index in order {
            let put = kinds[index].measure(client, load).await?;
            match &mut all[index] {
                Some(before) => before.add(&put)?,
                none => *none = Some(put),
            }
        }
    }
    Ok(all.into_iter().flatten().collect())
}

//! Puts with a unique key, compared with puts without one, on each store.

use std::path::Path;

use anyhow::{Context, Result};
use taskyard::Client;

use super::load::{self, Load, Measured};
use super::queue_figures::{CLIENTS, warm_up};
use super::redis::server::{self as redis_server, RedisServer};
use super::report::{Report, Row, Target};
use super::tarantool::server::{self as tarantool_server, TarantoolServer};
use super::{Size, postgres, store_in};

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
    match tarantool_server::program() {
        Some(program) => {
            let server = TarantoolServer::start(&program, &folder.join("tarantool"))?;
            one_store(report, "Tarantool", &server.url(), 64, shared).await?;
        }
        None => {
            eprintln!("  Tarantool is not measured: it is not installed; set TASKYARD_TARANTOOL");
        }
    }
    Ok(())
}

/// Puts with and without keys in turns, one by one and in batches. Tasks are taken and acknowledged between turns.
async fn one_store(
    report: &mut Report,
    name: &str,
    url: &str,
    clients: usize,
    tasks: usize,
) -> Result<()> {
    let client = Client::open(url).await?;
    warm_up(&client, BATCH).await?;
    let loads = [
        (Load { clients, batch: 1, tasks }, format!("{clients} clients")),
        (Load { clients: 4, batch: BATCH, tasks: tasks * 4 }, format!("batches of {BATCH}")),
    ];
    for (load, how) in loads {
        // The first turn is not counted: databases are slower until their caches and logs have grown.
        one_turn(&client, load, false).await.context(how.clone())?;
        let (mut with, mut without) = one_turn(&client, load, false).await.context(how.clone())?;
        for turn in 1..TURNS {
            let keyed_first = turn % 2 == 1;
            let (keyed, plain) = one_turn(&client, load, keyed_first).await.context(how.clone())?;
            with.add(&keyed)?;
            without.add(&plain)?;
        }
        report.add(Row {
            what: format!("put with a key, {name}, {how}"),
            figure: with.rate() / without.rate() * 100.0,
            unit: "% of without",
            target: Some(Target::AtLeast(ASKED)),
            note: format!("{:.0} and {:.0} tasks/s, {TURNS} turns", with.rate(), without.rate()),
        });
    }
    client.close().await?;
    Ok(())
}

/// Puts with a key and puts without one, in this order or the other.
async fn one_turn(client: &Client, load: Load, keyed_first: bool) -> Result<(Measured, Measured)> {
    let first = one_load(client, load, keyed_first).await?;
    let second = one_load(client, load, !keyed_first).await?;
    Ok(if keyed_first { (first, second) } else { (second, first) })
}

/// Puts, and then takes and acknowledges all.
async fn one_load(client: &Client, load: Load, keyed: bool) -> Result<Measured> {
    let new = if keyed { load::keyed_task } else { load::task };
    let put = load::put_each(client, load, new).await?;
    load::take_and_ack(client, Load { batch: BATCH, ..load }).await?;
    Ok(put)
}

//! Done tasks that a tube keeps: takes and acks with them, compared with those without, on each store.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use taskyard::{Client, Kind, TubeOptions};

use super::load::{self, Load, Measured, TUBE};
use super::report::{Report, Row, Target};
use super::served::{ServedStore, StoreKind};
use super::{Size, postgres};

/// Turns of a comparison.
const TURNS: usize = 8;

/// Measures these stores; none stands for all that are durable.
pub async fn measure(
    report: &mut Report,
    folder: &Path,
    size: Size,
    only: &[StoreKind],
) -> Result<()> {
    let is_wanted = |kind: &StoreKind| match only {
        [] => *kind != StoreKind::Memory,
        only => only.contains(kind),
    };
    for kind in StoreKind::ALL.into_iter().filter(is_wanted) {
        let Some(stores) = StorePair::start(kind, folder)? else { continue };
        // A database finishes fewer tasks in a second; these are still more than are kept.
        let tasks = if kind.is_embedded() { size.tasks / 10 } else { size.tasks / 50 };
        let load = Load { clients: 256, batch: 1, tasks };
        keep_done(report, kind.name(), &stores.plain, &stores.keeping, load).await?;
    }
    Ok(())
}

/// The URLs of two empty stores of one kind.
struct StorePair {
    plain: String,
    keeping: String,
    /// Their servers, which end with this.
    _servers: Vec<ServedStore>,
}

impl StorePair {
    /// `None` with a note if their database is not installed.
    fn start(kind: StoreKind, folder: &Path) -> Result<Option<Self>> {
        if kind == StoreKind::Postgres {
            let Some(database) = postgres::database(folder, None)? else { return Ok(None) };
            let (plain, keeping) = (database.another("plain")?, database.another("keeping")?);
            let servers = vec![ServedStore::Postgres(database)];
            return Ok(Some(StorePair { plain, keeping, _servers: servers }));
        }
        let start = |name: &str| {
            let folder = folder.join(name);
            std::fs::create_dir_all(&folder)?;
            ServedStore::start(kind, &folder)
        };
        let Some(plain) = start("plain")? else { return Ok(None) };
        let Some(keeping) = start("keeping")? else { return Ok(None) };
        let (plain_url, keeping_url) = (plain.url(), keeping.url());
        let servers = vec![plain, keeping];
        Ok(Some(StorePair { plain: plain_url, keeping: keeping_url, _servers: servers }))
    }
}

/// Takes and acks with and without `keep_done`, in turns. Each turn finishes more tasks than are kept, so that the
/// oldest are removed all the time.
async fn keep_done(
    report: &mut Report,
    name: &str,
    plain: &str,
    keeping: &str,
    load: Load,
) -> Result<()> {
    let (plain, keeping) = (load::open(plain).await?, load::open(keeping).await?);
    plain.create(TUBE, TubeOptions::new(Kind::FifoTtl)).await?;
    let keep_done = Some(Duration::from_secs(3600).into());
    let options = TubeOptions { keep_done, ..TubeOptions::new(Kind::FifoTtl) };
    keeping.create(TUBE, options).await?;
    let mut without = one_turn(&plain, load).await?;
    let mut with = one_turn(&keeping, load).await?;
    for _ in 1..TURNS {
        without.add(&one_turn(&plain, load).await?)?;
        with.add(&one_turn(&keeping, load).await?)?;
    }
    plain.close().await?;
    keeping.close().await?;
    report.add(Row {
        what: format!("take + ack with keep_done, {name}"),
        figure: with.rate() / without.rate() * 100.0,
        unit: "% of without",
        target: Some(Target::AtLeast(60.0)),
        note: format!(
            "{:.0} and {:.0} pairs/s, 256 in flight, {TURNS} turns, 10,000 done tasks kept",
            with.rate(),
            without.rate()
        ),
    });
    without.report_processor_time(report, &format!("take + ack, {name}"));
    with.report_processor_time(report, &format!("take + ack with keep_done, {name}"));
    Ok(())
}

async fn one_turn(client: &Client, load: Load) -> Result<Measured> {
    load::put(client, load).await?;
    load::take_and_ack(client, load).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn both_rates_are_measured() {
        let folder = tempfile::tempdir().unwrap();
        let stores = StorePair::start(StoreKind::Sqlite, folder.path()).unwrap().unwrap();
        let mut report = Report::default();
        let load = Load { clients: 4, batch: 1, tasks: 100 };
        keep_done(&mut report, "SQLite", &stores.plain, &stores.keeping, load).await.unwrap();
        let expected = [
            "take + ack with keep_done, SQLite",
            "take + ack, SQLite: processor time",
            "take + ack with keep_done, SQLite: processor time",
        ];
        assert_eq!(report.names(), expected);
    }
}

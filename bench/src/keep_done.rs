//! Done tasks that a tube keeps: takes and acks with them, compared with those without, on the embedded store and PostgreSQL.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use taskyard::{Client, Kind, TubeOptions};

use super::load::{self, Load, Measured, TUBE};
use super::report::{Report, Row, Target};
use super::{Size, postgres, store_in};

/// Turns of a comparison.
const TURNS: usize = 8;

pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let load = Load { clients: 256, batch: 1, tasks: size.tasks / 10 };
    let (plain, keeping) = (store_in(folder, "plain"), store_in(folder, "keeping"));
    keep_done(report, "SQLite", &plain, &keeping, load).await?;
    if let Some(database) = postgres::database(folder, None)? {
        // A database finishes fewer tasks in a second; these are still more than are kept.
        let load = Load { tasks: load.tasks / 5, ..load };
        let (plain, keeping) = (database.another("plain")?, database.another("keeping")?);
        keep_done(report, "PostgreSQL", &plain, &keeping, load).await?;
    }
    Ok(())
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
        let (plain, keeping) =
            (store_in(folder.path(), "plain"), store_in(folder.path(), "keeping"));
        let mut report = Report::default();
        let load = Load { clients: 4, batch: 1, tasks: 100 };
        keep_done(&mut report, "SQLite", &plain, &keeping, load).await.unwrap();
        let expected = [
            "take + ack with keep_done, SQLite",
            "take + ack, SQLite: processor time",
            "take + ack with keep_done, SQLite: processor time",
        ];
        assert_eq!(report.names(), expected);
    }
}

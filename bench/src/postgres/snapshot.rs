//! Rounds of puts and takes while a snapshot of the database is open.
//!
//! A snapshot that is held open keeps PostgreSQL from removing what was deleted since, in every table. Queues
//! that search among the dead become slower with each task.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;
use taskyard::Client;

use super::super::load::{self, Load, TUBE};
use super::super::report::{Report, Row, Target};
use super::cluster::Cluster;
use super::peers::{self, GRAPHILE};
use super::{BATCH, PostgresAmounts};

/// Rounds without a snapshot, to compare with.
const NORMAL_ROUNDS: usize = 4;

/// The rate of one round, in tasks a second.
#[derive(Clone, Copy, Deserialize)]
struct Round {
    put: f64,
    drain: f64,
}

impl Round {
    /// Tasks a second through both.
    fn whole(self) -> f64 {
        1.0 / (1.0 / self.put + 1.0 / self.drain)
    }
}

/// The output of a peer.
#[derive(Deserialize)]
struct PeerRounds {
    version: String,
    rounds: Vec<Round>,
}

/// The counters of the database.
struct Counted {
    wal_bytes: f64,
    commits: f64,
}

pub async fn measure(
    report: &mut Report,
    cluster: &Cluster,
    amounts: PostgresAmounts,
) -> Result<()> {
    let client = load::open(&cluster.url()).await?;
    let normal = last(&rounds(&client, NORMAL_ROUNDS, amounts.round).await?)?;
    let snapshot = cluster.hold_snapshot()?;
    let before = counted(cluster)?;
    let ours = rounds(&client, amounts.rounds, amounts.round).await?;
    let after = counted(cluster)?;
    let tasks = (amounts.rounds * amounts.round) as f64;
    let costs = format!(
        "{:.0} WAL bytes and {:.4} commits a task; {}",
        (after.wal_bytes - before.wal_bytes) / tasks,
        (after.commits - before.commits) / tasks,
        leftovers(cluster, "taskyard")?,
    );
    drop(snapshot);
    client.close().await?;
    cluster.sql("DROP SCHEMA taskyard CASCADE")?;
    let theirs = peer(cluster, amounts);
    tell(report, amounts, (normal, last(&ours)?), &costs, theirs);
    Ok(())
}

fn tell(
    report: &mut Report,
    amounts: PostgresAmounts,
    (normal, ours): (Round, Round),
    costs: &str,
    theirs: Result<(Round, Round, String)>,
) {
    let share = ours.whole() / normal.whole() * 100.0;
    report.add(Row {
        what: format!("PostgreSQL, snapshot held for {} tasks", amounts.rounds * amounts.round),
        figure: share,
        unit: "% of normal",
        target: Some(Target::AtLeast(70.0)),
        note: format!(
            "put {:.0}/s and drain {:.0}/s instead of {:.0}/s and {:.0}/s; {costs}",
            ours.put, ours.drain, normal.put, normal.drain
        ),
    });
    match theirs {
        Ok((normal, held, note)) => report.add(Row {
            what: "the same compared with graphile-worker".into(),
            figure: ours.whole() / held.whole(),
            unit: "times",
            target: Some(Target::AtLeast(3.0)),
            note: format!(
                "its put {:.0}/s and drain {:.0}/s instead of {:.0}/s and {:.0}/s; {note}",
                held.put, held.drain, normal.put, normal.drain
            ),
        }),
        Err(why) => eprintln!("  graphile-worker is not measured: {why:#}"),
    }
}

/// Puts and drains so many tasks in each round.
async fn rounds(client: &Client, rounds: usize, tasks: usize) -> Result<Vec<Round>> {
    let load = Load { clients: 4, batch: BATCH, tasks };
    let mut all = Vec::with_capacity(rounds);
    client.put_task(TUBE, load::task()?).await?;
    let first = client.take(TUBE, std::time::Duration::ZERO).await?.context("nothing to take")?;
    client.ack(&first).await?;
    for round in 1..=rounds {
        let put = load::put(client, load).await?.rate();
        let drain = load::take_and_ack(client, load).await?.rate();
        eprintln!("  round {round}: put {put:.0}/s, drain {drain:.0}/s");
        all.push(Round { put, drain });
    }
    Ok(all)
}

/// The mean of the last rounds, in time.
fn last(rounds: &[Round]) -> Result<Round> {
    let last = &rounds[rounds.len().saturating_sub(3)..];
    ensure!(!last.is_empty(), "there were no rounds");
    let mean = |of: fn(&Round) -> f64| {
        last.len() as f64 / last.iter().map(|round| 1.0 / of(round)).sum::<f64>()
    };
    Ok(Round { put: mean(|round| round.put), drain: mean(|round| round.drain) })
}

fn counted(cluster: &Cluster) -> Result<Counted> {
    let counted = cluster.sql(
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0'), pg_stat_get_db_xact_commit(oid) \
         FROM pg_database WHERE datname = current_database()",
    )?;
    let (wal_bytes, commits) = counted.split_once('|').context("two columns")?;
    Ok(Counted { wal_bytes: wal_bytes.parse()?, commits: commits.parse()? })
}

/// The dead rows in the tables of a schema after a run.
fn leftovers(cluster: &Cluster, schema: &str) -> Result<String> {
    let left = cluster.sql(&format!(
        "SELECT sum(n_dead_tup), pg_size_pretty(sum(pg_total_relation_size(relid))) \
         FROM pg_stat_user_tables WHERE schemaname = '{schema}'"
    ))?;
    let (dead, size) = left.split_once('|').context("two columns")?;
    Ok(format!("{dead} dead rows, {size} in all tables"))
}

/// The same with graphile-worker.
fn peer(cluster: &Cluster, amounts: PostgresAmounts) -> Result<(Round, Round, String)> {
    let run = |rounds: usize| -> Result<PeerRounds> {
        let held = json!({ "rounds": rounds, "tasks": amounts.round, "seconds": LIMIT });
        peers::run(&GRAPHILE, cluster, amounts, held)
    };
    let normal = last(&run(NORMAL_ROUNDS)?.rounds)?;
    let snapshot = cluster.hold_snapshot()?;
    let begin = Instant::now();
    let before = counted(cluster)?;
    let held = run(amounts.rounds)?;
    let after = counted(cluster)?;
    let tasks = (held.rounds.len() * amounts.round) as f64;
    let note = format!(
        "version {}, {tasks:.0} tasks in {:.0} s; {:.0} WAL bytes and {:.4} commits a task; {}",
        held.version,
        begin.elapsed().as_secs_f64(),
        (after.wal_bytes - before.wal_bytes) / tasks,
        (after.commits - before.commits) / tasks,
        leftovers(cluster, "graphile_worker")?,
    );
    drop(snapshot);
    Ok((normal, last(&held.rounds)?, note))
}

/// How long a peer may take under the snapshot, in seconds; it stops after the round in which that ends.
const LIMIT: u64 = 1_200;

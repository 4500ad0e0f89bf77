//! SQL tasks: from INSERT to start, and how many a second.
//!
//! The scheduler runs in this process; the database is the one given, in a schema that is dropped afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use taskyard_core::service::Service;
use taskyard_sql::connection::{Connection, Query, SessionOptions, connect};
use taskyard_sql::{Config, Conninfo, Source, SqlTasks};
use tokio::task::JoinSet;

use super::processor_time::seconds_used;
use super::report::{Report, Row, Target};

const SCHEMA: &str = "taskyard_bench";
const TABLE: &str = "taskyard_bench.task";
/// How often throughput is measured; the median counts.
const ROUNDS: usize = 3;
/// How many tasks run concurrently: max=7 is seven beside one.
const PARALLEL: usize = 8;
/// How long the idle scheduler is measured.
const IDLE: Duration = Duration::from_secs(5);

/// Runs all measurements and removes all data afterwards.
pub async fn measure(report: &mut Report, url: &str, quick: bool) -> Result<()> {
    let database = Conninfo::parse(url)?;
    let mut bench = Bench::start(&database).await?;
    let measured = bench.all(report, quick).await;
    bench.tasks.stop().await;
    bench.run(&format!("DROP SCHEMA {SCHEMA} CASCADE")).await?;
    measured
}

struct Bench {
    database: Conninfo,
    wire: Connection,
    tasks: SqlTasks,
}

impl Bench {
    async fn start(database: &Conninfo) -> Result<Self> {
        let mut config = Config::single(database);
        for row in &mut config.rows {
            row.names.schema = SCHEMA.into();
        }
        let wire = connect(database, &SessionOptions::default()).await;
        let mut wire = wire.map_err(|error| anyhow!("{}", error.line()))?;
        wire.run(&format!("DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")).await?;
        let tasks = SqlTasks::start(database.clone(), Source::Inline(config), Duration::ZERO)?;
        let mut bench = Bench { database: database.clone(), wire, tasks };
        bench.until(&format!("to_regclass('{TABLE}') IS NOT NULL")).await?;
        Ok(bench)
    }

    async fn all(&mut self, report: &mut Report, quick: bool) -> Result<()> {
        self.latency(report).await?;
        self.idle(report).await?;
        let (fresh, kept) = if quick { (200, 1000) } else { (1000, 2000) };
        let bare = connections(&self.database, fresh).await?;
        let rate = self.median(fresh, "0, '0 sec'").await?;
        let note = format!(
            "{fresh} tasks SELECT 1, max=7, a session for each; {bare:.0}/s connect and query without tasks"
        );
        report.add(at_least("SQL tasks, own sessions", rate, 250.0, note));
        let before = self.median(kept, "100000, '1 hour'").await?;
        let note = format!("{kept} tasks SELECT 1, max=7, sessions reused");
        report.add(at_least("SQL tasks, reused sessions", before, 2000.0, note));
        self.same_second(report).await?;
        self.run(&format!(
            "INSERT INTO {TABLE} (input, state, start, stop, output) SELECT 'SELECT 1', 'DONE', now(), now(), '1' \
             FROM generate_series(1, {})",
            if quick { 100_000 } else { 1_000_000 }
        ))
        .await?;
        let after = self.median(kept, "100000, '1 hour'").await?;
        report.add(Row {
            what: "SQL tasks, slower with many finished".into(),
            figure: before / after,
            unit: "times",
            target: Some(Target::AtMost(1.3)),
            note: format!("{after:.0} tasks/s beside {before:.0} on an empty table"),
        });
        Ok(())
    }

    /// From the INSERT to the time that the query reads.
    async fn latency(&mut self, report: &mut Report) -> Result<()> {
        for _ in 0..300 {
            let insert = format!("INSERT INTO {TABLE} (input) VALUES ('SELECT clock_timestamp()')");
            self.run(&insert).await?;
            self.drained().await?;
        }
        for (share, most) in [(50, 10.0), (95, 50.0)] {
            let millis = self
                .number(&format!(
                    "SELECT 1000 * percentile_cont({share} / 100.0) WITHIN GROUP (ORDER BY \
                     extract(epoch FROM output::timestamptz - plan)) FROM {TABLE}"
                ))
                .await?;
            report.add(Row {
                what: format!("SQL task, INSERT to start, p{share}"),
                figure: millis,
                unit: "ms",
                target: Some(Target::AtMost(most)),
                note: "300 tasks one by one, default settings, own sessions".into(),
            });
        }
        Ok(())
    }

    /// The cost of an idle scheduler.
    async fn idle(&mut self, report: &mut Report) -> Result<()> {
        let before = seconds_used(std::process::id())?;
        tokio::time::sleep(IDLE).await;
        let used = seconds_used(std::process::id())? - before;
        report.add(Row {
            what: "SQL tasks, idle scheduler".into(),
            figure: used / IDLE.as_secs_f64() * 100.0,
            unit: "% of a core",
            target: Some(Target::AtMost(1.0)),
            note: "this process, without PostgreSQL".into(),
        });
        Ok(())
    }

    async fn median(&mut self, tasks: usize, reuse: &str) -> Result<f64> {
        let mut rates = Vec::new();
        for _ in 0..ROUNDS {
            rates.push(self.round(tasks, reuse).await?);
        }
        rates.sort_by(f64::total_cmp);
        Ok(rates[ROUNDS / 2])
    }

    /// Tasks a second, from the end of the INSERT to the end of the last task.
    async fn round(&mut self, tasks: usize, reuse: &str) -> Result<f64> {
        let first = self.number(&format!("SELECT coalesce(max(id), 0) FROM {TABLE}")).await?;
        self.run(&format!(
            "INSERT INTO {TABLE} (input, max, count, live) SELECT 'SELECT 1', 7, {reuse} \
             FROM generate_series(1, {tasks})"
        ))
        .await?;
        let begun = self.number("SELECT extract(epoch FROM clock_timestamp())").await?;
        self.drained().await?;
        let of = format!("FROM {TABLE} WHERE id > {first} AND state = 'DONE' AND output = '1'");
        let done = self.number(&format!("SELECT count(*) {of}")).await?;
        ensure!(done == tasks as f64, "{done} of {tasks} tasks are done");
        let ended = self.number(&format!("SELECT extract(epoch FROM max(stop)) {of}")).await?;
        Ok(tasks as f64 / (ended - begun))
    }

    async fn same_second(&mut self, report: &mut Report) -> Result<()> {
        self.run(&format!(
            "INSERT INTO {TABLE} (input, max, count, live, plan, \"group\") SELECT 'SELECT 1', 7, 100000, '1 hour', \
             date_trunc('second', now()) + '3 sec'::interval, 'second' FROM generate_series(1, 10000)"
        ))
        .await?;
        self.drained().await?;
        let seconds = format!(
            "SELECT extract(epoch FROM max(start) - min(plan)) FROM {TABLE} WHERE \"group\" = 'second'"
        );
        report.add(Row {
            what: "SQL tasks, 10,000 for one second".into(),
            figure: self.number(&seconds).await?,
            unit: "s",
            target: Some(Target::AtMost(5.0)),
            note: "from their plan to the start of the last, max=7".into(),
        });
        Ok(())
    }

    async fn drained(&mut self) -> Result<()> {
        self.until(&format!(
            "NOT EXISTS (SELECT FROM {TABLE} WHERE state = 'PLAN') AND \
             NOT EXISTS (SELECT FROM {TABLE} WHERE state IN ('TAKE', 'WORK'))"
        ))
        .await
    }

    async fn until(&mut self, sql: &str) -> Result<()> {
        while self.number(&format!("SELECT ({sql})::integer")).await? == 0.0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn number(&mut self, sql: &str) -> Result<f64> {
        let rows = self.wire.query(Query::new(sql, [])).await?;
        let number = rows.first().and_then(|row| row.parsed(0));
        number.with_context(|| format!("no number: {sql}"))
    }

    async fn run(&mut self, sql: &str) -> Result<()> {
        Ok(self.wire.run(sql).await?)
    }
}

/// The rate of the server itself: eight at a time connect, query and disconnect.
async fn connections(database: &Conninfo, count: usize) -> Result<f64> {
    let begun = Instant::now();
    let mut eight = JoinSet::new();
    for _ in 0..PARALLEL {
        let database = database.clone();
        eight.spawn(async move {
            for _ in 0..count / PARALLEL {
                let wire = connect(&database, &SessionOptions::default()).await;
                wire.map_err(|error| anyhow!("{}", error.line()))?.run("SELECT 1").await?;
            }
            Ok::<(), anyhow::Error>(())
        });
    }
    while let Some(done) = eight.join_next().await {
        done??;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

fn at_least(what: &str, figure: f64, least: f64, note: String) -> Row {
    let target = Some(Target::AtLeast(least));
    Row { what: what.into(), figure, unit: "tasks/s", target, note }
}

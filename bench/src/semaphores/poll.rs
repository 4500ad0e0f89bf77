//! A polling loop for comparison: it checks every semaphore once a minute.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::super::report::{Report, Row};

/// Tables, the round, and 100 semaphores with 1,000 holders and about as many waiters each.
const PREPARE: &str = include_str!("poll.sql");
/// One round, as long as it takes in the database, in milliseconds; grants are freed before it.
const ROUND: &str = "
SET search_path = taskyard_bench_poll;
DELETE FROM semaphore_task WHERE status <> 'WAIT' AND task_id % 50 = 1;
CREATE TEMP TABLE took AS SELECT clock_timestamp() AS begun;
SELECT round_over_all();
SELECT extract(epoch FROM clock_timestamp() - begun) * 1000 FROM took;";
const SEMAPHORES: f64 = 100.0;
/// The interval of the loop, in milliseconds.
const EVERY: f64 = 60_000.0;

/// Measures a round in this database, and reports how long a free grant waits.
pub fn measure(report: &mut Report, psql: &Path, url: &str) -> Result<()> {
    run_sql(psql, url, PREPARE)?;
    let said = run_sql(psql, url, ROUND)?;
    let last = said.lines().last().context("psql printed nothing")?;
    let millis: f64 = last.trim().parse().with_context(|| format!("not a time: {last}"))?;
    run_sql(psql, url, "DROP SCHEMA taskyard_bench_poll CASCADE")?;
    let wait = EVERY / 2.0 + millis / 2.0;
    report.add(Row {
        what: "a loop once a minute: from a release to the next grant, mean".into(),
        figure: wait,
        unit: "ms",
        target: None,
        note: format!(
            "a round over {SEMAPHORES} semaphores with 1,000 holders each took {millis:.0} ms; half a minute and half \
             of that, in the same database"
        ),
    });
    report.add(Row {
        what: "a loop once a minute: one semaphore in a round".into(),
        figure: millis / SEMAPHORES,
        unit: "ms",
        target: None,
        note: format!(
            "10,000 semaphores would take {:.1} s of each minute",
            millis / SEMAPHORES * 10.0
        ),
    });
    Ok(())
}

fn run_sql(psql: &Path, url: &str, text: &str) -> Result<String> {
    let mut command = Command::new(psql);
    command.args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-c", text, url]);
    // One text with several statements is one transaction: what the round does is on disk once, as for the loop.
    let output = command.output().with_context(|| format!("cannot run {}", psql.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the loop once a minute failed: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

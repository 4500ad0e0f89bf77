//! Measures duration classes: the cost of a decision, the start of a program, the cost of many waiting clients.

mod always_busy;
mod gateway;
pub mod over_redis;
mod waiting_clients;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use taskyard::Http;
use taskyard_core::classes::estimate::StartModel;
use taskyard_core::classes::{Classes, Rules, RunRequest, TaskKind, Ticket};
use taskyard_core::{Span, Timestamp};

use super::report::{Report, Row, Target};
use gateway::{Gateway, Line};

/// Tasks that wait while decisions are made.
const QUEUED: u64 = 100_000;
/// Backends of the pool that decides.
const BACKENDS: u32 = 64;
/// Decisions that are timed.
const DECISIONS: usize = 1_000;
/// Programs that are started, one after the other.
const STARTS: usize = 200;

pub async fn measure(report: &mut Report) -> Result<()> {
    decisions(report)?;
    starts(report).await?;
    always_busy::measure(report).await?;
    waiting_clients::measure(report).await
}

/// A pool with a long queue of every kind, and its running tasks.
fn crowded(now: Timestamp) -> (Classes, Vec<Ticket>) {
    let mut classes = Classes::new(Rules::default(), 1);
    classes.set_backends(now, BACKENDS);
    let asks = [3, 10, 30].map(|seconds| RunRequest::Timed(Span::from_secs(seconds)));
    let asks = [asks[0], asks[1], asks[2], RunRequest::Default];
    let mut running = Vec::new();
    for ticket in 0..QUEUED + u64::from(BACKENDS) {
        let ask = asks[(ticket % 4) as usize];
        let decisions = classes.arrive(now, Ticket(ticket), ask);
        running.extend(decisions.iter().map(|decision| decision.ticket()));
    }
    running.sort_unstable();
    running.dedup();
    (classes, running)
}

fn decisions(report: &mut Report) -> Result<()> {
    let now = Timestamp::from_micros(1_000_000);
    let (mut classes, mut running) = crowded(now);
    let mut worst = Duration::ZERO;
    let begin = Instant::now();
    for _ in 0..DECISIONS {
        let ended = running.pop().context("something runs")?;
        let one = Instant::now();
        let decisions = classes.remove(now, ended);
        worst = worst.max(one.elapsed());
        running.extend(decisions.iter().map(|decision| decision.ticket()));
    }
    let mean = begin.elapsed().as_secs_f64() / DECISIONS as f64;
    ensure!(classes.queued() as u64 > QUEUED - DECISIONS as u64 * 2, "the queue is too short");
    report.add(Row {
        what: format!("pool: a decision with {QUEUED} queued"),
        figure: worst.as_secs_f64() * 1e3,
        unit: "ms",
        target: Some(Target::AtMost(1.0)),
        note: format!("the slowest of {DECISIONS}; {:.1} us in the mean", mean * 1e6),
    });
    let mut model = StartModel::default();
    for (class, seconds) in [(0, 1), (1, 4), (2, 12)] {
        model.add_run(now, TaskKind::Explicit, class, Span::from_secs(seconds));
    }
    model.add_run(now, TaskKind::Default, 0, Span::from_secs(2));
    let begin = Instant::now();
    let waiting = classes.waiting(now, Span::from_micros(500_000), &model);
    let took = begin.elapsed().as_secs_f64() * 1e3;
    ensure!(
        waiting.iter().all(|one| one.estimate.is_some_and(|one| one.likely.is_some())),
        "every task has an estimate"
    );
    report.add(Row {
        what: format!("pool: all estimates of {} queued", waiting.len()),
        figure: took,
        unit: "ms",
        target: Some(Target::AtMost(200.0)),
        note: "p50, p90, the guaranteed bound and the reason for each".into(),
    });
    Ok(())
}

/// Programs that end at once, one after the other, in a pool in a separate process.
async fn starts(report: &mut Report) -> Result<()> {
    let gateway = Gateway::start("backends: 2\nprograms: {none: {command: [/bin/true]}}\n")?;
    let mut took = Vec::new();
    for _ in 0..STARTS {
        let mut line = Line::open(&gateway.address, "none").await?;
        let begin = Instant::now();
        line.say_start().await?;
        let mut text = line.text().await?;
        while text.starts_with("queue ") {
            text = line.text().await?;
        }
        ensure!(text.starts_with("output "), "the program did not start: {text}");
        took.push(begin.elapsed());
        while !text.starts_with("complete ") {
            text = line.text().await?;
        }
        ensure!(text == "complete {}", "it failed: {text}");
    }
    let http = Http::new(&format!("http://{}", gateway.address))?;
    let status: Value = http.get("/pool/status").await?;
    // A start that was tried again would hide what the first try took.
    let again = &status["counts"]["requeued"];
    ensure!(again == 0, "{again} of {STARTS} programs did not begin at once");
    took.sort_unstable();
    let gaps = status["not_isolated"].as_array().map_or(0, Vec::len);
    let ready = &status["sandboxes"]["used"];
    report.add(Row {
        what: "pool: arrival to start of the process, p50".into(),
        figure: took[STARTS / 2].as_secs_f64() * 1e3,
        unit: "ms",
        target: Some(Target::AtMost(5.0)),
        note: format!(
            "p99 {:.1} ms; from a client's start to the frame that its program runs, a free backend; {ready} of \
             {STARTS} started in a ready sandbox; {gaps} gaps in the isolation, each started at once",
            took[STARTS * 99 / 100].as_secs_f64() * 1e3
        ),
    });
    Ok(())
}

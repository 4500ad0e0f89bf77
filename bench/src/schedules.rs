//! Schedules: what idle ones cost a server, and how long it takes until the tasks of many that are due together are put.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use taskyard::{Client, Iproto, Kind, Schedule, Span, Timestamp, TimingRule, TubeOptions};
use taskyard_core::{Command, Execute, ScheduleCommand};

use super::load::{self, TUBE};
use super::processor_time::seconds_used;
use super::progress::Progress;
use super::report::{Report, Row, Target};
use super::server_process::ServerProcess;
use super::{Size, store_in};

/// Schedules that are set with one call.
const BATCH: usize = 500;
/// How long a server may work on what it was asked for, before it is idle.
const WORK_TIME_MAX: Duration = Duration::from_secs(3);
/// The time between two rounds of schedules that are due together, in seconds. They are set in the first one.
const ROUND: u64 = 15;
/// How often the number of tasks is read.
const POLL: Duration = Duration::from_millis(5);
/// The longest time that a round may take.
const PATIENCE: Duration = Duration::from_secs(ROUND);

/// How much of each to measure.
struct ScheduleSize {
    idle: usize,
    idle_time: Duration,
    due: usize,
    rounds: u64,
}

pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let size = match size.is_quick() {
        true => {
            ScheduleSize { idle: 10_000, idle_time: Duration::from_secs(5), due: 1_000, rounds: 1 }
        }
        false => ScheduleSize {
            idle: 100_000,
            idle_time: Duration::from_secs(20),
            due: 10_000,
            rounds: 3,
        },
    };
    let folder = &folder.canonicalize()?;
    idle(report, folder, ("memory", "memory:"), &size).await?;
    idle(report, folder, ("SQLite", &store_in(folder, "idle")), &size).await?;
    due(report, folder, ("SQLite", &store_in(folder, "due")), &size).await
}

/// A server with an empty tube, and its clients.
struct ScheduleServer {
    process: ServerProcess,
    client: Client,
    iproto: Iproto,
}

impl ScheduleServer {
    async fn start(folder: &Path, store: &str) -> Result<Self> {
        let args = ["--iproto", "127.0.0.1:0", "--store", store];
        let process = ServerProcess::start(&crate::product()?, folder, args)?;
        let client = Client::open(process.url()?).await?;
        let iproto = Iproto::new(process.iproto().context("it does not speak iproto")?)?;
        client.create(TUBE, TubeOptions::new(Kind::FifoTtl)).await?;
        Ok(ScheduleServer { process, client, iproto })
    }

    /// Sets so many schedules with this rule.
    async fn set(&self, count: usize, rule: &TimingRule) -> Result<()> {
        let progress = Progress::new("schedules set", count);
        for first in (0..count).step_by(BATCH) {
            let set = |number: usize| -> Result<Command> {
                let name = format!("schedule {number}");
                let schedule = Schedule::new(&name, TUBE, load::task()?, rule)?;
                let set = ScheduleCommand::Set { schedule, only_new: true, keep_paused: false };
                Ok(Command::Schedule(Box::new(set)))
            };
            let sets = (first..count.min(first + BATCH)).map(set).collect::<Result<_>>()?;
            for reply in self.iproto.execute(sets).await {
                reply?;
            }
            progress.show(first + BATCH);
        }
        Ok(())
    }

    /// The share of one core that it uses while nothing is asked of it, in percent.
    async fn idle_share(&self, time: Duration) -> Result<f64> {
        tokio::time::sleep(WORK_TIME_MAX).await;
        let progress = Progress::new("seconds idle", time.as_secs() as usize);
        let (begin, used) = (Instant::now(), seconds_used(self.process.id())?);
        for second in 0..time.as_secs() {
            progress.show(second as usize);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let used = seconds_used(self.process.id())? - used;
        Ok(used / begin.elapsed().as_secs_f64() * 100.0)
    }

    /// How many seconds after this moment so many more tasks are there, and the first of them.
    async fn put_after(&self, due: Timestamp, before: u64, more: u64) -> Result<(f64, f64)> {
        let mut first = None;
        let begin = Instant::now();
        loop {
            let ready = self.client.stats(TUBE).await?.tasks.ready;
            let late = (wall()?.as_micros() - due.as_micros()) as f64 / 1e6;
            if ready > before {
                first.get_or_insert(late);
            }
            if ready >= before + more {
                ensure!(ready == before + more, "{} tasks too many", ready - before - more);
                return Ok((late, first.unwrap_or(late)));
            }
            ensure!(begin.elapsed() < PATIENCE, "only {} of {more} were put", ready - before);
            tokio::time::sleep(POLL).await;
        }
    }
}

fn wall() -> Result<Timestamp> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    Ok(Timestamp::from_micros(i64::try_from(now)?))
}

/// The processor time of a server with many schedules that are not due.
async fn idle(
    report: &mut Report,
    folder: &Path,
    (name, store): (&str, &str),
    size: &ScheduleSize,
) -> Result<()> {
    let server = ScheduleServer::start(folder, store).await?;
    let without = server.idle_share(size.idle_time).await?;
    let yearly = TimingRule::Cron { cron: "@yearly".into(), zone: "UTC".into() };
    server.set(size.idle, &yearly).await?;
    let with = server.idle_share(size.idle_time).await?;
    let there = server.client.schedules().list().await?.len();
    ensure!(there == size.idle, "{there} schedules are there");
    report.add(Row {
        what: format!("{} idle schedules, {name}", size.idle),
        figure: with,
        unit: "% of a core",
        target: Some(Target::AtMost(1.0)),
        note: format!("over {} s; without schedules {without:.2} %", size.idle_time.as_secs()),
    });
    Ok(())
}

/// The time from when many schedules are due until all their tasks are put.
async fn due(
    report: &mut Report,
    folder: &Path,
    (name, store): (&str, &str),
    size: &ScheduleSize,
) -> Result<()> {
    let server = ScheduleServer::start(folder, store).await?;
    let start = wall()? + Span::from_secs(ROUND);
    let rule = TimingRule::Every { every: Span::from_secs(ROUND), start: Some(start) };
    server.set(size.due, &rule).await?;
    ensure!(wall()? < start, "setting {} schedules took over {ROUND} s", size.due);
    let (count, mut slowest) = (size.due as u64, (0_f64, 0_f64));
    for round in 0..size.rounds {
        let due = start + Span::from_secs(round * ROUND);
        let wait = due.as_micros().saturating_sub(wall()?.as_micros());
        tokio::time::sleep(Duration::from_micros(wait.max(0) as u64)).await;
        let (all, first) = server.put_after(due, count * round, count).await?;
        if all > slowest.0 {
            slowest = (all, first);
        }
    }
    let skipped: u64 = server.client.schedules().list().await?.iter().map(|one| one.skipped).sum();
    ensure!(skipped == 0, "{skipped} times were skipped");
    report.add(Row {
        what: format!("{} schedules due together, {name}", size.due),
        figure: slowest.0,
        unit: "s until all are put",
        target: Some(Target::AtMost(2.0)),
        note: format!(
            "slowest of {} rounds, its first tasks after {:.2} s",
            size.rounds, slowest.1
        ),
    });
    Ok(())
}

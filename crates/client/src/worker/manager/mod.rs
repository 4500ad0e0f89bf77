//! A manager: looks at the queues and at its workers, and tells them where their processors go. [`Manager`] does it
//! for workers of its own process, [`ManagerService`] for all that report to a store.
//!
//! It may die at any time: workers go on with the last plan, and without any they go round robin.

use std::collections::BTreeMap;
use std::time::Duration;

use taskyard_core::{Span, Timestamp};

use taskyard_wire::http::Shares;

use super::roster::Plan;
use super::worker::Worker;

use groups::{Groups, Member};

mod groups;
mod planner;
mod service;
mod term;

pub use planner::{Demand, Planner};
pub use service::ManagerService;
pub(super) use term::{carried, letters_tube, put_letter, tube};

/// How often it looks.
pub(super) const PERIOD: Span = Span::from_secs(5);

/// How far the clock of whoever made a plan may be ahead of ours.
const AHEAD_MAX: Span = Span::from_secs(24 * 3600);

/// Plans for workers of one store in this process.
pub struct Manager {
    workers: Vec<Worker>,
    targets: BTreeMap<u32, Duration>,
    groups: Groups,
    /// What each worker was told last and follows, by worker.
    told: BTreeMap<String, Shares>,
    version: u64,
}

impl Manager {
    /// A manager of these workers.
    pub fn new(workers: impl IntoIterator<Item = Worker>) -> Self {
        Manager {
            workers: workers.into_iter().collect(),
            targets: BTreeMap::new(),
            groups: Groups::default(),
            told: BTreeMap::new(),
            version: 0,
        }
    }

    /// Tasks of this queue should be done so soon, whatever the settings of its workers say.
    pub fn target_latency(mut self, queue_num: u32, target: Duration) -> Self {
        self.targets.insert(queue_num, target);
        self
    }

    /// Plans every five seconds until the first of its workers has ended.
    pub async fn run(mut self) {
        let Some(first) = self.workers.first().cloned() else { return };
        loop {
            let next = first.store().now() + PERIOD;
            if let Err(error) = self.evaluate().await {
                tracing::warn!(%error, "cannot plan; the workers go on as they did");
            }
            tokio::select! {
                () = first.store().timer().sleep_until(next) => {}
                () = first.ended() => return,
            }
        }
    }

    /// Looks once; says whether a worker got a new plan.
    pub async fn evaluate(&mut self) -> crate::Result<bool> {
        let Some(first) = self.workers.first() else { return Ok(false) };
        let demands = self.demands().await?;
        let plan = self.groups.plan(self.workers.iter().map(member), &demands);
        self.version = self.version.max(version_at(first.store().now())) + 1;
        let mut news = false;
        for worker in &self.workers {
            let Some(shares) = plan.get(worker.id()) else { continue };
            if self.told.get(worker.id()) == Some(shares) {
                continue;
            }
            let share = shares.iter().map(|(num, count)| (*num, *count as usize)).collect();
            match worker.apply(Plan { version: self.version, share }) {
                Ok(()) => {
                    self.told.insert(worker.id().into(), shares.clone());
                    news = true;
                }
                // It is told again the next time.
                Err(error) => {
                    self.told.remove(worker.id());
                    tracing::warn!(worker = worker.name(), %error, "a plan was refused");
                }
            }
        }
        Ok(news)
    }

    async fn demands(&self) -> crate::Result<BTreeMap<u32, Demand>> {
        let mut demands: BTreeMap<u32, Demand> = BTreeMap::new();
        for worker in &self.workers {
            let (stats, settings) = (worker.store().stats().await?, worker.settings());
            for (report, stat) in worker.report().into_iter().zip(stats) {
                let num = report.queue_num;
                let target = self.targets.get(&num).copied();
                let target = target.unwrap_or_else(|| settings.target_of(num)).as_secs_f64();
                let demand = demands.entry(num).or_insert(Demand {
                    ready: stat.tasks.ready,
                    seconds_per_task: None,
                    target_latency: target,
                });
                // Of several workers the slowest and the most impatient are believed.
                let slowest = demand.seconds_per_task.into_iter().chain(report.seconds_per_task);
                demand.seconds_per_task = slowest.reduce(f64::max);
                demand.target_latency = demand.target_latency.min(target);
            }
        }
        Ok(demands)
    }
}

fn member(worker: &Worker) -> Member {
    Member {
        id: worker.id().into(),
        processors: worker.settings().max_processors,
        queues: worker.report().iter().map(|report| report.queue_num).collect(),
    }
}

/// A manager that begins anew has larger numbers than the one before it.
fn version_at(now: Timestamp) -> u64 {
    u64::try_from(now.as_micros()).unwrap_or_default()
}

/// Whether a plan can have this number: one letter with a huge one would be the last plan that anybody follows.
pub(super) fn is_plausible(version: u64, now: Timestamp) -> bool {
    version <= version_at(now + AHEAD_MAX)
}

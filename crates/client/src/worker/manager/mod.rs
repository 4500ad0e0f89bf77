//! A manager: looks at the queues and at its workers, and tells them where their processors go. [`Manager`] does it
//! for workers of its own process, [`ManagerService`] for all that report to a store.
//!
//! It may die at any time: workers go on with the last plan, and without any they go round robin.

use std::collections::BTreeMap;
use std::time::Duration;

use taskyard_core::{Span, Timestamp};

use super::roster::Plan;
use super::settings::TARGET_LATENCY;
use super::worker::Worker;

mod groups;
mod planner;
mod service;
mod term;

pub use planner::{Demand, Planner};
pub use service::ManagerService;
pub(super) use term::{carried, letters_tube, put_letter, tube};

/// How often it looks.
pub(super) const PERIOD: Span = Span::from_secs(5);

/// Plans for workers of one store in this process.
pub struct Manager {
    workers: Vec<Worker>,
    targets: BTreeMap<u32, Duration>,
    planner: Planner,
    version: u64,
}

impl Manager {
    /// A manager of these workers.
    pub fn new(workers: impl IntoIterator<Item = Worker>) -> Self {
        Manager {
            workers: workers.into_iter().collect(),
            targets: BTreeMap::new(),
            planner: Planner::default(),
            version: 0,
        }
    }

    /// Tasks of this queue should be done so soon, instead of within a second.
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

    /// Looks once; says whether the workers got a new plan.
    pub async fn evaluate(&mut self) -> crate::Result<bool> {
        let demands = self.demands().await?;
        let room = self.workers.iter().map(|worker| worker.settings().max_processors);
        let Some(mut share) = self.planner.evaluate(&demands, room.sum()) else { return Ok(false) };
        self.version = self.version.max(version_at(self.workers[0].store().now())) + 1;
        for worker in &self.workers {
            let part = part_of(worker, &mut share);
            if let Err(error) = worker.apply(Plan { version: self.version, share: part }) {
                tracing::warn!(worker = worker.name(), %error, "a plan was refused");
            }
        }
        Ok(true)
    }

    async fn demands(&self) -> crate::Result<BTreeMap<u32, Demand>> {
        let mut demands: BTreeMap<u32, Demand> = BTreeMap::new();
        for worker in &self.workers {
            let stats = worker.store().stats().await?;
            for (report, stat) in worker.report().into_iter().zip(stats) {
                let target = self.targets.get(&report.queue_num).copied().unwrap_or(TARGET_LATENCY);
                let demand = demands.entry(report.queue_num).or_insert(Demand {
                    ready: stat.tasks.ready,
                    seconds_per_task: None,
                    target_latency: target.as_secs_f64(),
                });
                // Of several workers the slowest is believed.
                let slowest = demand.seconds_per_task.into_iter().chain(report.seconds_per_task);
                demand.seconds_per_task = slowest.reduce(f64::max);
            }
        }
        Ok(demands)
    }
}

/// Takes what fits into one worker out of what is to be given.
fn part_of(worker: &Worker, share: &mut BTreeMap<u32, usize>) -> BTreeMap<u32, usize> {
    let mut left = worker.settings().max_processors;
    let mut part = BTreeMap::new();
    for report in worker.report() {
        let Some(wanted) = share.get_mut(&report.queue_num) else { continue };
        let given = left.min(*wanted);
        *wanted -= given;
        left -= given;
        part.insert(report.queue_num, given);
    }
    part
}

/// A manager that begins anew has larger numbers than the one before it.
fn version_at(now: Timestamp) -> u64 {
    u64::try_from(now.as_micros()).unwrap_or_default()
}

//! Distributes the processors of workers over their queues. [`Manager`] plans for workers of its own process,
//! [`ManagerService`] for all workers that report to a store.
//!
//! A manager may fail at any time: workers keep their last plan, and without a plan they serve their queues round robin.

use std::collections::BTreeMap;
use std::time::Duration;

use taskyard_core::{Span, Timestamp};
use taskyard_wire::http::Shares;

use crate::queue_selector::Plan;
use crate::worker::Worker;

use group_planner::{GroupPlanner, PlannedWorker};

mod group_planner;
mod leadership;
mod planner;
mod service;

pub(crate) use leadership::{create_message_tube, message_of, put_message, tube};
pub use planner::{Planner, QueueDemand};
pub use service::ManagerService;

/// How often a manager plans and a worker reports.
pub(crate) const PERIOD: Span = Span::from_secs(5);

/// How far the clock of the author of a plan may be ahead of ours.
const AHEAD_MAX: Span = Span::from_secs(24 * 3600);

/// Plans for workers of one store in this process.
pub struct Manager {
    workers: Vec<Worker>,
    targets: BTreeMap<u32, Duration>,
    planner: GroupPlanner,
    /// The last plan that each worker accepted, by worker.
    assigned: BTreeMap<String, Shares>,
    version: u64,
}

impl Manager {
    /// A manager of these workers.
    pub fn new(workers: impl IntoIterator<Item = Worker>) -> Self {
        Manager {
            workers: workers.into_iter().collect(),
            targets: BTreeMap::new(),
            planner: GroupPlanner::default(),
            assigned: BTreeMap::new(),
            version: 0,
        }
    }

    /// Sets how soon tasks of this queue should be done, instead of the settings of its workers.
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
                tracing::warn!(%error, "cannot plan; workers keep their last plan");
            }
            tokio::select! {
                biased;
                () = first.ended() => return,
                () = first.store().timer().sleep_until(next) => {}
            }
        }
    }

    /// Plans once; returns whether a worker got a new plan.
    pub async fn evaluate(&mut self) -> taskyard_core::Result<bool> {
        let Some(first) = self.workers.first() else { return Ok(false) };
        let demands = self.demands().await?;
        let plan = self.planner.plan(self.workers.iter().map(planned_worker), &demands);
        self.version = self.version.max(version_at(first.store().now())) + 1;
        let mut changed = false;
        for worker in &self.workers {
            let Some(shares) = plan.get(worker.id()) else { continue };
            if self.assigned.get(worker.id()) == Some(shares) {
                continue;
            }
            let share = shares.iter().map(|(num, count)| (*num, *count as usize)).collect();
            match worker.apply(Plan { version: self.version, share }) {
                Ok(()) => {
                    self.assigned.insert(worker.id().into(), shares.clone());
                    changed = true;
                }
                // The next evaluation tries again.
                Err(error) => {
                    self.assigned.remove(worker.id());
                    tracing::warn!(worker = worker.name(), %error, "the worker rejected its plan; retrying at the next evaluation");
                }
            }
        }
        Ok(changed)
    }

    async fn demands(&self) -> taskyard_core::Result<BTreeMap<u32, QueueDemand>> {
        let mut demands: BTreeMap<u32, QueueDemand> = BTreeMap::new();
        for worker in &self.workers {
            let (stats, settings) = (worker.store().stats().await?, worker.settings());
            for (report, stat) in worker.report().into_iter().zip(stats) {
                let num = report.queue_num;
                let target = self.targets.get(&num).copied();
                let target =
                    target.unwrap_or_else(|| settings.target_latency_of(num)).as_secs_f64();
                let demand = demands.entry(num).or_insert(QueueDemand {
                    ready: stat.tasks.ready,
                    seconds_per_task: None,
                    target_latency: target,
                });
                // Of several workers the slowest time and the shortest target count.
                let slowest = demand.seconds_per_task.into_iter().chain(report.seconds_per_task);
                demand.seconds_per_task = slowest.reduce(f64::max);
                demand.target_latency = demand.target_latency.min(target);
            }
        }
        Ok(demands)
    }
}

fn planned_worker(worker: &Worker) -> PlannedWorker {
    PlannedWorker {
        id: worker.id().into(),
        processors: worker.settings().max_processors,
        queues: worker.report().iter().map(|report| report.queue_num).collect(),
    }
}

/// The smallest version of a plan made now: a restarted manager continues with larger versions than before.
fn version_at(now: Timestamp) -> u64 {
    u64::try_from(now.as_micros()).unwrap_or_default()
}

/// Whether a plan can have this version: after one message with a huge version no worker would accept another plan.
pub(crate) fn is_plausible(version: u64, now: Timestamp) -> bool {
    version <= version_at(now + AHEAD_MAX)
}

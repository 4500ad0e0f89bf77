//! The active manager: holds the leader task, the latest report of each worker and the plan, all as leased tasks.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use taskyard_core::{
    Command, Error as Refusal, Execute, Finish, FinishItem, Holder, Kind, Lease, NewTask, Outcome,
    Reply, Result, Span, Take, Task, TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_wire::http::{
    LEADER_TUBE, PLANS_TUBE, PlanMessage, REPORTS_TUBE, Shares, WorkerReport, decode_message,
    encode_message,
};

use super::group_planner::{GroupPlanner, PlannedWorker};
use super::planner::QueueDemand;
use super::{is_plausible, version_at};
use crate::store::unexpected;

/// How long the leases of the active manager last without an extension: three evaluations.
const LEASE: Span = Span::from_secs(15);
/// A worker that did not report for this long is no longer planned for.
const SILENCE_MAX: Span = Span::from_secs(15);
/// How many messages are fetched at once.
const MESSAGES_MAX: usize = 1000;

/// A message whose task the active manager holds.
#[derive(Debug)]
struct LeasedMessage<T> {
    id: TaskId,
    lease: Lease,
    /// When its lease was last extended.
    extended_at: Timestamp,
    message: T,
}

/// The result of an attempt to become the active manager.
pub(super) enum Acquisition {
    /// This server is the active manager now.
    Acquired(Box<Leadership>),
    /// No worker has ever reported, so there is nothing to plan.
    NoReports,
    /// Another server holds the leader task.
    OtherManager,
}

/// The state of the active manager, from the acquisition of the leader task to its loss.
pub(super) struct Leadership {
    /// The author of the plans.
    leader: String,
    leader_task: LeasedMessage<()>,
    /// The latest report of each worker and when it arrived, by worker.
    reports: BTreeMap<String, (Timestamp, LeasedMessage<WorkerReport>)>,
    plan: Option<LeasedMessage<PlanMessage>>,
    planner: GroupPlanner,
    version: u64,
    /// When the plan was made.
    planned_at: Timestamp,
}

impl Leadership {
    /// Takes the leader task if it is free and a worker has reported.
    pub async fn acquire<E: Execute>(
        queue: &E,
        now: Timestamp,
        leader: &str,
    ) -> Result<Acquisition> {
        match execute_one(queue, Command::Tubes { tube: Some(tube(REPORTS_TUBE)?) }).await {
            Err(Refusal::TubeNotFound(_)) => return Ok(Acquisition::NoReports),
            other => other?,
        };
        let mut taken = take(queue, LEADER_TUBE, 1).await;
        if !matches!(&taken, Ok(tasks) if !tasks.is_empty()) {
            match held_tasks(queue, LEADER_TUBE).await {
                Ok(holders) if !holders.is_empty() => return Ok(Acquisition::OtherManager),
                Ok(_) | Err(Refusal::TubeNotFound(_)) => {}
                Err(error) => return Err(error),
            }
            create_leader_tubes(queue).await?;
            taken = take(queue, LEADER_TUBE, 1).await;
        }
        let Some(task) = taken?.pop() else { return Ok(Acquisition::OtherManager) };
        let Some(lease) = task.lease else { return Ok(Acquisition::OtherManager) };
        Ok(Acquisition::Acquired(Box::new(Leadership {
            leader: leader.into(),
            leader_task: LeasedMessage { id: task.id, lease, extended_at: now, message: () },
            reports: BTreeMap::new(),
            plan: None,
            planner: GroupPlanner::default(),
            version: 0,
            planned_at: now,
        })))
    }

    /// Plans once; returns whether it is still the active manager.
    pub async fn evaluate<E: Execute>(&mut self, queue: &E, now: Timestamp) -> Result<bool> {
        if !extend(queue, LEADER_TUBE, [&mut self.leader_task], now).await?[0] {
            return Ok(false);
        }
        self.fetch_reports(queue, now).await?;
        self.extend_reports(queue, now).await?;
        let demands = self.demands(queue).await?;
        let reporters = self.reports.values().map(|(_, held)| planned_worker(&held.message));
        let workers = self.planner.plan(reporters, &demands);
        let followed = self.followed(now);
        let valid = match &mut self.plan {
            // A worker that follows a newer plan, of a server whose clock is ahead, would never accept this one.
            Some(plan) if plan.message.workers == workers && plan.message.version >= followed => {
                extend(queue, PLANS_TUBE, [plan], now).await?[0]
            }
            _ => false,
        };
        if !valid {
            self.publish(queue, now, workers).await?;
        }
        Ok(true)
    }

    /// Releases everything, so that the next manager need not wait for the end of the leases.
    pub async fn resign<E: Execute>(self, queue: &E) -> Result<()> {
        let release = Finish::Release { delay: Span::ZERO, counted: false };
        let reports = self.reports.values().map(|(_, held)| (held.id, held.lease)).collect();
        finish(queue, REPORTS_TUBE, reports, release.clone()).await?;
        if let Some(plan) = &self.plan {
            finish(queue, PLANS_TUBE, vec![(plan.id, plan.lease)], release.clone()).await?;
        }
        finish(queue, LEADER_TUBE, vec![(self.leader_task.id, self.leader_task.lease)], release)
            .await?;
        Ok(())
    }

    /// The version of the plan; `None` before the first plan.
    pub fn version(&self) -> Option<u64> {
        self.plan.as_ref().map(|plan| plan.message.version)
    }

    /// When the plan was made.
    pub fn planned_at(&self) -> Timestamp {
        self.planned_at
    }

    /// The number of workers with a valid report.
    pub fn workers(&self) -> usize {
        self.reports.len()
    }

    /// The number of processors that the plan assigns to each queue.
    pub fn processors(&self) -> Shares {
        let mut processors = Shares::new();
        let shares = self.plan.iter().flat_map(|plan| plan.message.workers.values());
        for (num, count) in shares.flatten() {
            *processors.entry(*num).or_default() += count;
        }
        processors
    }

    /// Fetches new reports; the latest report of each worker counts.
    async fn fetch_reports<E: Execute>(&mut self, queue: &E, now: Timestamp) -> Result<()> {
        let mut obsolete = Vec::new();
        loop {
            let tasks = take(queue, REPORTS_TUBE, MESSAGES_MAX).await?;
            let last = tasks.len() < MESSAGES_MAX;
            for task in tasks {
                let Some(lease) = task.lease else { continue };
                let Some(message) = message_of::<WorkerReport>(&task).filter(is_valid) else {
                    tracing::warn!(
                        id = task.id.0,
                        "removing a task that is not a valid report of a worker"
                    );
                    obsolete.push((task.id, lease));
                    continue;
                };
                let worker = message.worker.clone();
                let held = LeasedMessage { id: task.id, lease, extended_at: now, message };
                let older = match self.reports.remove(&worker) {
                    Some((seen, known)) if known.id > held.id => {
                        self.reports.insert(worker, (seen, known));
                        Some(held)
                    }
                    known => {
                        self.reports.insert(worker, (now, held));
                        known.map(|(_, known)| known)
                    }
                };
                obsolete.extend(older.map(|older| (older.id, older.lease)));
            }
            if last {
                break;
            }
        }
        finish(queue, REPORTS_TUBE, obsolete, Finish::Ack).await?;
        Ok(())
    }

    /// Extends the leases of the reports. A worker that stops removes its report; one that fails stops reporting.
    async fn extend_reports<E: Execute>(&mut self, queue: &E, now: Timestamp) -> Result<()> {
        let held = self.reports.values_mut().map(|(_, held)| held);
        let extended = extend(queue, REPORTS_TUBE, held, now).await?;
        let mut extended = extended.into_iter();
        let mut silent = Vec::new();
        self.reports.retain(|_, (seen, held)| {
            let recent = now.since(*seen) <= SILENCE_MAX;
            if !recent {
                silent.push((held.id, held.lease));
            }
            extended.next().unwrap_or(false) && recent
        });
        finish(queue, REPORTS_TUBE, silent, Finish::Ack).await?;
        Ok(())
    }

    async fn demands<E: Execute>(&self, queue: &E) -> Result<BTreeMap<u32, QueueDemand>> {
        let loads = self.reports.values().flat_map(|(_, held)| &held.message.queues);
        let mut tubes: BTreeMap<u32, &str> = BTreeMap::new();
        let mut demands: BTreeMap<u32, QueueDemand> = BTreeMap::new();
        for load in loads {
            tubes.insert(load.queue_num, &load.tube);
            let demand = demands.entry(load.queue_num).or_insert(QueueDemand {
                ready: 0,
                seconds_per_task: None,
                target_latency: load.target_latency,
            });
            // Of several workers the slowest time and the shortest target count.
            let slowest = demand.seconds_per_task.into_iter().chain(load.seconds_per_task);
            demand.seconds_per_task = slowest.reduce(f64::max);
            demand.target_latency = demand.target_latency.min(load.target_latency);
        }
        let names = tubes.values().map(|name| Ok(Command::Tubes { tube: Some(tube(name)?) }));
        let asked: Vec<Command> = names.collect::<Result<_>>()?;
        for (num, reply) in tubes.keys().zip(queue.execute(asked).await) {
            let ready = match reply {
                Ok(Reply::Tubes(shown)) => shown.first().map_or(0, |tube| tube.takeable),
                // The tube was dropped; its workers will notice.
                Err(Refusal::TubeNotFound(_)) => 0,
                Ok(_) => return Err(unexpected("tubes")),
                Err(error) => return Err(error),
            };
            if let Some(demand) = demands.get_mut(num) {
                demand.ready = ready;
            }
        }
        Ok(demands)
    }

    /// The newest version that a worker follows. Implausible versions are ignored.
    fn followed(&self, now: Timestamp) -> u64 {
        let versions = self.reports.values().map(|(_, held)| held.message.version);
        versions.filter(|version| is_plausible(*version, now)).max().unwrap_or(0)
    }

    /// Publishes the plan and removes the previous ones.
    async fn publish<E: Execute>(
        &mut self,
        queue: &E,
        now: Timestamp,
        workers: BTreeMap<String, Shares>,
    ) -> Result<()> {
        // Larger than every version that a worker follows: a manager that was paused, or whose clock is behind, must be
        // able to replace the plan.
        let latest = self.version.max(version_at(now)).max(self.followed(now));
        self.version = latest.saturating_add(1);
        let message = PlanMessage { version: self.version, leader: self.leader.clone(), workers };
        put(queue, PLANS_TUBE, &message, None).await?;
        self.planned_at = now;
        let mut obsolete: Vec<_> =
            self.plan.take().map(|old| (old.id, old.lease)).into_iter().collect();
        for task in take(queue, PLANS_TUBE, MESSAGES_MAX).await? {
            let Some(lease) = task.lease else { continue };
            if message_of::<PlanMessage>(&task).is_some_and(|found| found == message) {
                let message = message.clone();
                self.plan = Some(LeasedMessage { id: task.id, lease, extended_at: now, message });
            } else {
                obsolete.push((task.id, lease));
            }
        }
        finish(queue, PLANS_TUBE, obsolete, Finish::Ack).await?;
        Ok(())
    }
}

/// Whether a report can be planned with. One invalid report must not stop the planning for all workers.
fn is_valid(report: &WorkerReport) -> bool {
    report.queues.iter().all(|load| tube(&load.tube).is_ok())
}

fn planned_worker(report: &WorkerReport) -> PlannedWorker {
    PlannedWorker {
        id: report.worker.clone(),
        processors: report.max_processors as usize,
        queues: report.queues.iter().map(|load| load.queue_num).collect(),
    }
}

/// Creates a tube for messages, which need not survive a restart.
pub(crate) fn create_message_tube(name: &str, capacity: Option<u64>) -> Result<Command> {
    let kind = if capacity.is_some() { Kind::LimFifoTtl } else { Kind::FifoTtl };
    let options = TubeOptions { temporary: true, capacity, ..TubeOptions::new(kind) };
    Ok(Command::CreateTube { tube: tube(name)?, options, if_not_exists: true })
}

/// A command that puts a message, which expires after `ttl`.
pub(crate) fn put_message(
    name: &str,
    message: &impl Serialize,
    ttl: Option<Span>,
) -> Result<Command> {
    let task = NewTask { ttl, ..NewTask::new(encode_message(message)?) };
    Ok(Command::Put { tube: tube(name)?, tasks: vec![task], wait: Span::ZERO })
}

/// Creates the leader task in a tube with capacity one, so that several servers cannot create two, and the tube of plans.
async fn create_leader_tubes<E: Execute>(queue: &E) -> Result<()> {
    execute_one(queue, create_message_tube(LEADER_TUBE, Some(1))?).await?;
    execute_one(queue, create_message_tube(PLANS_TUBE, None)?).await?;
    match put(queue, LEADER_TUBE, &"the server that holds this task is the active manager", None)
        .await
    {
        Err(Refusal::TubeFull { .. }) => Ok(()),
        other => other,
    }
}

async fn put<E: Execute>(
    queue: &E,
    name: &str,
    message: &impl Serialize,
    ttl: Option<Span>,
) -> Result<()> {
    execute_one(queue, put_message(name, message, ttl)?).await.map(drop)
}

async fn take<E: Execute>(queue: &E, name: &str, count: usize) -> Result<Vec<Task>> {
    let lease = Some(LEASE);
    let take =
        Take { tube: tube(name)?, count, session: None, lease, worker: None, wait: Span::ZERO };
    match execute_one(queue, Command::Take(take)).await? {
        Reply::Taken(tasks) => Ok(tasks),
        _ => Err(unexpected("take")),
    }
}

async fn held_tasks<E: Execute>(queue: &E, name: &str) -> Result<Vec<Task>> {
    match execute_one(queue, Command::Deliveries { tube: tube(name)?, count: 1 }).await? {
        Reply::Tasks(tasks) => Ok(tasks),
        _ => Err(unexpected("deliveries")),
    }
}

/// Extends the leases by the time since the last extension; returns which messages are still held.
async fn extend<'a, E: Execute, T: 'a>(
    queue: &E,
    name: &str,
    held: impl IntoIterator<Item = &'a mut LeasedMessage<T>>,
    now: Timestamp,
) -> Result<Vec<bool>> {
    let mut held: Vec<_> = held.into_iter().collect();
    let items = held.iter().map(|held| FinishItem {
        id: held.id,
        holder: Holder::Lease(held.lease),
        finish: Finish::Touch(now.since(held.extended_at)),
    });
    let items: Vec<_> = items.collect();
    let extended = finish_items(queue, name, items).await?;
    held.iter_mut().for_each(|held| held.extended_at = now);
    Ok(extended)
}

async fn finish<E: Execute>(
    queue: &E,
    name: &str,
    held: Vec<(TaskId, Lease)>,
    finish: Finish,
) -> Result<Vec<bool>> {
    let item = |(id, lease)| {
        let finish = finish.clone();
        FinishItem { id, holder: Holder::Lease(lease), finish }
    };
    finish_items(queue, name, held.into_iter().map(item).collect()).await
}

async fn finish_items<E: Execute>(
    queue: &E,
    name: &str,
    items: Vec<FinishItem>,
) -> Result<Vec<bool>> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    match execute_one(queue, Command::Finish { tube: tube(name)?, items, show: false }).await? {
        Reply::Finished(outcomes) => {
            Ok(outcomes.iter().map(|outcome| matches!(outcome, Outcome::Done(_))).collect())
        }
        _ => Err(unexpected("finish")),
    }
}

/// Decodes the message in a task; `None` if it is another kind of message.
pub(crate) fn message_of<T: DeserializeOwned>(task: &Task) -> Option<T> {
    decode_message(task.body.as_ref()?)
}

pub(crate) fn tube(name: &str) -> Result<TubeName> {
    TubeName::new(name)
}

async fn execute_one<E: Execute>(queue: &E, command: Command) -> Result<Reply> {
    queue.execute(vec![command]).await.pop().unwrap_or(Err(Refusal::ShuttingDown))
}

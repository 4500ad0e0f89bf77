//! One term of a leader: it holds the seat, the latest report of each worker, and the plan.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use taskyard_core::{
    Command, Error as Refusal, Execute, Finish, FinishItem, Holder, Kind, Lease, NewTask, Outcome,
    Reply, Result, Span, Take, Task, TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_wire::http::{
    PLANS_TUBE, PlanLetter, REPORTS_TUBE, SEAT_TUBE, Shares, WorkerReport, letter_of,
    letter_to_body,
};

use crate::client::unexpected;

use super::groups::{Groups, Member};
use super::planner::Demand;
use super::{is_plausible, version_at};

/// How long what a leader holds is its own without being prolonged: three evaluations.
const LEASE: Span = Span::from_secs(15);
/// A worker that was silent for so long is no longer planned for.
const SILENCE: Span = Span::from_secs(15);
/// How many letters are fetched at once.
const LETTERS: usize = 1000;

/// What the leader holds of somebody's.
#[derive(Debug)]
struct Held<T> {
    id: TaskId,
    lease: Lease,
    /// Until when it was last prolonged.
    paid: Timestamp,
    letter: T,
}

/// The time in which this server leads.
pub(super) struct Term {
    /// Whose plans these are.
    leader: String,
    seat: Held<()>,
    /// The latest report of each worker and when it came, by worker.
    reports: BTreeMap<String, (Timestamp, Held<WorkerReport>)>,
    plan: Option<Held<PlanLetter>>,
    groups: Groups,
    version: u64,
}

impl Term {
    /// Takes the seat if it is free and somebody is there to plan for.
    pub async fn begin<E: Execute>(
        queue: &E,
        now: Timestamp,
        leader: &str,
    ) -> Result<Option<Self>> {
        match ask(queue, Command::Tubes { tube: Some(tube(REPORTS_TUBE)?) }).await {
            Err(Refusal::TubeNotFound(_)) => return Ok(None),
            other => other?,
        };
        let mut taken = take(queue, SEAT_TUBE, 1).await;
        if !matches!(&taken, Ok(tasks) if !tasks.is_empty()) {
            match held(queue, SEAT_TUBE).await {
                Ok(holders) if !holders.is_empty() => return Ok(None),
                Ok(_) | Err(Refusal::TubeNotFound(_)) => {}
                Err(error) => return Err(error),
            }
            make_seat(queue).await?;
            taken = take(queue, SEAT_TUBE, 1).await;
        }
        let Some(seat) = taken?.pop() else { return Ok(None) };
        let Some(lease) = seat.lease else { return Ok(None) };
        Ok(Some(Term {
            leader: leader.into(),
            seat: Held { id: seat.id, lease, paid: now, letter: () },
            reports: BTreeMap::new(),
            plan: None,
            groups: Groups::default(),
            version: 0,
        }))
    }

    /// Looks at everything once; whether it still leads.
    pub async fn evaluate<E: Execute>(&mut self, queue: &E, now: Timestamp) -> Result<bool> {
        if !prolong(queue, SEAT_TUBE, [&mut self.seat], now).await?[0] {
            return Ok(false);
        }
        self.gather(queue, now).await?;
        self.keep_reports(queue, now).await?;
        let demands = self.demands(queue).await?;
        let members = self.reports.values().map(|(_, held)| member(&held.letter));
        let workers = self.groups.plan(members, &demands);
        let followed = self.followed(now);
        let holds = match &mut self.plan {
            // Whoever follows a newer plan than this, of a server whose clock is ahead, follows this one never.
            Some(plan) if plan.letter.workers == workers && plan.letter.version >= followed => {
                prolong(queue, PLANS_TUBE, [plan], now).await?[0]
            }
            _ => false,
        };
        if !holds {
            self.publish(queue, now, workers).await?;
        }
        Ok(true)
    }

    /// Gives everything back, so that the next leader need not wait for the end of its time.
    pub async fn resign<E: Execute>(self, queue: &E) -> Result<()> {
        let release = Finish::Release { delay: Span::ZERO, counted: false };
        let reports = self.reports.values().map(|(_, held)| (held.id, held.lease)).collect();
        finish(queue, REPORTS_TUBE, reports, release).await?;
        if let Some(plan) = &self.plan {
            finish(queue, PLANS_TUBE, vec![(plan.id, plan.lease)], release).await?;
        }
        finish(queue, SEAT_TUBE, vec![(self.seat.id, self.seat.lease)], release).await?;
        Ok(())
    }

    /// The number of the plan, once there is one.
    pub fn version(&self) -> Option<u64> {
        self.plan.as_ref().map(|plan| plan.letter.version)
    }

    /// How many workers are planned for.
    pub fn workers(&self) -> usize {
        self.reports.len()
    }

    /// How many processors all workers together have on each queue.
    pub fn processors(&self) -> Shares {
        let mut processors = Shares::new();
        let shares = self.plan.iter().flat_map(|plan| plan.letter.workers.values());
        for (num, count) in shares.flatten() {
            *processors.entry(*num).or_default() += count;
        }
        processors
    }

    /// Fetches what workers reported; of each the latest counts.
    async fn gather<E: Execute>(&mut self, queue: &E, now: Timestamp) -> Result<()> {
        let mut over = Vec::new();
        loop {
            let tasks = take(queue, REPORTS_TUBE, LETTERS).await?;
            let last = tasks.len() < LETTERS;
            for task in tasks {
                let Some(lease) = task.lease else { continue };
                let Some(letter) = carried::<WorkerReport>(&task).filter(is_good) else {
                    tracing::warn!(id = task.id.0, "what was put here is no report of a worker");
                    over.push((task.id, lease));
                    continue;
                };
                let worker = letter.worker.clone();
                let held = Held { id: task.id, lease, paid: now, letter };
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
                over.extend(older.map(|older| (older.id, older.lease)));
            }
            if last {
                break;
            }
        }
        finish(queue, REPORTS_TUBE, over, Finish::Ack).await?;
        Ok(())
    }

    /// Prolongs the reports of those who are there; who left took its report away, who died is silent.
    async fn keep_reports<E: Execute>(&mut self, queue: &E, now: Timestamp) -> Result<()> {
        let held = self.reports.values_mut().map(|(_, held)| held);
        let kept = prolong(queue, REPORTS_TUBE, held, now).await?;
        let mut kept = kept.into_iter();
        let mut silent = Vec::new();
        self.reports.retain(|_, (seen, held)| {
            let speaks = now.since(*seen) <= SILENCE;
            if !speaks {
                silent.push((held.id, held.lease));
            }
            kept.next().unwrap_or(false) && speaks
        });
        finish(queue, REPORTS_TUBE, silent, Finish::Ack).await?;
        Ok(())
    }

    async fn demands<E: Execute>(&self, queue: &E) -> Result<BTreeMap<u32, Demand>> {
        let loads = self.reports.values().flat_map(|(_, held)| &held.letter.queues);
        let mut tubes: BTreeMap<u32, &str> = BTreeMap::new();
        let mut demands: BTreeMap<u32, Demand> = BTreeMap::new();
        for load in loads {
            tubes.insert(load.queue_num, &load.tube);
            let demand = demands.entry(load.queue_num).or_insert(Demand {
                ready: 0,
                seconds_per_task: None,
                target_latency: load.target_latency,
            });
            // Of several workers the slowest and the most impatient are believed.
            let slowest = demand.seconds_per_task.into_iter().chain(load.seconds_per_task);
            demand.seconds_per_task = slowest.reduce(f64::max);
            demand.target_latency = demand.target_latency.min(load.target_latency);
        }
        let names = tubes.values().map(|name| Ok(Command::Tubes { tube: Some(tube(name)?) }));
        let asked: Vec<Command> = names.collect::<Result<_>>()?;
        for (num, reply) in tubes.keys().zip(queue.execute(asked).await) {
            let ready = match reply {
                Ok(Reply::Tubes(shown)) => shown.first().map_or(0, |tube| tube.takeable),
                // Somebody dropped it; its workers will notice.
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

    /// The newest plan that some worker follows. A number that no plan can have is no number.
    fn followed(&self, now: Timestamp) -> u64 {
        let versions = self.reports.values().map(|(_, held)| held.letter.version);
        versions.filter(|version| is_plausible(*version, now)).max().unwrap_or(0)
    }

    /// Puts the plan where workers look, and removes the ones before it.
    async fn publish<E: Execute>(
        &mut self,
        queue: &E,
        now: Timestamp,
        workers: BTreeMap<String, Shares>,
    ) -> Result<()> {
        // Later than every plan that somebody follows: a leader that was away for a while, or one whose clock
        // is behind, cannot turn the workers back.
        let latest = self.version.max(version_at(now)).max(self.followed(now));
        self.version = latest.saturating_add(1);
        let letter = PlanLetter { version: self.version, leader: self.leader.clone(), workers };
        put(queue, PLANS_TUBE, &letter, None).await?;
        let mut over: Vec<_> =
            self.plan.take().map(|old| (old.id, old.lease)).into_iter().collect();
        for task in take(queue, PLANS_TUBE, LETTERS).await? {
            let Some(lease) = task.lease else { continue };
            if carried::<PlanLetter>(&task).is_some_and(|found| found == letter) {
                let letter = letter.clone();
                self.plan = Some(Held { id: task.id, lease, paid: now, letter });
            } else {
                over.push((task.id, lease));
            }
        }
        finish(queue, PLANS_TUBE, over, Finish::Ack).await?;
        Ok(())
    }
}

/// Whether somebody can be planned for by this. One report that cannot be must not stop the planning for all.
fn is_good(report: &WorkerReport) -> bool {
    report.queues.iter().all(|load| tube(&load.tube).is_ok())
}

fn member(report: &WorkerReport) -> Member {
    Member {
        id: report.worker.clone(),
        processors: report.max_processors as usize,
        queues: report.queues.iter().map(|load| load.queue_num).collect(),
    }
}

/// The tube for letters: nothing in it need survive a restart.
pub(in crate::worker) fn letters_tube(name: &str, capacity: Option<u64>) -> Result<Command> {
    let kind = if capacity.is_some() { Kind::LimFifoTtl } else { Kind::FifoTtl };
    let options = TubeOptions { temporary: true, capacity, ..TubeOptions::new(kind) };
    Ok(Command::CreateTube { tube: tube(name)?, options, if_not_exists: true })
}

/// A command that puts a letter; it is gone after `ttl` if nobody takes it.
pub(in crate::worker) fn put_letter(
    name: &str,
    letter: &impl Serialize,
    ttl: Option<Span>,
) -> Result<Command> {
    let task = NewTask { ttl, ..NewTask::new(letter_to_body(letter)?) };
    Ok(Command::Put { tube: tube(name)?, tasks: vec![task], wait: Span::ZERO })
}

/// One task in a tube that has room for one, so that several servers cannot make two seats.
async fn make_seat<E: Execute>(queue: &E) -> Result<()> {
    ask(queue, letters_tube(SEAT_TUBE, Some(1))?).await?;
    ask(queue, letters_tube(PLANS_TUBE, None)?).await?;
    match put(queue, SEAT_TUBE, &"who holds this leads", None).await {
        Err(Refusal::TubeFull { .. }) => Ok(()),
        other => other,
    }
}

async fn put<E: Execute>(
    queue: &E,
    name: &str,
    letter: &impl Serialize,
    ttl: Option<Span>,
) -> Result<()> {
    ask(queue, put_letter(name, letter, ttl)?).await.map(drop)
}

async fn take<E: Execute>(queue: &E, name: &str, count: usize) -> Result<Vec<Task>> {
    let lease = Some(LEASE);
    let take = Take { tube: tube(name)?, count, session: None, lease, wait: Span::ZERO };
    match ask(queue, Command::Take(take)).await? {
        Reply::Taken(tasks) => Ok(tasks),
        _ => Err(unexpected("take")),
    }
}

async fn held<E: Execute>(queue: &E, name: &str) -> Result<Vec<Task>> {
    match ask(queue, Command::Deliveries { tube: tube(name)?, count: 1 }).await? {
        Reply::Tasks(tasks) => Ok(tasks),
        _ => Err(unexpected("deliveries")),
    }
}

/// Asks for the time that has passed; which of them are still held.
async fn prolong<'a, E: Execute, T: 'a>(
    queue: &E,
    name: &str,
    held: impl IntoIterator<Item = &'a mut Held<T>>,
    now: Timestamp,
) -> Result<Vec<bool>> {
    let mut held: Vec<_> = held.into_iter().collect();
    let items = held.iter().map(|held| FinishItem {
        id: held.id,
        holder: Holder::Lease(held.lease),
        finish: Finish::Touch(now.since(held.paid)),
    });
    let items: Vec<_> = items.collect();
    let kept = finish_items(queue, name, items).await?;
    held.iter_mut().for_each(|held| held.paid = now);
    Ok(kept)
}

async fn finish<E: Execute>(
    queue: &E,
    name: &str,
    held: Vec<(TaskId, Lease)>,
    finish: Finish,
) -> Result<Vec<bool>> {
    let item = |(id, lease)| FinishItem { id, holder: Holder::Lease(lease), finish };
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
    match ask(queue, Command::Finish { tube: tube(name)?, items, show: false }).await? {
        Reply::Finished(outcomes) => {
            Ok(outcomes.iter().map(|outcome| matches!(outcome, Outcome::Done(_))).collect())
        }
        _ => Err(unexpected("finish")),
    }
}

/// What a task carries, if it is such a letter.
pub(in crate::worker) fn carried<T: DeserializeOwned>(task: &Task) -> Option<T> {
    letter_of(task.body.as_ref()?)
}

pub(in crate::worker) fn tube(name: &str) -> Result<TubeName> {
    TubeName::new(name)
}

async fn ask<E: Execute>(queue: &E, command: Command) -> Result<Reply> {
    queue.execute(vec![command]).await.pop().unwrap_or(Err(Refusal::ShuttingDown))
}

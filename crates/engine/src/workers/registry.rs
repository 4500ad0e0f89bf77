//! The workers by name. The time is an argument.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use taskyard_core::{
    Command, FinishItem, Holder, Outcome, Reply, Result, Take, Task, Timestamp, TubeName,
};

use super::holders::{Holders, TubeHash};
use super::notes::{NotedDelivery, NotedWorker, WorkerNote, WorkerNotes};
use super::recent_counts::RecentCounts;
use super::{WORKER_KEPT, WORKER_TUBES_MAX, WorkerInfo};
use crate::series::Ending;

/// When there are too many workers, this part of them is removed at once, so that the search for
/// the oldest is rare.
const REMOVED_PART: usize = 16;

/// A place in the registry, and which of its workers is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkerNumber {
    slot: u32,
    generation: u32,
}

#[cfg(test)]
impl WorkerNumber {
    pub fn of_slot(slot: u32) -> Self {
        WorkerNumber { slot, generation: 0 }
    }
}

/// The workers of this server. Moments are of the engine's time.
#[derive(Debug)]
pub(crate) struct WorkerRegistry {
    workers_max: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_name: HashMap<Arc<str>, WorkerNumber>,
    /// The worker of the latest take, because the next one is often of the same.
    latest: Option<(Arc<str>, WorkerNumber)>,
    holders: Holders,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Worker {
    name: Arc<str>,
    /// In the order of their first use.
    tubes: Vec<TubeName>,
    last_seen: Timestamp,
    done: u64,
    failed: u64,
    done_recently: RecentCounts,
    failed_recently: RecentCounts,
}

impl WorkerRegistry {
    /// No worker yet, and at most so many.
    pub fn new(workers_max: usize) -> Self {
        WorkerRegistry {
            workers_max,
            slots: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
            latest: None,
            holders: Holders::default(),
        }
    }

    /// Notes the commands of a batch before the store gets them.
    pub fn note(&mut self, commands: &[Command], notes: &mut WorkerNotes) {
        notes.clear();
        for (reply, command) in commands.iter().enumerate() {
            let note = match command {
                Command::Take(Take { worker: Some(worker), tube, .. }) => {
                    WorkerNote::Take(self.noted(worker), tube.clone())
                }
                Command::Finish { tube, items, .. } if !self.holders.is_empty() => {
                    WorkerNote::Finish(note_finishes(tube, items, &mut notes.finishes))
                }
                _ => continue,
            };
            notes.commands.push((reply, note));
        }
    }

    /// Counts what the commands of a batch did.
    pub fn observe(&mut self, now: Timestamp, notes: &mut WorkerNotes, replies: &[Result<Reply>]) {
        for (reply, note) in notes.commands.drain(..) {
            match (note, replies.get(reply)) {
                (WorkerNote::Take(worker, tube), Some(Ok(Reply::Taken(tasks)))) => {
                    self.observe_take(now, worker, &tube, tasks);
                }
                (WorkerNote::Finish(items), Some(Ok(Reply::Finished(outcomes)))) => {
                    let items = notes.finishes.get(items).unwrap_or_default();
                    self.observe_finish(now, items, outcomes);
                }
                _ => {}
            }
        }
    }

    /// A worker waits for a task of this tube.
    pub fn see_waiting(&mut self, now: Timestamp, name: &Arc<str>, tube: &TubeName) {
        let noted = self.noted(name);
        let number = self.number(now, noted);
        self.see(now, number, tube);
    }

    /// Removes the workers that were not seen for an hour, except those that hold tasks according to
    /// the store.
    pub fn remove_old(&mut self, now: Timestamp, holding: &HashSet<Arc<str>>) {
        let is_old = |worker: &Worker| {
            now.since(worker.last_seen) >= WORKER_KEPT && !holding.contains(&worker.name)
        };
        self.remove_if(is_old);
    }

    /// The workers by name. Times are of the engine.
    pub fn list(&mut self, now: Timestamp) -> Vec<WorkerInfo> {
        let workers = self.slots.iter_mut().filter_map(|slot| slot.worker.as_mut());
        let mut infos: Vec<_> = workers.map(|worker| worker.info(now)).collect();
        infos.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        infos
    }

    fn observe_take(
        &mut self,
        now: Timestamp,
        worker: NotedWorker,
        tube: &TubeName,
        tasks: &[Task],
    ) {
        let number = self.number(now, worker);
        self.see(now, number, tube);
        if tasks.is_empty() {
            return;
        }
        let hash = TubeHash::of(tube);
        for task in tasks {
            self.holders.begin(hash.key(task.id), number);
        }
    }

    fn observe_finish(&mut self, now: Timestamp, items: &[NotedDelivery], outcomes: &[Outcome]) {
        for (item, outcome) in items.iter().zip(outcomes) {
            if !matches!(outcome, Outcome::Done(_)) {
                continue;
            }
            let holder = match item.ending {
                Some(_) => self.holders.end(item.task),
                None => self.holders.get(item.task),
            };
            let Some(worker) = holder.and_then(|number| self.get_mut(number)) else { continue };
            if item.is_holder {
                worker.last_seen = now;
            }
            match item.ending {
                Some(Ending::Acked) => {
                    worker.done += 1;
                    worker.done_recently.count(now);
                }
                Some(Ending::Failed) if item.is_holder => {
                    worker.failed += 1;
                    worker.failed_recently.count(now);
                }
                Some(Ending::Failed | Ending::Returned) | None => {}
            }
        }
    }

    fn see(&mut self, now: Timestamp, number: WorkerNumber, tube: &TubeName) {
        let Some(worker) = self.get_mut(number) else { return };
        worker.last_seen = now;
        if !worker.tubes.contains(tube) {
            if worker.tubes.len() >= WORKER_TUBES_MAX {
                worker.tubes.remove(0);
            }
            worker.tubes.push(tube.clone());
        }
    }

    fn noted(&mut self, name: &Arc<str>) -> NotedWorker {
        if let Some((latest, number)) = &self.latest
            && latest == name
        {
            return NotedWorker::Known(*number);
        }
        match self.by_name.get_key_value(name) {
            Some((known, number)) => {
                self.latest = Some((known.clone(), *number));
                NotedWorker::Known(*number)
            }
            None => NotedWorker::New(name.clone()),
        }
    }

    /// The number of a worker, which is added if it is new.
    fn number(&mut self, now: Timestamp, worker: NotedWorker) -> WorkerNumber {
        let name = match worker {
            NotedWorker::Known(number) => return number,
            NotedWorker::New(name) => name,
        };
        if let Some(number) = self.by_name.get(&name) {
            return *number;
        }
        if self.by_name.len() >= self.workers_max {
            self.remove_oldest();
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let place = &mut self.slots[slot as usize];
        place.worker = Some(Worker::new(name.clone(), now));
        let number = WorkerNumber { slot, generation: place.generation };
        self.by_name.insert(name, number);
        number
    }

    fn get_mut(&mut self, number: WorkerNumber) -> Option<&mut Worker> {
        let slot = self.slots.get_mut(number.slot as usize)?;
        if slot.generation == number.generation { slot.worker.as_mut() } else { None }
    }

    /// Removes the workers that were not seen for longest.
    fn remove_oldest(&mut self) {
        let workers = self.slots.iter().filter_map(|slot| slot.worker.as_ref());
        let mut seen: Vec<Timestamp> = workers.map(|worker| worker.last_seen).collect();
        let mut left = (seen.len() / REMOVED_PART).max(1);
        let Some(index) = left.checked_sub(1).filter(|index| *index < seen.len()) else { return };
        let latest = *seen.select_nth_unstable(index).1;
        self.remove_if(|worker| {
            let removed = worker.last_seen <= latest && left > 0;
            left -= usize::from(removed);
            removed
        });
    }

    fn remove_if(&mut self, mut removed: impl FnMut(&Worker) -> bool) {
        self.latest = None;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let Some(worker) = slot.worker.take_if(|worker| removed(worker)) {
                self.by_name.remove(&worker.name);
                slot.generation = slot.generation.wrapping_add(1);
                self.free.push(index as u32);
            }
        }
    }
}

impl Worker {
    fn new(name: Arc<str>, now: Timestamp) -> Self {
        Worker {
            name,
            tubes: Vec::new(),
            last_seen: now,
            done: 0,
            failed: 0,
            done_recently: RecentCounts::default(),
            failed_recently: RecentCounts::default(),
        }
    }

    fn info(&mut self, now: Timestamp) -> WorkerInfo {
        WorkerInfo {
            name: self.name.clone(),
            tubes: self.tubes.clone(),
            last_seen: self.last_seen,
            done: self.done,
            failed: self.failed,
            done_last_minute: self.done_recently.total(now),
            failed_last_minute: self.failed_recently.total(now),
        }
    }
}

fn note_finishes(
    tube: &TubeName,
    items: &[FinishItem],
    finishes: &mut Vec<NotedDelivery>,
) -> std::ops::Range<usize> {
    let (begin, hash) = (finishes.len(), TubeHash::of(tube));
    let noted = |item: &FinishItem| NotedDelivery {
        task: hash.key(item.id),
        ending: Ending::of(&item.finish),
        is_holder: item.holder != Holder::Any,
    };
    finishes.extend(items.iter().map(noted));
    begin..finishes.len()
}

#[cfg(test)]
mod tests {
    use taskyard_core::Span;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn names(infos: &[WorkerInfo]) -> Vec<&str> {
        infos.iter().map(|info| &*info.name).collect()
    }

    fn see(registry: &mut WorkerRegistry, second: i64, name: &str, tube: &str) {
        registry.see_waiting(at(second), &name.into(), &TubeName::new(tube).unwrap());
    }

    #[test]
    fn those_not_seen_for_longest_are_removed_when_there_are_too_many() {
        let mut registry = WorkerRegistry::new(3);
        for (second, name) in [(1, "a"), (2, "b"), (3, "c"), (4, "a"), (5, "d")] {
            see(&mut registry, second, name, "mail");
        }
        let infos = registry.list(at(6));
        assert_eq!(names(&infos), ["a", "c", "d"]);
        assert_eq!(infos[0].last_seen, at(4));
    }

    #[test]
    fn many_new_names_never_exceed_the_limit() {
        let mut registry = WorkerRegistry::new(100);
        for number in 0..10_000 {
            see(&mut registry, number / 7, &format!("w{number}"), "mail");
            assert!(registry.by_name.len() <= 100 && registry.slots.len() <= 100);
        }
        let infos = registry.list(at(2_000));
        assert!(names(&infos).contains(&"w9999") && infos.len() > 90, "{}", infos.len());
    }

    #[test]
    fn a_worker_is_removed_after_an_hour_unless_it_has_running_tasks() {
        let mut registry = WorkerRegistry::new(10);
        see(&mut registry, 0, "idle", "mail");
        see(&mut registry, 0, "busy", "mail");
        see(&mut registry, 1, "late", "mail");
        let (hour, holding) =
            (Timestamp::EPOCH + Span::from_secs(3_600), HashSet::from(["busy".into()]));
        assert_eq!(names(&registry.list(hour)), ["busy", "idle", "late"]);
        registry.remove_old(hour, &holding);
        assert_eq!(names(&registry.list(hour)), ["busy", "late"]);
        registry.remove_old(hour, &HashSet::new());
        assert_eq!(names(&registry.list(hour)), ["late"]);
    }

    #[test]
    fn the_latest_tubes_are_shown() {
        let mut registry = WorkerRegistry::new(10);
        for number in 0..40 {
            see(&mut registry, number, "w", &format!("t{number}"));
            see(&mut registry, number, "w", &format!("t{number}"));
        }
        let tubes = &registry.list(at(50))[0].tubes;
        assert_eq!((tubes.len(), tubes[0].as_str()), (WORKER_TUBES_MAX, "t8"));
    }

    // The number of a removed worker must not stand for the one that has its place now.
    #[test]
    fn a_removed_worker_is_not_mistaken_for_another() {
        let mut registry = WorkerRegistry::new(1);
        see(&mut registry, 0, "a", "mail");
        let NotedWorker::Known(number) = registry.noted(&"a".into()) else { panic!("a is known") };
        see(&mut registry, 1, "b", "mail");
        assert!(registry.get_mut(number).is_none());
        assert_eq!(names(&registry.list(at(1))), ["b"]);
    }
}

//! The tasks of one tube.

use std::collections::HashMap;
use std::sync::Arc;

use crate::command::NewTask;
use crate::done::{DoneTask, DoneTasks};
use crate::failure::{Failure, Failures};
use crate::index::{CrossTubeIndex, Indexes};
use crate::key::{HeldKey, Key, KeyRequest};
use crate::keys::TubeKeys;
use crate::limits::OLDEST_LOOKED_MAX;
use crate::record::Record;
use crate::semaphore::Priority;
use crate::semaphore::gated::gated;
use crate::slots::{Slot, SlotOptions, SlotState, Slots};
use crate::stats::Counts;
use crate::subqueue::{NO_SUBQUEUE, OrderKey};
use crate::task::{Body, TaskId};
use crate::time::Timestamp;
use crate::tube::TubeOptions;

/// The tasks of one tube, and their indexes. Every change of a task goes through [`Tasks::update`],
/// so that it is always in exactly the indexes of its state.
#[derive(Debug)]
pub(crate) struct Tasks {
    slots: Slots,
    indexes: Indexes,
    /// The semaphore priorities given by puts. Beside the slots: few tasks have one, and it never
    /// changes.
    priorities: HashMap<TaskId, Priority>,
    /// The maximum numbers of attempts given by puts, likewise.
    attempts_max: HashMap<TaskId, u32>,
    /// The latest failures of tasks that failed.
    failures: HashMap<TaskId, Failures>,
    done: DoneTasks,
    keys: TubeKeys,
}

/// A task that is not in its tube: not yet, or no longer.
#[derive(Clone, Debug)]
pub(crate) struct DetachedTask {
    pub slot: Slot,
    pub subqueue: Option<Arc<str>>,
    pub semaphore_priority: Option<Priority>,
    pub attempts_max: Option<u32>,
    pub failures: Option<Failures>,
    pub key: Option<Box<KeyRequest>>,
}

impl Tasks {
    pub fn new(number: u32, options: &TubeOptions) -> Self {
        Tasks {
            slots: Slots::default(),
            indexes: Indexes::new(number, options),
            priorities: HashMap::new(),
            attempts_max: HashMap::new(),
            failures: HashMap::new(),
            done: DoneTasks::default(),
            keys: TubeKeys::default(),
        }
    }

    /// The done tasks that are kept.
    pub fn done(&self) -> &DoneTasks {
        &self.done
    }

    /// A done task, to be changed.
    pub fn done_mut(&mut self, id: TaskId) -> Option<&mut DoneTask> {
        self.done.get_mut(id)
    }

    /// The unique keys.
    pub fn keys(&self) -> &TubeKeys {
        &self.keys
    }

    /// The unique keys, to be changed.
    pub fn keys_mut(&mut self) -> &mut TubeKeys {
        &mut self.keys
    }

    /// The task that holds a key, or held it last.
    pub fn key_holder(&self, key: &Key) -> Option<TaskId> {
        self.keys.holder(&self.slots, key)
    }

    /// The key of a task that has not ended, with what its put asked for.
    pub fn key_request(&self, id: TaskId) -> Option<&KeyRequest> {
        // Most tubes have no keys: this runs for every record that is written.
        if self.keys.has_living() { self.keys.request(self.slots.place(id)?) } else { None }
    }

    /// The key of a task that has not ended.
    pub fn key_of(&self, id: TaskId) -> Option<&HeldKey> {
        self.key_request(id).map(|request| &request.held)
    }

    /// Claims the keys of tasks that are put now, with successive ids from `first` on; false if that is impossible.
    pub fn claim_keys(&mut self, first: TaskId, tasks: &[NewTask]) -> bool {
        self.keys.claim(&self.slots, first, tasks)
    }

    /// A task without a key gets one that is free.
    pub fn insert_key(&mut self, id: TaskId, request: Box<KeyRequest>) {
        if let Some(place) = self.slots.place(id) {
            self.keys.insert(place, id, request);
        }
    }

    /// Keeps a done task.
    pub fn insert_done(&mut self, done: Box<DoneTask>, shared: &mut CrossTubeIndex) {
        shared.body_bytes += body_footprint(done.record.body.as_ref());
        self.done.insert(done);
    }

    /// Removes a done task.
    pub fn remove_done(
        &mut self,
        id: TaskId,
        shared: &mut CrossTubeIndex,
    ) -> Option<Box<DoneTask>> {
        let done = self.done.remove(id)?;
        shared.body_bytes -= body_footprint(done.record.body.as_ref());
        Some(done)
    }

    /// The number of tasks by state; done ones are not counted here.
    pub fn counts(&self) -> Counts {
        self.indexes.counts
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn get(&self, id: TaskId) -> Option<&Slot> {
        self.slots.get(id)
    }

    /// All tasks, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    /// Taken tasks, by id.
    pub fn taken(&self) -> impl Iterator<Item = TaskId> {
        self.indexes.taken.iter().copied()
    }

    /// Taken tasks, then buried ones.
    pub fn taken_and_buried(&self) -> impl Iterator<Item = TaskId> {
        self.taken().chain(self.indexes.buried.iter().map(|key| key.1))
    }

    /// The first task in the order of delivery, or the first after this key.
    pub fn next_takeable(&self, after: Option<OrderKey>) -> Option<OrderKey> {
        match after {
            Some(key) => self.indexes.next_ready(key),
            None => self.indexes.first_ready(),
        }
    }

    pub fn first_buried(&self) -> Option<TaskId> {
        self.indexes.buried.first().map(|key| key.1)
    }

    /// The number of ready tasks before this one by priority and id.
    pub fn rank(&self, slot: &Slot) -> u64 {
        self.indexes.ready.rank(slot.order_key())
    }

    /// The numbers of [`Position::delayed_ahead`](crate::Position::delayed_ahead) for tasks with these keys.
    pub fn delayed_ahead(&self, now: Timestamp, keys: &[OrderKey]) -> Vec<Vec<u64>> {
        self.indexes.delayed.before(now, keys)
    }

    /// The number of ready tasks of its sub-queue before this one.
    pub fn rank_in_subqueue(&self, slot: &Slot) -> Option<u64> {
        let subqueues = self.indexes.subqueues.as_ref()?;
        Some(subqueues.rank(slot.subqueue, slot.order_key()))
    }

    pub fn next_timer(&self) -> Option<(Timestamp, TaskId)> {
        self.indexes.next_timer()
    }

    pub fn subqueue_of(&self, slot: &Slot) -> Option<Arc<str>> {
        self.indexes.subqueues.as_ref().and_then(|subqueues| subqueues.key(slot.subqueue))
    }

    /// The semaphore priority given by the put of a task, if any.
    pub fn semaphore_priority(&self, id: TaskId) -> Option<Priority> {
        self.priorities.get(&id).copied()
    }

    /// The maximum number of attempts given by the put of a task, if any.
    pub fn attempts_max(&self, id: TaskId) -> Option<u32> {
        if self.attempts_max.is_empty() { None } else { self.attempts_max.get(&id).copied() }
    }

    /// The latest failures of a task, if it failed.
    pub fn failures(&self, id: TaskId) -> Option<&Failures> {
        // Usually empty: this runs for every record that is written.
        if self.failures.is_empty() { None } else { self.failures.get(&id) }
    }

    /// Adds a failure to a task.
    pub fn add_failure(&mut self, id: TaskId, failure: &Failure) {
        let failures = Failures::with(self.failures.get(&id), failure);
        self.failures.insert(id, failures);
    }

    /// The stored form of a task.
    pub fn record(&self, slot: &Slot, wall_ahead: i64) -> Record {
        let key = self.key_of(slot.id).map(|held| Arc::new(held.clone()));
        Record { key, ..self.record_without_key(slot, wall_ahead) }
    }

    /// The same without its key.
    pub fn record_without_key(&self, slot: &Slot, wall_ahead: i64) -> Record {
        let (subqueue, priority) = (self.subqueue_of(slot), self.semaphore_priority(slot.id));
        let failures = self.failures(slot.id).cloned();
        slot.record(subqueue, priority, self.attempts_max(slot.id), failures, wall_ahead)
    }

    /// The task with its data beside the slot.
    pub fn detached(&self, slot: &Slot) -> DetachedTask {
        DetachedTask {
            slot: slot.clone(),
            subqueue: self.subqueue_of(slot),
            semaphore_priority: self.semaphore_priority(slot.id),
            attempts_max: self.attempts_max(slot.id),
            failures: self.failures(slot.id).cloned(),
            key: self.key_request(slot.id).map(|request| Box::new(request.clone())),
        }
    }

    /// Sets whether the tube has a semaphore.
    pub fn set_gated(&mut self, is_gated: bool) {
        self.indexes.set_gated(is_gated);
    }

    /// Whether another task of its sub-queue runs.
    pub fn is_blocked(&self, slot: &Slot) -> bool {
        let subqueues = self.indexes.subqueues.as_ref();
        subqueues.is_some_and(|subqueues| subqueues.is_busy(slot.subqueue))
    }

    /// The number of tasks that could be taken now.
    pub fn takeable(&self) -> usize {
        self.indexes.takeable()
    }

    /// The next task to take, and the size of its body. Expired tasks leave the ready index here,
    /// each once in its life, and wait for the tick that removes them.
    pub fn first_takeable(&mut self, now: Timestamp) -> Option<(TaskId, u32)> {
        loop {
            let key = self.indexes.first_ready()?;
            let slot = self.slots.get(key.1)?;
            if slot.expires() > now {
                return Some((slot.id, slot.body_bytes));
            }
            self.indexes.remove_ready(slot.subqueue, key);
        }
    }

    /// Removes expired tasks from the ready index; they wait for the tick that removes them.
    pub fn hide_expired(&mut self, now: Timestamp) {
        let due = self.indexes.timers.range(..=(now, TaskId(u64::MAX)));
        let slots = due.filter_map(|(_, id)| self.slots.get(*id));
        let ready = slots.filter(|slot| matches!(slot.details(), SlotState::Ready(_)));
        let keys: Vec<_> = ready.map(|slot| (slot.subqueue, slot.order_key())).collect();
        for (subqueue, key) in keys {
            self.indexes.remove_ready(subqueue, key);
        }
    }

    /// Since when the oldest task has been ready that could be taken, pauses aside. Within a
    /// priority ids are in the order of puts, so no task behind the first one that was ready at
    /// once has waited longer; in front of it may be delayed or released tasks, each ready since
    /// its own moment. So few are examined, and never more than the limit: where that is reached,
    /// an older one may follow.
    pub fn oldest_ready(&self) -> Option<Timestamp> {
        let (mut oldest, mut next) = (None, self.indexes.first_ready());
        for _ in 0..OLDEST_LOOKED_MAX {
            let Some((pri, id)) = next else { break };
            let slot = self.slots.get(id)?;
            let since = slot.since();
            oldest = Some(oldest.map_or(since, |oldest: Timestamp| oldest.min(since)));
            let at_once = since == slot.created;
            next = self.indexes.next_ready((pri, if at_once { TaskId(u64::MAX) } else { id }));
        }
        oldest
    }

    /// The next ready tasks, at most `window`. With sub-queues those that can be taken now come
    /// first; the order of the others depends on which task finishes first.
    pub fn upcoming(&self, window: usize) -> Vec<TaskId> {
        match &self.indexes.subqueues {
            None => self.indexes.ready.iter().take(window).map(|key| key.1).collect(),
            Some(subqueues) => subqueues.upcoming(window).into_iter().map(|key| key.1).collect(),
        }
    }

    /// Adds a task, and returns the place of its slot.
    pub fn insert(&mut self, detached: DetachedTask, shared: &mut CrossTubeIndex) -> u32 {
        let DetachedTask { slot, subqueue, semaphore_priority, attempts_max, failures, key } =
            detached;
        let id = slot.id;
        if let Some(priority) = semaphore_priority {
            self.priorities.insert(id, priority);
        }
        if let Some(most) = attempts_max {
            self.attempts_max.insert(id, most);
        }
        if let Some(failures) = failures {
            self.failures.insert(id, failures);
        }
        let place = self.insert_slot(slot, subqueue.as_ref(), shared);
        if let Some(key) = key {
            self.keys.insert(place, id, key);
        }
        place
    }

    /// Adds a task that has no data beside the slot but its sub-queue, and returns the place of the slot.
    #[inline]
    pub fn insert_slot(
        &mut self,
        mut slot: Slot,
        subqueue: Option<&Arc<str>>,
        shared: &mut CrossTubeIndex,
    ) -> u32 {
        slot.subqueue = match (&mut self.indexes.subqueues, subqueue) {
            (Some(subqueues), Some(key)) => subqueues.join(key),
            _ => NO_SUBQUEUE,
        };
        shared.body_bytes += footprint(&slot);
        self.indexes.add(&slot, shared);
        self.slots.insert(slot)
    }

    /// Removes a task.
    pub fn remove(&mut self, id: TaskId, shared: &mut CrossTubeIndex) -> Option<DetachedTask> {
        let keyed = if self.keys.has_living() { self.slots.place(id) } else { None };
        let slot = self.slots.remove(id)?;
        let subqueue = self.subqueue_of(&slot);
        self.indexes.remove(&slot, shared);
        shared.body_bytes -= footprint(&slot);
        if let Some(subqueues) = &mut self.indexes.subqueues {
            subqueues.leave(slot.subqueue);
        }
        let semaphore_priority = remove_rare(&mut self.priorities, id);
        let failures = remove_rare(&mut self.failures, id);
        let attempts_max = remove_rare(&mut self.attempts_max, id);
        let key = keyed.and_then(|place| self.keys.remove(place, id));
        Some(DetachedTask { slot, subqueue, semaphore_priority, attempts_max, failures, key })
    }

    /// Changes a task, if it exists.
    pub fn update(
        &mut self,
        id: TaskId,
        shared: &mut CrossTubeIndex,
        change: impl FnOnce(&mut Slot),
    ) {
        if let Some(slot) = self.slots.get_mut(id) {
            self.indexes.remove(slot, shared);
            change(slot);
            self.indexes.add(slot, shared);
        }
    }

    /// Gives a task body, priority and times of `new`, and the rest of a replacing put.
    pub fn replace(
        &mut self,
        new: Slot,
        semaphore_priority: Option<Priority>,
        held: HeldKey,
        shared: &mut CrossTubeIndex,
    ) {
        let id = new.id;
        match semaphore_priority {
            Some(priority) => _ = self.priorities.insert(id, priority),
            None => _ = self.priorities.remove(&id),
        }
        if let Some(place) = self.slots.place(id) {
            self.keys.update(place, held);
        }
        let body = new.body.clone();
        self.update(id, shared, |slot| {
            let SlotOptions { pri, expires, ttr, .. } = *new.options();
            slot.change_options(|own| (own.pri, own.expires, own.ttr) = (pri, expires, ttr));
            slot.set_state(new.details().into_owned());
            slot.body_bytes = new.body_bytes;
        });
        self.set_body(id, body, shared);
    }

    /// Records that the batch changed the slot; whether this is its first change in the batch.
    pub fn note(&mut self, id: TaskId, batch: u32) -> bool {
        match self.slots.get_mut(id) {
            Some(slot) => std::mem::replace(&mut slot.noted, batch) != batch,
            None => false,
        }
    }

    /// Clears the batch marks of all slots.
    pub fn forget_notes(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.noted = 0);
        self.done.forget_notes();
    }

    /// Puts a body into memory or removes it; the task is otherwise unchanged.
    pub fn set_body(&mut self, id: TaskId, body: Option<Body>, shared: &mut CrossTubeIndex) {
        if let Some(slot) = self.slots.get_mut(id) {
            shared.body_bytes -= footprint(slot);
            slot.body = body;
            shared.body_bytes += footprint(slot);
        } else if let Some(done) = self.done.get_mut(id) {
            shared.body_bytes -= body_footprint(done.record.body.as_ref());
            done.record.body = body;
            shared.body_bytes += body_footprint(done.record.body.as_ref());
        }
    }

    /// Removes these tasks from the index of all tubes, or adds them, when the whole tube is
    /// removed or restored.
    pub fn share(&self, number: u32, shared: &mut CrossTubeIndex, present: bool) {
        for done in self.done.range(TaskId(0)..) {
            let bytes = body_footprint(done.record.body.as_ref());
            if present {
                shared.body_bytes += bytes;
            } else {
                shared.body_bytes -= bytes;
            }
        }
        for slot in self.slots.iter() {
            if present {
                shared.body_bytes += footprint(slot);
            } else {
                shared.body_bytes -= footprint(slot);
            }
            let Some(delivery) = slot.delivery() else { continue };
            if present && self.indexes.is_gated() {
                shared.taken_tasks.insert(gated(number, slot.id));
            } else {
                shared.taken_tasks.remove(&gated(number, slot.id));
            }
            let Some(session) = delivery.session else { continue };
            if present {
                shared.held.insert((session, number, slot.id));
            } else {
                shared.held.remove(&(session, number, slot.id));
            }
        }
    }
}

#[cfg(test)]
impl Tasks {
    /// Slots and indexes, for the audit.
    pub fn parts(&self) -> (&Slots, &Indexes) {
        (&self.slots, &self.indexes)
    }
}

/// Removes what few tasks have. In most tubes no task has it, so the id is not hashed.
fn remove_rare<T>(of_tasks: &mut HashMap<TaskId, T>, id: TaskId) -> Option<T> {
    if of_tasks.is_empty() { None } else { of_tasks.remove(&id) }
}

fn footprint(slot: &Slot) -> usize {
    body_footprint(slot.body.as_ref())
}

fn body_footprint(body: Option<&Body>) -> usize {
    body.map_or(0, Body::footprint)
}

//! All semaphores of one store.

use std::collections::{BTreeMap, BTreeSet};

use crate::effects::NewEvents;
use crate::error::{Error, Result};
use crate::task::TaskId;
use crate::time::Timestamp;

use super::command::{EventId, EventKind, SemaphoreCommand, SemaphoreReply};
use super::entry::QueueEntry;
use super::gated::tube_task;
use super::journal::SemaphoreJournal;
use super::key::{Grant, SemaphoreKey};
use super::outbox::Outbox;
use super::queue::SemaphoreQueue;
use super::record::{EventRecord, SemaphoreRecord};

/// The rules of semaphores: all semaphores of one store, in memory.
#[derive(Debug, Default)]
pub struct Semaphores {
    pub(super) numbers: BTreeMap<SemaphoreKey, u32>,
    pub(super) all: Vec<Semaphore>,
    /// Numbers of dropped semaphores; they are reused.
    pub(super) vacant: BTreeSet<u32>,
    /// New semaphores issue no grant up to this number: clients may still use those of dropped
    /// semaphores.
    pub(super) grant_floor: u64,
    pub(super) outbox: Outbox,
    /// When each semaphore needs its next tick.
    pub(super) wakeups: BTreeSet<(Timestamp, u32)>,
    pub(super) next_seq: u64,
    pub(super) journal: SemaphoreJournal,
    /// Listeners have been notified of events due up to this moment.
    pub(super) notified_until: Option<Timestamp>,
    /// Semaphores with new events since the effects were last taken.
    pub(super) new_events: NewEvents,
    /// Tasks of tubes whose grant may have changed since the tubes were updated.
    pub(super) moved: Vec<TaskId>,
    /// Taken tasks of tubes. Lent by the machine during a command.
    pub(crate) taken_tasks: BTreeSet<TaskId>,
}

/// One semaphore.
#[derive(Debug)]
pub(super) struct Semaphore {
    /// Its stored form.
    pub record: SemaphoreRecord,
    pub queue: SemaphoreQueue,
    /// Its entry among the wake-ups.
    pub wakeup: Option<Timestamp>,
}

impl Semaphores {
    /// Applies one command at the moment `now`: as a whole or, with an error, not at all. Time must
    /// not run backwards.
    pub fn apply(&mut self, now: Timestamp, command: SemaphoreCommand) -> Result<SemaphoreReply> {
        command.check()?;
        match command {
            SemaphoreCommand::Configure { key, change, only_new } => {
                self.configure(now, key, &change, only_new)
            }
            SemaphoreCommand::Enqueue { key, entries } => self.enqueue(now, &key, &entries),
            SemaphoreCommand::Finish { key, items } => self.finish(now, &key, &items),
            SemaphoreCommand::Peek { key, tasks } => self.peek(&key, &tasks),
            SemaphoreCommand::Members { key, part, after, count } => {
                self.members(&key, part, after, count)
            }
            SemaphoreCommand::Drop { key, force } => self.drop_semaphore(&key, force),
            SemaphoreCommand::List { key } => self.list(key.as_ref()),
            SemaphoreCommand::Events { key, count, .. } => self.fetch(now, key.as_ref(), count),
            SemaphoreCommand::Acknowledge { events } => Ok(self.acknowledge(&events)),
        }
    }

    /// When the next change, or the next event, is due.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let tick = self.wakeups.first().map(|wakeup| wakeup.0);
        let told = self.notified_until.unwrap_or(Timestamp::from_micros(i64::MIN));
        tick.into_iter().chain(self.outbox.next_after(told)).min()
    }

    /// The semaphores with new due events since the last call.
    pub fn take_new_events(&mut self) -> NewEvents {
        std::mem::take(&mut self.new_events)
    }

    /// Records that a semaphore has events for listeners.
    pub(super) fn note_new_events(&mut self, number: u32) {
        let semaphore = &self.all[number as usize];
        self.new_events.add_key(&semaphore.record.key);
    }

    pub(super) fn number(&self, key: &SemaphoreKey) -> Result<u32> {
        let number = self.numbers.get(key).copied();
        number.ok_or_else(|| Error::SemaphoreNotFound(key.clone()))
    }

    pub(super) fn semaphore(&self, number: u32) -> &Semaphore {
        &self.all[number as usize]
    }

    pub(super) fn queue(&self, number: u32) -> &SemaphoreQueue {
        &self.semaphore(number).queue
    }

    /// Changes the stored form of a semaphore.
    pub(super) fn update(&mut self, number: u32, change: impl FnOnce(&mut SemaphoreRecord)) {
        let semaphore = &mut self.all[number as usize];
        if self.journal.on {
            let before = || Some(semaphore.record.clone());
            self.journal.semaphores.entry(number).or_insert_with(before);
        }
        change(&mut semaphore.record);
    }

    /// Sets or removes the entry of a task.
    pub(super) fn set_entry(&mut self, number: u32, task: TaskId, entry: Option<QueueEntry>) {
        let before = self.all[number as usize].queue.set(task, entry);
        if tube_task(task).is_some() {
            self.moved.push(task);
        }
        if self.journal.on {
            self.journal.tasks.entry((number, task)).or_insert(before);
        }
    }

    /// Changes the entry of a task, if it exists.
    pub(super) fn change_entry(
        &mut self,
        number: u32,
        task: TaskId,
        change: impl FnOnce(&mut QueueEntry),
    ) {
        if let Some(entry) = self.queue(number).get(task) {
            let mut entry = entry.clone();
            change(&mut entry);
            self.set_entry(number, task, Some(entry));
        }
    }

    /// Sets or removes an event.
    pub(super) fn set_event(&mut self, id: EventId, row: Option<EventRecord>) {
        let before = self.outbox.set(id, row);
        if self.journal.on {
            self.journal.events.entry(id).or_insert(before);
        }
    }

    /// Adds an event for the holder of a grant.
    pub(super) fn add_event(
        &mut self,
        now: Timestamp,
        about: (u32, TaskId, Grant),
        kind: EventKind,
    ) {
        self.add_event_with_attempts(now, about, kind, 0);
    }

    /// The same, as if it had been sent `attempts` times already.
    pub(super) fn add_event_with_attempts(
        &mut self,
        now: Timestamp,
        (semaphore, task, grant): (u32, TaskId, Grant),
        kind: EventKind,
        attempts: u32,
    ) {
        let id = self.outbox.issue();
        let row = EventRecord { semaphore, task, grant, kind, attempts, next_at: now };
        self.set_event(id, Some(row));
        self.note_new_events(semaphore);
        self.notified_until = self.notified_until.max(Some(now));
    }

    /// After a semaphore changed: updates its wake-up.
    pub(super) fn schedule(&mut self, number: u32) {
        let semaphore = &mut self.all[number as usize];
        let recheck = semaphore.record.recheck_at;
        let wakeup = semaphore.queue.next_deadline().into_iter().chain(recheck).min();
        if wakeup != semaphore.wakeup {
            let old = std::mem::replace(&mut semaphore.wakeup, wakeup);
            old.map(|old| self.wakeups.remove(&(old, number)));
            wakeup.map(|new| self.wakeups.insert((new, number)));
        }
    }
}

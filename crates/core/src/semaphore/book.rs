//! All semaphores of one store.

use std::collections::{BTreeMap, BTreeSet};

use crate::effects::News;
use crate::error::{Error, Result};
use crate::task::TaskId;
use crate::time::Timestamp;

use super::command::{EventId, EventKind, SemaphoreCommand, SemaphoreReply};
use super::gated::tube_task;
use super::journal::Journal;
use super::key::{Grant, SemaphoreKey};
use super::line::Line;
use super::outbox::Outbox;
use super::place::Place;
use super::record::{EventRecord, SemaphoreRecord};

/// The rules of semaphores at work: all of one store, in memory.
#[derive(Debug, Default)]
pub struct Semaphores {
    pub(super) numbers: BTreeMap<SemaphoreKey, u32>,
    pub(super) all: Vec<Semaphore>,
    /// Numbers of semaphores that were dropped; the next ones get them.
    pub(super) vacant: BTreeSet<u32>,
    /// No new semaphore gives a grant up to this number: those of dropped semaphores may still be named.
    pub(super) grant_floor: u64,
    pub(super) outbox: Outbox,
    /// When each semaphore next wants a tick.
    pub(super) wakeups: BTreeSet<(Timestamp, u32)>,
    pub(super) next_seq: u64,
    pub(super) journal: Journal,
    /// Events that were due by then are known to those who wait for events.
    pub(super) told_until: Option<Timestamp>,
    /// New events came since the effects were asked for.
    pub(super) news: News,
    /// Tasks of tubes whose place may have changed since the tubes were told.
    pub(super) moved: Vec<TaskId>,
    /// Tasks of tubes that are taken. The machine lends it for as long as it asks something.
    pub(crate) at_work: BTreeSet<TaskId>,
}

/// One semaphore.
#[derive(Debug)]
pub(super) struct Semaphore {
    /// What is written down of it.
    pub record: SemaphoreRecord,
    pub line: Line,
    /// Its entry among the wake-ups.
    pub wakeup: Option<Timestamp>,
}

impl Semaphores {
    /// Applies one command at the moment `now`: as a whole or, with an error, not at all. Time must not run
    /// backwards.
    pub fn apply(&mut self, now: Timestamp, command: SemaphoreCommand) -> Result<SemaphoreReply> {
        command.check()?;
        match command {
            SemaphoreCommand::Configure { key, change, only_new } => {
                self.configure(now, key, &change, only_new)
            }
            SemaphoreCommand::Enqueue { key, wishes } => self.enqueue(now, &key, &wishes),
            SemaphoreCommand::Finish { key, items } => self.finish(now, &key, &items),
            SemaphoreCommand::Look { key, tasks } => self.look(&key, &tasks),
            SemaphoreCommand::Members { key, part, after, count } => {
                self.members(&key, part, after, count)
            }
            SemaphoreCommand::Drop { key, force } => self.drop_semaphore(&key, force),
            SemaphoreCommand::List { key } => self.list(key.as_ref()),
            SemaphoreCommand::Events { key, count, .. } => self.fetch(now, key.as_ref(), count),
            SemaphoreCommand::Acknowledge { events } => Ok(self.acknowledge(&events)),
        }
    }

    /// When time alone next changes something, or makes an event due.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let tick = self.wakeups.first().map(|wakeup| wakeup.0);
        let told = self.told_until.unwrap_or(Timestamp::from_micros(i64::MIN));
        tick.into_iter().chain(self.outbox.next_after(told)).min()
    }

    /// Of which semaphores events became due since the last call.
    pub fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Notes that there are events of a semaphore for those who wait.
    pub(super) fn tell_news(&mut self, number: u32) {
        let semaphore = &self.all[number as usize];
        self.news.add_key(&semaphore.record.key);
    }

    pub(super) fn number(&self, key: &SemaphoreKey) -> Result<u32> {
        let number = self.numbers.get(key).copied();
        number.ok_or_else(|| Error::SemaphoreNotFound(key.clone()))
    }

    pub(super) fn semaphore(&self, number: u32) -> &Semaphore {
        &self.all[number as usize]
    }

    pub(super) fn line(&self, number: u32) -> &Line {
        &self.semaphore(number).line
    }

    /// Changes what is written down of a semaphore.
    pub(super) fn update(&mut self, number: u32, change: impl FnOnce(&mut SemaphoreRecord)) {
        let semaphore = &mut self.all[number as usize];
        if self.journal.on {
            let before = || Some(semaphore.record.clone());
            self.journal.semaphores.entry(number).or_insert_with(before);
        }
        change(&mut semaphore.record);
    }

    /// Puts a task where it stands now, or takes it away.
    pub(super) fn place(&mut self, number: u32, task: TaskId, place: Option<Place>) {
        let before = self.all[number as usize].line.set(task, place);
        if tube_task(task).is_some() {
            self.moved.push(task);
        }
        if self.journal.on {
            self.journal.tasks.entry((number, task)).or_insert(before);
        }
    }

    /// Changes where a task stands; nothing happens when it is not there.
    pub(super) fn replace(&mut self, number: u32, task: TaskId, change: impl FnOnce(&mut Place)) {
        if let Some(place) = self.line(number).get(task) {
            let mut place = place.clone();
            change(&mut place);
            self.place(number, task, Some(place));
        }
    }

    /// Changes an event, makes it or removes it.
    pub(super) fn set_event(&mut self, id: EventId, row: Option<EventRecord>) {
        let before = self.outbox.set(id, row);
        if self.journal.on {
            self.journal.events.entry(id).or_insert(before);
        }
    }

    /// Tells the holder of a grant something.
    pub(super) fn tell(&mut self, now: Timestamp, about: (u32, TaskId, Grant), kind: EventKind) {
        self.tell_again(now, about, kind, 0);
    }

    /// The same, as if it had been told so many times already.
    pub(super) fn tell_again(
        &mut self,
        now: Timestamp,
        (semaphore, task, grant): (u32, TaskId, Grant),
        kind: EventKind,
        attempts: u32,
    ) {
        let id = self.outbox.issue();
        let row = EventRecord { semaphore, task, grant, kind, attempts, next_at: now };
        self.set_event(id, Some(row));
        self.tell_news(semaphore);
        self.told_until = self.told_until.max(Some(now));
    }

    /// After a semaphore changed: when does it want to be woken?
    pub(super) fn schedule(&mut self, number: u32) {
        let semaphore = &mut self.all[number as usize];
        let recheck = semaphore.record.recheck_at;
        let wakeup = semaphore.line.next_deadline().into_iter().chain(recheck).min();
        if wakeup != semaphore.wakeup {
            let old = std::mem::replace(&mut semaphore.wakeup, wakeup);
            old.map(|old| self.wakeups.remove(&(old, number)));
            wakeup.map(|new| self.wakeups.insert((new, number)));
        }
    }
}

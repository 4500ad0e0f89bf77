//! How a store writes a batch down, undoes it, and brings back what was written.

use crate::limits::SEMAPHORES_MAX;

use super::book::Semaphores;
use super::command::EventId;
use super::place::Place;
use super::record::{EventRecord, PlaceRecord, Row, SemaphoreChanges, SemaphoreRecord};

impl Semaphores {
    /// Begins a batch: from here on what changes is noted, until [`Semaphores::keep`] or
    /// [`Semaphores::undo`].
    pub fn begin(&mut self) {
        self.journal.clear(true);
    }

    /// What the batch changed that must be written down, in the order of numbers.
    pub fn changes(&self) -> SemaphoreChanges {
        let mut changes = SemaphoreChanges::default();
        for (number, before) in &self.journal.semaphores {
            let after = self.all.get(*number as usize).map(|semaphore| &semaphore.record);
            let after = after.filter(|_| !self.vacant.contains(number));
            changes.semaphores.extend(row(before.as_ref(), after).map(|row| (*number, row)));
        }
        for ((number, task), before) in &self.journal.tasks {
            let record = |place: &Place| PlaceRecord {
                semaphore: *number,
                task: *task,
                place: place.clone(),
            };
            let (before, after) =
                (before.as_ref().map(record), self.line(*number).get(*task).map(record));
            let seq = |record: &Option<PlaceRecord>| record.as_ref().map(|record| record.place.seq);
            let (old, new) = (seq(&before), seq(&after));
            if old == new {
                let row = row(before.as_ref(), after.as_ref());
                changes.tasks.extend(new.zip(row));
            } else {
                // It left and came again.
                changes.tasks.extend(old.map(|seq| (seq, Row::Remove)));
                changes.tasks.extend(new.zip(after.map(Row::Insert)));
            }
        }
        for (id, before) in &self.journal.events {
            let after = self.outbox.get(*id);
            changes.events.extend(row(before.as_ref(), after).map(|row| (*id, row)));
        }
        changes.semaphores.sort_unstable_by_key(|row| row.0);
        changes.tasks.sort_unstable_by_key(|row| row.0);
        changes.events.sort_unstable_by_key(|row| row.0);
        changes
    }

    /// Ends the batch: it is written down.
    pub fn keep(&mut self) {
        self.journal.clear(false);
    }

    /// Ends the batch as if it had not happened. Numbers of events and of arrivals that it used stay used.
    pub fn undo(&mut self) {
        let journal = std::mem::take(&mut self.journal);
        self.moved.clear();
        for (id, before) in journal.events {
            self.outbox.set(id, before);
        }
        for ((number, task), before) in journal.tasks {
            self.all[number as usize].line.set(task, before);
        }
        // What is new goes before what comes back: it may have the same key.
        let (back, new): (Vec<_>, Vec<_>) =
            journal.semaphores.into_iter().partition(|(_, before)| before.is_some());
        for number in new.iter().chain(&back).map(|(number, _)| *number) {
            if !self.vacant.contains(&number) {
                self.all[number as usize].record.recheck_at = None;
                self.vacate(number);
            }
        }
        for (number, before) in back {
            let Some(record) = before else { continue };
            self.vacant.remove(&number);
            self.numbers.insert(record.key.clone(), number);
            self.all[number as usize].record = record;
        }
        for number in 0..self.all.len() as u32 {
            if !self.vacant.contains(&number) {
                self.schedule(number);
            }
        }
    }

    /// Brings back a semaphore that was written down; whether it can have been: they come in the order of
    /// their numbers.
    pub fn restore_semaphore(&mut self, number: u32, record: SemaphoreRecord) -> bool {
        let known = (number as usize) < self.all.len() || self.numbers.contains_key(&record.key);
        if known || number as usize >= SEMAPHORES_MAX {
            return false;
        }
        self.add_at(number, record);
        self.schedule(number);
        true
    }

    /// Brings back a task that was written down, into a semaphore that is back already.
    pub fn restore_place(&mut self, record: PlaceRecord) -> bool {
        let PlaceRecord { semaphore: number, task, place } = record;
        if self.vacant.contains(&number) {
            return false;
        }
        let Some(semaphore) = self.all.get_mut(number as usize) else { return false };
        let newest = place.hold().map_or(0, |hold| hold.grant.0);
        if semaphore.line.get(task).is_some() || newest > semaphore.record.grant_seq {
            return false;
        }
        self.next_seq = self.next_seq.max(place.seq.saturating_add(1));
        semaphore.line.set(task, Some(place));
        self.schedule(number);
        true
    }

    /// Brings back an event that was written down.
    pub fn restore_event(&mut self, id: EventId, row: EventRecord) -> bool {
        let given = (row.semaphore as usize) < self.all.len();
        if !given || self.vacant.contains(&row.semaphore) || self.outbox.get(id).is_some() {
            return false;
        }
        self.outbox.set_next_id(id.0.saturating_add(1));
        self.outbox.set(id, Some(row));
        true
    }

    /// The number the next event gets.
    pub fn next_event(&self) -> u64 {
        self.outbox.next_id()
    }

    /// No new semaphore gives a grant up to this number.
    pub fn grant_floor(&self) -> u64 {
        self.grant_floor
    }

    /// Lets no new semaphore give a grant up to this number.
    pub fn raise_grant_floor(&mut self, grants: u64) {
        self.grant_floor = self.grant_floor.max(grants);
    }

    /// Lets the numbers of events go on from here, so that none is used twice.
    pub fn set_next_event(&mut self, number: u64) {
        self.outbox.set_next_id(number);
    }
}

/// What is to be written down of one thing.
fn row<T: Clone + PartialEq>(before: Option<&T>, after: Option<&T>) -> Option<Row<T>> {
    match (before, after) {
        (None, Some(after)) => Some(Row::Insert(after.clone())),
        (Some(_), None) => Some(Row::Remove),
        (Some(before), Some(after)) if before != after => Some(Row::Update(after.clone())),
        _ => None,
    }
}

//! Lets a store write a batch, undo it, and restore stored data.

use crate::limits::SEMAPHORES_MAX;

use super::command::EventId;
use super::entry::QueueEntry;
use super::record::{EventRecord, QueueEntryRecord, Row, SemaphoreChanges, SemaphoreRecord};
use super::semaphores::Semaphores;

impl Semaphores {
    /// Begins a batch: from here on changes are recorded, until [`Semaphores::keep`] or
    /// [`Semaphores::undo`].
    pub fn begin(&mut self) {
        self.journal.clear(true);
    }

    /// The changes of the batch that must be stored, in the order of numbers.
    pub fn changes(&self) -> SemaphoreChanges {
        let mut changes = SemaphoreChanges::default();
        for (number, before) in &self.journal.semaphores {
            let after = self.all.get(*number as usize).map(|semaphore| &semaphore.record);
            let after = after.filter(|_| !self.vacant.contains(number));
            match (before, after) {
                (Some(before), Some(after)) if before.differs_in_grants(after) => {
                    changes.granted.push((*number, after.clone()));
                }
                _ => {
                    changes.semaphores.extend(row(before.as_ref(), after).map(|row| (*number, row)))
                }
            }
        }
        for ((number, task), before) in &self.journal.tasks {
            let record = |entry: &QueueEntry| QueueEntryRecord {
                semaphore: *number,
                task: *task,
                entry: entry.clone(),
            };
            // Only the state that is stored is copied.
            match (before, self.queue(*number).get(*task)) {
                (Some(before), Some(after)) if before.seq == after.seq => {
                    if before != after {
                        changes.tasks.push((after.seq, Row::Update(record(after))));
                    }
                }
                // If both exist, the task was removed and enqueued again.
                (before, after) => {
                    changes.tasks.extend(before.as_ref().map(|entry| (entry.seq, Row::Remove)));
                    let insert = |entry: &QueueEntry| (entry.seq, Row::Insert(record(entry)));
                    changes.tasks.extend(after.map(insert));
                }
            }
        }
        for (id, before) in &self.journal.events {
            let after = self.outbox.get(*id);
            changes.events.extend(row(before.as_ref(), after).map(|row| (*id, row)));
        }
        changes.semaphores.sort_unstable_by_key(|row| row.0);
        changes.granted.sort_unstable_by_key(|row| row.0);
        changes.tasks.sort_unstable_by_key(|row| row.0);
        changes.events.sort_unstable_by_key(|row| row.0);
        changes
    }

    /// Ends the batch after it was stored.
    pub fn keep(&mut self) {
        self.journal.clear(false);
    }

    /// Reverts the batch. Event ids and sequence numbers that it used stay used.
    pub fn undo(&mut self) {
        let journal = std::mem::take(&mut self.journal);
        self.moved.clear();
        for (id, before) in journal.events {
            self.outbox.set(id, before);
        }
        for ((number, task), before) in journal.tasks {
            self.all[number as usize].queue.set(task, before);
        }
        // New semaphores are removed before old ones are restored: they may have the same key.
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

    /// Restores a stored semaphore; false if it cannot have been stored: they come in the order of
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

    /// Restores a stored task into a restored semaphore.
    pub fn restore_place(&mut self, record: QueueEntryRecord) -> bool {
        let QueueEntryRecord { semaphore: number, task, entry } = record;
        if self.vacant.contains(&number) {
            return false;
        }
        let Some(semaphore) = self.all.get_mut(number as usize) else { return false };
        let newest = entry.hold().map_or(0, |hold| hold.grant.0);
        if semaphore.queue.get(task).is_some() || newest > semaphore.record.grant_seq {
            return false;
        }
        self.next_seq = self.next_seq.max(entry.seq.saturating_add(1));
        semaphore.queue.set(task, Some(entry));
        self.schedule(number);
        true
    }

    /// Restores a stored event.
    pub fn restore_event(&mut self, id: EventId, row: EventRecord) -> bool {
        let given = (row.semaphore as usize) < self.all.len();
        if !given || self.vacant.contains(&row.semaphore) || self.outbox.get(id).is_some() {
            return false;
        }
        self.outbox.set_next_id(id.0.saturating_add(1));
        self.outbox.set(id, Some(row));
        true
    }

    /// A semaphore, as it is stored.
    pub fn record(&self, number: u32) -> Option<&SemaphoreRecord> {
        let semaphore = self.all.get(number as usize)?;
        (!self.vacant.contains(&number)).then_some(&semaphore.record)
    }

    /// The id of the next event.
    pub fn next_event(&self) -> u64 {
        self.outbox.next_id()
    }

    /// New semaphores issue no grant up to this number.
    pub fn grant_floor(&self) -> u64 {
        self.grant_floor
    }

    /// Sets the number up to which new semaphores issue no grant.
    pub fn raise_grant_floor(&mut self, grants: u64) {
        self.grant_floor = self.grant_floor.max(grants);
    }

    /// Continues event ids from here, so that none is used twice.
    pub fn set_next_event(&mut self, number: u64) {
        self.outbox.set_next_id(number);
    }
}

/// The change of one row that must be stored.
fn row<T: Clone + PartialEq>(before: Option<&T>, after: Option<&T>) -> Option<Row<T>> {
    match (before, after) {
        (None, Some(after)) => Some(Row::Insert(after.clone())),
        (Some(_), None) => Some(Row::Remove),
        (Some(before), Some(after)) if before != after => Some(Row::Update(after.clone())),
        _ => None,
    }
}

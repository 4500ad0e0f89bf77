//! Exports semaphores, and imports them.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::limits::SEMAPHORES_MAX;
use crate::task::TaskId;
use crate::transfer::{EventCopy, QueueEntryCopy, SemaphoreCopy};

use super::command::EventId;
use super::gated::{gated, tube_task};
use super::record::EventRecord;
use super::semaphores::Semaphores;

impl Semaphores {
    /// All semaphores, with all entries.
    pub(crate) fn export(&self) -> Vec<SemaphoreCopy> {
        let mut copies: Vec<SemaphoreCopy> = Vec::new();
        // The indexes of the copies, by number.
        let mut at: HashMap<u32, usize> = HashMap::new();
        let given = (0..).zip(&self.all).filter(|(number, _)| !self.vacant.contains(number));
        for (number, semaphore) in given {
            at.insert(number, copies.len());
            let entries = semaphore.queue.tasks().filter_map(|task| {
                let (tube, id) = apart(task);
                Some(QueueEntryCopy { tube, task: id, entry: semaphore.queue.get(task)?.clone() })
            });
            let mut entries: Vec<_> = entries.collect();
            entries.sort_unstable_by_key(|copy| copy.entry.seq);
            let record = semaphore.record.clone();
            copies.push(SemaphoreCopy { record, entries, events: Vec::new() });
        }
        for (id, row) in self.outbox.all() {
            let EventRecord { semaphore, task, grant, kind, attempts, next_at } = row.clone();
            let (tube, task) = apart(task);
            let event = EventCopy { id, tube, task, grant, kind, attempts, next_at };
            if let Some(at) = at.get(&semaphore) {
                copies[*at].events.push(event);
            }
        }
        for copy in &mut copies {
            copy.events.sort_unstable_by_key(|event| event.id);
        }
        copies
    }

    /// Refuses semaphores that already exist, or too many.
    pub(crate) fn check_import(&self, copies: &[SemaphoreCopy]) -> Result<()> {
        if self.numbers.len() + copies.len() > SEMAPHORES_MAX {
            return Err(Error::TooManySemaphores(SEMAPHORES_MAX));
        }
        match copies.iter().find(|copy| self.numbers.contains_key(&copy.record.key)) {
            Some(copy) => {
                let text = format!("semaphore '{}' already exists", copy.record.key);
                Err(Error::Invalid(text))
            }
            None => Ok(()),
        }
    }

    /// Creates semaphores without entries.
    pub(crate) fn import_records(&mut self, copies: &[SemaphoreCopy]) {
        for copy in copies {
            self.add(copy.record.clone());
        }
    }

    /// Imports the entries. `numbers` maps the tube numbers of the source to those here.
    pub(crate) fn import_entries(
        &mut self,
        copies: Vec<SemaphoreCopy>,
        numbers: &HashMap<u32, u32>,
    ) {
        let here = |tube: Option<u32>, task: TaskId| match tube {
            Some(tube) => numbers.get(&tube).map(|number| gated(*number, task)),
            None => Some(task),
        };
        let mut events = Vec::new();
        let mut entries = Vec::new();
        for copy in copies {
            let Some(number) = self.number_of(&copy.record.key) else { continue };
            entries.extend(copy.entries.into_iter().map(|entry| (number, entry)));
            events.extend(copy.events.into_iter().map(|event| (number, event)));
        }
        // Those of all semaphores in the order of arrival.
        entries.sort_by_key(|(_, copy)| copy.entry.seq);
        for (number, copy) in entries {
            let Some(task) = here(copy.tube, copy.task) else { continue };
            let entry = super::entry::QueueEntry { seq: self.next_seq, ..copy.entry };
            self.next_seq += 1;
            self.set_entry(number, task, Some(entry));
            self.schedule(number);
        }
        events.sort_by_key(|(_, event)| event.id);
        // All keep their ids, or none: their order must stay.
        let keep = events.first().is_none_or(|(_, event)| event.id.0 >= self.next_event());
        for (semaphore, event) in events {
            let Some(task) = here(event.tube, event.task) else { continue };
            let id = if keep { event.id } else { EventId(self.next_event()) };
            self.set_next_event(id.0 + 1);
            let EventCopy { grant, kind, attempts, next_at, .. } = event;
            let row = EventRecord { semaphore, task, grant, kind, attempts, next_at };
            self.set_event(id, Some(row));
            self.note_new_events(semaphore);
        }
        (0..self.all.len() as u32).for_each(|number| self.schedule(number));
    }
}

/// The tube and the task id, if it is the task of a tube.
fn apart(task: TaskId) -> (Option<u32>, TaskId) {
    tube_task(task).map_or((None, task), |(tube, id)| (Some(tube), id))
}

//! Exports the content of a machine, and imports it.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::done::DoneTask;
use crate::error::{Error, Result};
use crate::journal::Entry;
use crate::key::KeyRequest;
use crate::limits::{TASK_ID_MAX, TUBES_MAX};
use crate::record::{Record, StoredState};
use crate::slots::Slot;
use crate::task::TaskId;
use crate::tasks::DetachedTask;
use crate::time::Timestamp;
use crate::transfer::{ImportEnd, SemaphoreCopy, TubeCopy};
use crate::tube::TubeName;

use super::Machine;

impl Machine {
    /// All tubes without their tasks, by name.
    pub fn export_tubes(&self) -> Vec<TubeCopy> {
        let now = self.now.unwrap_or(Timestamp::EPOCH);
        let mut tubes: Vec<_> = self
            .tubes
            .iter()
            .map(|(number, tube)| {
                let mut copy = TubeCopy::new(tube.info(now, number), tube.next_id);
                copy.record.bucket = tube.bucket.map(|bucket| bucket.moved(self.wall_ahead));
                copy
            })
            .collect();
        tubes.sort_unstable_by(|a, b| a.record.name.cmp(&b.record.name));
        tubes
    }

    /// Tasks of a tube from this id on, at most `count`, by id. Taken ones are exported as
    /// released.
    pub fn export_tasks(&self, number: u32, from: TaskId, count: usize) -> Vec<Record> {
        let Some(tube) = self.tubes.get(number) else { return Vec::new() };
        let mut first = BTreeMap::new();
        for slot in tube.tasks.all().filter(|slot| slot.id >= from) {
            first.insert(slot.id, slot);
            if first.len() > count {
                first.pop_last();
            }
        }
        let done = tube.tasks.done().range(from..).take(count).map(|done| {
            let mut record = done.record.clone();
            record.move_moments(self.wall_ahead);
            record
        });
        let record = |slot: &Slot| {
            let mut record = tube.tasks.record(slot, self.wall_ahead);
            if let Some(delivery) = slot.delivery() {
                record.given_back(delivery.start, tube.options.attempts_max);
            }
            record.move_moments(self.wall_ahead);
            record
        };
        let mut records: Vec<_> = first.into_values().map(record).chain(done).collect();
        records.sort_unstable_by_key(|record| record.id);
        records.truncate(count);
        records
    }

    /// All semaphores with all entries.
    pub fn export_semaphores(&self) -> Vec<SemaphoreCopy> {
        let mut copies = self.semaphores.export();
        copies.iter_mut().for_each(|copy| copy.move_moments(self.wall_ahead));
        copies
    }

    /// Adds tasks of another store to a tube, with their ids, which must grow from call to call. All or none.
    pub fn import_tasks(&mut self, name: &TubeName, records: Vec<Record>) -> Result<()> {
        let number = self.number(name)?;
        let has_subqueues = self.tube(number).options.kind.has_subqueues();
        let mut next_id = self.tube(number).next_id;
        let mut new_keys = HashSet::new();
        for record in &records {
            let fits = record.id.0 >= next_id && record.id.0 <= TASK_ID_MAX;
            let contradicts = (record.state == StoredState::Done) != record.finished.is_some();
            let has_subqueue = record.subqueue.is_some();
            self.check_imported_key(number, record, &mut new_keys)?;
            if !fits || contradicts || record.body.is_none() || has_subqueues != has_subqueue {
                let text = format!(
                    "cannot import task {} into tube '{name}': invalid id, body or sub-queue",
                    record.id
                );
                return Err(Error::Invalid(text));
            }
            next_id = record.id.0 + 1;
        }
        let batch = self.journal.batch;
        for mut record in records {
            record.move_moments(self.wall_ahead.saturating_neg());
            let id = record.id;
            if let Some(done) = DoneTask::new(record.clone(), batch) {
                let tube = self.tubes.get_mut(number).expect("the tube was just looked up");
                tube.tasks.insert_done(done, &mut self.shared);
                self.journal.push(|| Entry::Task { tube: number, id, before: None });
                continue;
            }
            let (subqueue, semaphore_priority) =
                (record.subqueue.clone(), record.semaphore_priority);
            let failures = record.failures.clone();
            let key = record.key.as_deref().map(KeyRequest::of);
            let attempts_max = record.attempts_max;
            let mut slot = Slot::from_record(record, self.wall_ahead);
            slot.noted = batch;
            let detached =
                DetachedTask { slot, subqueue, semaphore_priority, attempts_max, failures, key };
            let tube = self.tubes.get_mut(number).expect("the tube was just looked up");
            tube.tasks.insert(detached, &mut self.shared);
            self.journal.push(|| Entry::Task { tube: number, id, before: None });
        }
        self.tube(number).next_id = next_id;
        self.update_signals(number);
        Ok(())
    }

    /// Ends an import, as a whole or, with an error, not at all.
    pub fn end_import(&mut self, now: Timestamp, end: ImportEnd) -> Result<()> {
        self.check_import_end(&end)?;
        let ImportEnd { tubes, mut semaphores, schedules, next_lease } = end;
        let by = self.wall_ahead.saturating_neg();
        semaphores.iter_mut().for_each(|copy| copy.move_moments(by));
        self.set_next_lease(next_lease);
        self.semaphores.import_records(&semaphores);
        let mut numbers = HashMap::new();
        for (came, copy) in tubes {
            let number = self.number(&came)?;
            numbers.insert(copy.number, number);
            self.end_tube(number, copy);
        }
        self.semaphores.import_entries(semaphores, &numbers);
        for schedule in schedules {
            let name = schedule.name.clone();
            self.replace_schedule(&name, Some(schedule));
        }
        self.apply_grants();
        self.restored();
        self.repair_gates(now);
        numbers.into_values().for_each(|number| self.update_signals(number));
        Ok(())
    }

    fn check_import_end(&self, end: &ImportEnd) -> Result<()> {
        for (came, copy) in &end.tubes {
            let (number, name) = (self.number(came)?, &copy.record.name);
            if self.tubes.number(name).is_some_and(|other| other != number) {
                return Err(Error::TubeExists(name.clone()));
            }
            self.check_queue_num(Some(number), copy.record.options.queue_num)?;
            let Some(key) = &copy.record.options.semaphore else { continue };
            if !end.semaphores.iter().any(|semaphore| semaphore.record.key == *key) {
                return Err(Error::SemaphoreNotFound(key.clone()));
            }
        }
        if self.tubes.len() > TUBES_MAX {
            return Err(Error::TooManyTubes(self.tubes.len()));
        }
        self.check_schedules(&end.schedules)?;
        self.semaphores.check_import(&end.semaphores)
    }

    /// Gives a tube the name, options and numbers of its original.
    fn end_tube(&mut self, number: u32, copy: TubeCopy) {
        self.note_stats(number);
        let bucket = copy.record.bucket.map(|bucket| bucket.moved(-self.wall_ahead));
        self.set_bucket(number, bucket);
        let tube = self.tube(number);
        let (name, options) = (tube.name.clone(), tube.options.clone());
        tube.options = copy.record.options;
        tube.tasks.set_gated(tube.options.semaphore.is_some());
        tube.next_id = tube.next_id.max(copy.record.next_id);
        tube.since_open = copy.stats;
        let before = Box::new((name, options.queue_num));
        self.journal.push(|| Entry::Options { tube: number, before: options });
        self.journal.push(|| Entry::Named { tube: number, before });
        self.tubes.rename(number, copy.record.name);
    }
}

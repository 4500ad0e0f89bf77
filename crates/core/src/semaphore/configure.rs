//! Creates, changes, shows and drops semaphores.

use crate::error::{Error, Result};
use crate::limits::SEMAPHORES_MAX;
use crate::time::Timestamp;

use super::command::{SemaphoreInfo, SemaphoreReply};
use super::key::SemaphoreKey;
use super::options::{SemaphoreChange, SemaphoreOptions};
use super::queue::SemaphoreQueue;
use super::record::SemaphoreRecord;
use super::semaphores::{Semaphore, Semaphores};

impl Semaphores {
    pub(super) fn configure(
        &mut self,
        now: Timestamp,
        key: SemaphoreKey,
        change: &SemaphoreChange,
        only_new: bool,
    ) -> Result<SemaphoreReply> {
        let number = match self.numbers.get(&key) {
            Some(number) => {
                let number = *number;
                // Invalid options are refused even if they would not be used.
                let options = self.semaphore(number).record.options.changed(change)?;
                if only_new {
                    change.check_same(&key, &self.semaphore(number).record.options)?;
                } else {
                    self.update(number, |record| record.options = options);
                    self.admit_waiters(now, number);
                }
                number
            }
            None => {
                let options = SemaphoreOptions::default().changed(change)?;
                self.create(key, options)?
            }
        };
        Ok(SemaphoreReply::Semaphores(vec![self.info(number)]))
    }

    fn create(&mut self, key: SemaphoreKey, options: SemaphoreOptions) -> Result<u32> {
        if self.numbers.len() >= SEMAPHORES_MAX {
            return Err(Error::TooManySemaphores(SEMAPHORES_MAX));
        }
        Ok(self.add(SemaphoreRecord {
            key,
            options,
            grant_seq: self.grant_floor,
            recheck_at: None,
        }))
    }

    /// Adds a semaphore under a free number.
    pub(super) fn add(&mut self, record: SemaphoreRecord) -> u32 {
        let number = self.vacant.first().copied().unwrap_or(self.all.len() as u32);
        if self.journal.on {
            self.journal.semaphores.entry(number).or_insert(None);
        }
        self.add_at(number, record);
        number
    }

    /// Adds a semaphore under this free number. Skipped numbers before it are free, too.
    pub(super) fn add_at(&mut self, number: u32, record: SemaphoreRecord) {
        self.numbers.insert(record.key.clone(), number);
        let semaphore =
            || Semaphore { record: record.clone(), queue: SemaphoreQueue::default(), wakeup: None };
        while self.all.len() < number as usize {
            self.vacant.insert(self.all.len() as u32);
            let mut vacant = semaphore();
            vacant.record.recheck_at = None;
            self.all.push(vacant);
        }
        if self.vacant.remove(&number) {
            self.all[number as usize] = semaphore();
        } else {
            self.all.push(semaphore());
        }
    }

    /// Removes a semaphore with its content. The machine checks whether it gates a tube.
    pub(super) fn drop_semaphore(
        &mut self,
        key: &SemaphoreKey,
        force: bool,
    ) -> Result<SemaphoreReply> {
        let number = self.number(key)?;
        let mut tasks: Vec<_> = self.queue(number).tasks().collect();
        if !force && !tasks.is_empty() {
            return Err(Error::SemaphoreInUse(key.clone()));
        }
        tasks.sort_unstable();
        tasks.into_iter().for_each(|task| self.set_entry(number, task, None));
        let events = self.outbox.all().filter(|(_, row)| row.semaphore == number);
        let events: Vec<_> = events.map(|(id, _)| id).collect();
        events.into_iter().for_each(|id| self.set_event(id, None));
        // Records its state, to store the batch or to undo it.
        self.update(number, |record| record.recheck_at = None);
        self.schedule(number);
        let grants = self.semaphore(number).record.grant_seq;
        self.grant_floor = self.grant_floor.max(grants);
        self.vacate(number);
        Ok(SemaphoreReply::Dropped)
    }

    /// Frees the number of a semaphore without tasks.
    pub(super) fn vacate(&mut self, number: u32) {
        self.numbers.remove(&self.all[number as usize].record.key);
        self.vacant.insert(number);
    }

    pub(super) fn list(&self, key: Option<&SemaphoreKey>) -> Result<SemaphoreReply> {
        let infos = match key {
            Some(key) => vec![self.info(self.number(key)?)],
            None => self.numbers.values().map(|number| self.info(*number)).collect(),
        };
        Ok(SemaphoreReply::Semaphores(infos))
    }

    fn info(&self, number: u32) -> SemaphoreInfo {
        let Semaphore { record, queue, .. } = self.semaphore(number);
        SemaphoreInfo {
            key: record.key.clone(),
            options: record.options.clone().shown(),
            waiting: queue.waiting() as u64,
            delayed: queue.delayed() as u64,
            acquired: queue.acquired() as u64,
            revoking: queue.revoking() as u64,
            events: self.outbox.count(number),
            next_event: self.outbox.next_of(number),
        }
    }
}

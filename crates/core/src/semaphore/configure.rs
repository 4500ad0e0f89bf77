//! Making, changing and showing semaphores.

use crate::error::{Error, Result};
use crate::limits::SEMAPHORES_MAX;
use crate::time::Timestamp;

use super::book::{Semaphore, Semaphores};
use super::command::{SemaphoreInfo, SemaphoreReply};
use super::key::SemaphoreKey;
use super::line::Line;
use super::options::{SemaphoreChange, SemaphoreOptions};
use super::record::SemaphoreRecord;

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
                // What is wrong is wrong, also where it would not be used.
                let options = self.semaphore(number).record.options.changed(change)?;
                if !only_new {
                    self.update(number, |record| record.options = options);
                    self.settle(now, number);
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
        if self.all.len() >= SEMAPHORES_MAX {
            return Err(Error::TooManySemaphores(SEMAPHORES_MAX));
        }
        let number = self.all.len() as u32;
        let record = SemaphoreRecord { key, options, grant_seq: 0, recheck_at: None };
        if self.journal.on {
            self.journal.semaphores.insert(number, None);
        }
        self.add(record);
        Ok(number)
    }

    /// Adds a semaphore under the next number.
    pub(super) fn add(&mut self, record: SemaphoreRecord) {
        self.numbers.insert(record.key.clone(), self.all.len() as u32);
        self.all.push(Semaphore { record, line: Line::default(), wakeup: None });
    }

    pub(super) fn list(&self, key: Option<&SemaphoreKey>) -> Result<SemaphoreReply> {
        let infos = match key {
            Some(key) => vec![self.info(self.number(key)?)],
            None => self.numbers.values().map(|number| self.info(*number)).collect(),
        };
        Ok(SemaphoreReply::Semaphores(infos))
    }

    fn info(&self, number: u32) -> SemaphoreInfo {
        let Semaphore { record, line, .. } = self.semaphore(number);
        SemaphoreInfo {
            key: record.key.clone(),
            options: record.options.clone(),
            waiting: line.waiting() as u64,
            delayed: line.delayed() as u64,
            acquired: line.acquired() as u64,
            revoking: line.revoking() as u64,
            events: self.outbox.count(number),
            next_event: self.outbox.next_of(number),
        }
    }
}

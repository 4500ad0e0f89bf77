//! Collects the intact rows of semaphores of a damaged database, and writes them into a new one.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, Row};
use taskyard_core::semaphore::{EventRecord, QueueEntryRecord, SemaphoreRecord};
use taskyard_core::{EventId, SemaphoreKey, SemaphoreOptions, TaskId};

use super::super::codec::RowError;
use super::{SemaphoreHead, codec};

/// How many numbers are skipped, because the grants and events of lost commits are unknown.
const SKIPPED_NUMBERS: u64 = 1 << 32;

/// Number of columns of each table.
const SEMAPHORE_COLUMNS: usize = 17;
const TASK_COLUMNS: usize = 13;
const EVENT_COLUMNS: usize = 8;

/// An intact row.
pub(in super::super) enum SalvagedRow {
    Semaphore(u32, SemaphoreRecord),
    Entry(QueueEntryRecord),
    Event(EventId, EventRecord),
}

impl SalvagedRow {
    /// The numbers of columns that such a row can have.
    pub const COLUMNS: [usize; 3] = [SEMAPHORE_COLUMNS, TASK_COLUMNS, EVENT_COLUMNS];

    /// Decodes a row with this number of columns, if it is intact.
    pub fn read(columns: usize, row: &Row<'_>) -> Option<SalvagedRow> {
        match columns {
            SEMAPHORE_COLUMNS => codec::read_semaphore(row)
                .ok()
                .map(|(number, record)| SalvagedRow::Semaphore(number, record)),
            TASK_COLUMNS => codec::read_task(row).ok().map(SalvagedRow::Entry),
            _ => codec::read_event(row).ok().map(|(id, record)| SalvagedRow::Event(id, record)),
        }
    }
}

/// All intact rows.
#[derive(Default)]
pub(in super::super) struct SalvagedSemaphores {
    semaphores: BTreeMap<u32, SemaphoreRecord>,
    entries: BTreeMap<(u32, TaskId), QueueEntryRecord>,
    events: BTreeMap<u64, EventRecord>,
}

impl SalvagedSemaphores {
    pub fn add(&mut self, row: SalvagedRow) {
        match row {
            SalvagedRow::Semaphore(number, record) => {
                // Of two versions the later one has more grants.
                let known = self.semaphores.get(&number);
                if known.is_none_or(|known| known.grant_seq < record.grant_seq) {
                    self.semaphores.insert(number, record);
                }
            }
            SalvagedRow::Entry(record) => {
                let key = (record.semaphore, record.task);
                if self.entries.get(&key).is_none_or(|known| known.entry.seq < record.entry.seq) {
                    self.entries.insert(key, record);
                }
            }
            SalvagedRow::Event(id, record) => _ = self.events.entry(id.0).or_insert(record),
        }
    }

    /// The keys of the semaphores.
    pub fn keys(&self) -> BTreeSet<SemaphoreKey> {
        self.semaphores.values().map(|record| record.key.clone()).collect()
    }

    /// Writes the rows into a new database; returns their counts. `report_lost` receives the generated keys
    /// of semaphores of which only entries or events were found.
    pub fn write(
        mut self,
        db: &Connection,
        mut report_lost: impl FnMut(SemaphoreKey),
    ) -> Result<SemaphoreHead, RowError> {
        let mut head = SemaphoreHead::default();
        let named = self.entries.keys().map(|key| key.0);
        let named = named.chain(self.events.values().map(|event| event.semaphore));
        let Some(last) = named.chain(self.semaphores.keys().copied()).max() else {
            return Ok(head);
        };
        let named: BTreeSet<u32> = self
            .entries
            .keys()
            .map(|key| key.0)
            .chain(self.events.values().map(|event| event.semaphore))
            .collect();
        for number in 0..=last {
            // A number without rows may be that of a dropped semaphore.
            if !self.semaphores.contains_key(&number) && !named.contains(&number) {
                continue;
            }
            let mut record = match self.semaphores.remove(&number) {
                Some(record) => record,
                None => {
                    let record = lost_semaphore(number)?;
                    report_lost(record.key.clone());
                    record
                }
            };
            let entries = self.entries.range((number, TaskId(0))..=(number, TaskId(u64::MAX)));
            let newest =
                entries.filter_map(|(_, record)| record.entry.hold()).map(|hold| hold.grant.0);
            record.grant_seq =
                newest.chain([record.grant_seq]).max().unwrap_or(0) + SKIPPED_NUMBERS;
            codec::write_semaphore(db, number, &record)?;
            head.semaphores += 1;
        }
        for record in self.entries.values() {
            codec::insert_task(db, record)?;
            head.add_task(record.entry.seq as i64);
        }
        for (id, record) in &self.events {
            codec::insert_event(db, EventId(*id), record)?;
            head.add_event(*id as i64);
        }
        head.next_event =
            self.events.last_key_value().map_or(0, |(id, _)| id + 1) + SKIPPED_NUMBERS;
        head.write(db)?;
        Ok(head)
    }
}

/// Replaces a lost semaphore; it admits no task until it is configured.
fn lost_semaphore(number: u32) -> Result<SemaphoreRecord, RowError> {
    let key = SemaphoreKey::new(&format!("recovered-{number}"))
        .map_err(|error| RowError::Damaged(error.to_string()))?;
    let options = SemaphoreOptions { active: 0, try_release: 0, ..SemaphoreOptions::default() };
    Ok(SemaphoreRecord { key, options, grant_seq: 0, recheck_at: None })
}

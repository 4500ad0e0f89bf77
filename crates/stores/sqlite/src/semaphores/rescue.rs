//! What is saved of the semaphores of a damaged database.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, Row};
use taskyard_core::semaphore::{EventRecord, QueueEntryRecord, SemaphoreRecord};
use taskyard_core::{EventId, SemaphoreKey, SemaphoreOptions, TaskId};

use super::super::codec::RowError;
use super::{SemaphoreHead, codec};

/// Which grants and events the lost commits had is unknown: so many numbers are left out.
const LEFT_OUT: u64 = 1 << 32;

/// How many columns the rows of each table have.
const SEMAPHORE_COLUMNS: usize = 17;
const TASK_COLUMNS: usize = 13;
const EVENT_COLUMNS: usize = 8;

/// A row that is as it was written.
pub(in super::super) enum Found {
    Semaphore(u32, SemaphoreRecord),
    Place(QueueEntryRecord),
    Event(EventId, EventRecord),
}

impl Found {
    /// How many columns a row may have to be one of these.
    pub const COLUMNS: [usize; 3] = [SEMAPHORE_COLUMNS, TASK_COLUMNS, EVENT_COLUMNS];

    /// What a row of so many columns is, if its checksum is right.
    pub fn read(columns: usize, row: &Row<'_>) -> Option<Found> {
        match columns {
            SEMAPHORE_COLUMNS => codec::read_semaphore(row)
                .ok()
                .map(|(number, record)| Found::Semaphore(number, record)),
            TASK_COLUMNS => codec::read_task(row).ok().map(Found::Place),
            _ => codec::read_event(row).ok().map(|(id, record)| Found::Event(id, record)),
        }
    }
}

/// All that was found.
#[derive(Default)]
pub(in super::super) struct Rescued {
    semaphores: BTreeMap<u32, SemaphoreRecord>,
    places: BTreeMap<(u32, TaskId), QueueEntryRecord>,
    events: BTreeMap<u64, EventRecord>,
}

impl Rescued {
    pub fn add(&mut self, found: Found) {
        match found {
            Found::Semaphore(number, record) => {
                // Of two versions the later one has given more grants.
                let known = self.semaphores.get(&number);
                if known.is_none_or(|known| known.grant_seq < record.grant_seq) {
                    self.semaphores.insert(number, record);
                }
            }
            Found::Place(record) => {
                let place = (record.semaphore, record.task);
                if self.places.get(&place).is_none_or(|known| known.entry.seq < record.entry.seq) {
                    self.places.insert(place, record);
                }
            }
            Found::Event(id, record) => _ = self.events.entry(id.0).or_insert(record),
        }
    }

    /// The keys of the semaphores themselves.
    pub fn keys(&self) -> BTreeSet<SemaphoreKey> {
        self.semaphores.values().map(|record| record.key.clone()).collect()
    }

    /// Writes it into a new database; how much it was. `tell_lost` is told of semaphores that are known by those who stand
    /// there alone, by the keys they get.
    pub fn write(
        mut self,
        db: &Connection,
        mut tell_lost: impl FnMut(SemaphoreKey),
    ) -> Result<SemaphoreHead, RowError> {
        let mut head = SemaphoreHead::default();
        let named = self.places.keys().map(|place| place.0);
        let named = named.chain(self.events.values().map(|event| event.semaphore));
        let Some(last) = named.chain(self.semaphores.keys().copied()).max() else {
            return Ok(head);
        };
        let named: BTreeSet<u32> = self
            .places
            .keys()
            .map(|place| place.0)
            .chain(self.events.values().map(|event| event.semaphore))
            .collect();
        for number in 0..=last {
            // A number without anything may be that of one that was dropped.
            if !self.semaphores.contains_key(&number) && !named.contains(&number) {
                continue;
            }
            let mut record = match self.semaphores.remove(&number) {
                Some(record) => record,
                None => {
                    let record = lost(number)?;
                    tell_lost(record.key.clone());
                    record
                }
            };
            let places = self.places.range((number, TaskId(0))..=(number, TaskId(u64::MAX)));
            let newest =
                places.filter_map(|(_, record)| record.entry.hold()).map(|hold| hold.grant.0);
            record.grant_seq = newest.chain([record.grant_seq]).max().unwrap_or(0) + LEFT_OUT;
            codec::write_semaphore(db, number, &record)?;
            head.semaphores += 1;
        }
        for record in self.places.values() {
            codec::insert_task(db, record)?;
            head.add_task(record.entry.seq as i64);
        }
        for (id, record) in &self.events {
            codec::insert_event(db, EventId(*id), record)?;
            head.add_event(*id as i64);
        }
        head.next_event = self.events.last_key_value().map_or(0, |(id, _)| id + 1) + LEFT_OUT;
        head.write(db)?;
        Ok(head)
    }
}

/// Stands for a semaphore that is lost itself: nobody is let in until somebody says how many may.
fn lost(number: u32) -> Result<SemaphoreRecord, RowError> {
    let key = SemaphoreKey::new(&format!("recovered-{number}"))
        .map_err(|error| RowError::Damaged(error.to_string()))?;
    let options = SemaphoreOptions { active: 0, try_release: 0, ..SemaphoreOptions::default() };
    Ok(SemaphoreRecord { key, options, grant_seq: 0, recheck_at: None })
}

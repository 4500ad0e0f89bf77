//! Reads and writes the row that counts the rows of the semaphores.

use rusqlite::{Connection, OptionalExtension, params};

use super::super::codec::{RowChecksum, RowError, mix};

/// The one row of `semaphore_head`. A store that never had a semaphore has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct SemaphoreHead {
    pub semaphores: u64,
    pub tasks: u64,
    pub task_keys: u64,
    pub events: u64,
    pub event_keys: u64,
    pub next_event: u64,
    /// The value of the row of `semaphore_floor`; not a column of this row.
    pub grant_floor: u64,
}

impl SemaphoreHead {
    pub fn add_task(&mut self, key: i64) {
        self.tasks = self.tasks.wrapping_add(1);
        self.task_keys = self.task_keys.wrapping_add(mix(key));
    }

    pub fn remove_task(&mut self, key: i64) {
        self.tasks = self.tasks.wrapping_sub(1);
        self.task_keys = self.task_keys.wrapping_sub(mix(key));
    }

    pub fn add_event(&mut self, key: i64) {
        self.events = self.events.wrapping_add(1);
        self.event_keys = self.event_keys.wrapping_add(mix(key));
    }

    pub fn remove_event(&mut self, key: i64) {
        self.events = self.events.wrapping_sub(1);
        self.event_keys = self.event_keys.wrapping_sub(mix(key));
    }

    fn numbers(&self) -> [i64; 6] {
        [self.semaphores, self.tasks, self.task_keys, self.events, self.event_keys, self.next_event]
            .map(|number| number as i64)
    }

    fn sum(&self) -> i64 {
        self.numbers().into_iter().fold(RowChecksum::new(1), RowChecksum::number).finish()
    }

    pub fn write(&self, db: &Connection) -> rusqlite::Result<usize> {
        let sql = "INSERT OR REPLACE INTO semaphore_head VALUES (1,?,?,?,?,?,?,?)";
        let [semaphores, tasks, task_keys, events, event_keys, next_event] = self.numbers();
        db.prepare_cached(sql)?.execute(params![
            semaphores,
            tasks,
            task_keys,
            events,
            event_keys,
            next_event,
            self.sum()
        ])
    }

    pub fn read(db: &Connection) -> Result<SemaphoreHead, RowError> {
        let sql = "SELECT * FROM semaphore_head";
        let read = |row: &rusqlite::Row<'_>| {
            let number =
                |column: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(column)? as u64);
            let head = SemaphoreHead {
                semaphores: number(1)?,
                tasks: number(2)?,
                task_keys: number(3)?,
                events: number(4)?,
                event_keys: number(5)?,
                next_event: number(6)?,
                grant_floor: 0,
            };
            Ok((head, row.get::<_, i64>(7)?))
        };
        match db.query_row(sql, [], read).optional()? {
            None => Ok(SemaphoreHead::default()),
            Some((head, sum)) if sum == head.sum() => Ok(head),
            Some(_) => {
                Err(RowError::Damaged("the checksum of its semaphores' head row is wrong".into()))
            }
        }
    }
}

//! Verifies the rows of a snapshot as the opening of a store does, so that damage is found when a backup is made.

use rusqlite::{Connection, Row};

use super::super::clock;
use super::super::codec::{self, Head, RowError};
use super::super::keys::{self, KeyHead};
use super::super::pace::{self, PaceHead};
use super::super::semaphores::{self, SemaphoreHead};

/// What the head rows say, compared with what is found.
#[derive(Debug, Default)]
pub(super) struct SnapshotCheck {
    expected: Counts,
    found: Counts,
}

/// How many rows the tables have, and sums over their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    head: Head,
    keys: KeyHead,
    semaphores: SemaphoreHead,
    pace: PaceHead,
}

impl SnapshotCheck {
    /// Reads and verifies the tables that have one row each.
    pub fn new(db: &Connection, head: Head) -> Result<Self, RowError> {
        clock::read(db)?;
        let expected = Counts {
            head,
            keys: KeyHead::read(db)?,
            semaphores: SemaphoreHead::read(db)?,
            pace: PaceHead::read(db)?,
        };
        let mut found = Counts { head, ..Counts::default() };
        (found.head.tubes, found.head.tasks, found.head.task_keys) = (0, 0, 0);
        found.semaphores.next_event = expected.semaphores.next_event;
        Ok(SnapshotCheck { expected, found })
    }

    /// Verifies a row and counts it. Of a task the row begins with the columns that decoding it needs.
    pub fn add(&mut self, table: &str, row: &Row<'_>) -> Result<(), RowError> {
        let found = &mut self.found;
        match table {
            "task" => {
                codec::read_task(row)?;
                found.head.add(row.get(0)?);
            }
            "tube" => {
                codec::read_tube(row)?;
                found.head.tubes += 1;
            }
            "unique_key" => found.keys.add(keys::read_row(row)?.0),
            "tube_pace" | "schedule" => pace::verify(table, row, &mut found.pace)?,
            _ => semaphores::verify(table, row, &mut found.semaphores)?,
        }
        Ok(())
    }

    /// Called after the last row: checks that none is missing.
    pub fn finish(&self) -> Result<(), RowError> {
        let (expected, found) = (&self.expected, &self.found);
        let missing = [
            ("tubes and tasks", expected.head != found.head),
            ("unique keys", expected.keys != found.keys),
            ("semaphores", expected.semaphores != found.semaphores),
            ("schedules, retry policies and rate limits", expected.pace != found.pace),
        ];
        match missing.iter().find(|(_, is_missing)| *is_missing) {
            None => Ok(()),
            Some((what, _)) => {
                let what = format!("its {what} are not as many as there should be");
                Err(RowError::Damaged(what))
            }
        }
    }
}

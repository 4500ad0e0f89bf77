//! Semaphores in the database: they are written in the transaction of the batch that changed them.

mod codec;
mod head;
mod rescue;

use rusqlite::Connection;
use taskyard_core::Machine;
use taskyard_core::semaphore::{Row, SemaphoreChanges};

use super::codec::RowError;
use super::write_error::WriteError;

pub(super) use head::SemaphoreHead;
pub(super) use rescue::{Found, Rescued};

/// Writes what a batch changed.
pub(super) fn write(
    db: &Connection,
    changes: &SemaphoreChanges,
    next_event: u64,
    head: &mut SemaphoreHead,
) -> Result<(), WriteError> {
    for (number, row) in &changes.semaphores {
        match row {
            Row::Insert(record) => {
                head.semaphores += 1;
                expect_one(codec::write_semaphore(db, *number, record)?, "a semaphore")?;
            }
            Row::Update(record) => {
                expect_one(codec::write_semaphore(db, *number, record)?, "a semaphore")?;
            }
            Row::Remove => {}
        }
    }
    for (seq, row) in &changes.tasks {
        let key = *seq as i64;
        let written = match row {
            Row::Insert(record) => {
                head.add_task(key);
                codec::insert_task(db, record)?
            }
            Row::Update(record) => codec::update_task(db, record)?,
            Row::Remove => {
                head.remove_task(key);
                remove(db, "DELETE FROM semaphore_task WHERE seq = ?", key)?
            }
        };
        expect_one(written, "a task of a semaphore")?;
    }
    for (id, row) in &changes.events {
        let key = id.0 as i64;
        let written = match row {
            Row::Insert(record) => {
                head.add_event(key);
                codec::insert_event(db, *id, record)?
            }
            Row::Update(record) => codec::update_event(db, *id, record)?,
            Row::Remove => {
                head.remove_event(key);
                remove(db, "DELETE FROM semaphore_event WHERE id = ?", key)?
            }
        };
        expect_one(written, "an event of a semaphore")?;
    }
    head.next_event = next_event;
    head.write(db)?;
    Ok(())
}

fn remove(db: &Connection, sql: &str, key: i64) -> rusqlite::Result<usize> {
    db.prepare_cached(sql)?.execute([key])
}

fn expect_one(written: usize, what: &str) -> Result<(), WriteError> {
    if written == 1 {
        return Ok(());
    }
    Err(WriteError::Damaged(format!("{what}: {written} rows where 1 should be")))
}

/// Fills the machine with what is written down, and checks that it is everything.
pub(super) fn read(db: &Connection, machine: &mut Machine) -> Result<SemaphoreHead, RowError> {
    let head = SemaphoreHead::read(db)?;
    let mut found = SemaphoreHead { next_event: head.next_event, ..SemaphoreHead::default() };
    let semaphores = machine.semaphores_mut();
    semaphores.set_next_event(head.next_event);
    each(db, "SELECT * FROM semaphore ORDER BY number", |row| {
        let (number, record) = codec::read_semaphore(row)?;
        found.semaphores += 1;
        fits(semaphores.restore_semaphore(number, record), "semaphore number", &number)
    })?;
    each(db, "SELECT * FROM semaphore_task ORDER BY seq", |row| {
        let record = codec::read_task(row)?;
        let seq = record.place.seq;
        found.add_task(seq as i64);
        fits(semaphores.restore_place(record), "the task of a semaphore with the arrival", &seq)
    })?;
    each(db, "SELECT * FROM semaphore_event ORDER BY id", |row| {
        let (id, record) = codec::read_event(row)?;
        found.add_event(id.0 as i64);
        let known = id.0 < head.next_event;
        fits(known && semaphores.restore_event(id, record), "the event", &id)
    })?;
    if found == head {
        return Ok(head);
    }
    let written = (head.semaphores, head.tasks, head.events);
    let left = (found.semaphores, found.tasks, found.events);
    Err(RowError::Damaged(format!(
        "{written:?} semaphores, their tasks and events are written down, {left:?} were found"
    )))
}

fn each(
    db: &Connection,
    sql: &str,
    mut take: impl FnMut(&rusqlite::Row<'_>) -> Result<(), RowError>,
) -> Result<(), RowError> {
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        take(row)?;
    }
    Ok(())
}

fn fits(fits: bool, what: &str, number: &dyn std::fmt::Display) -> Result<(), RowError> {
    if fits { Ok(()) } else { Err(RowError::Damaged(format!("{what} {number} cannot be there"))) }
}

//! Reads and writes the semaphores in the database, in the transaction of the batch that changed them.

mod codec;
mod head;
mod reserved_grants;
mod salvage;

use rusqlite::Connection;
use taskyard_core::Machine;
use taskyard_core::semaphore::{Row, SemaphoreChanges, SemaphoreRecord};

use super::codec::RowError;
use super::write_error::WriteError;

pub(super) use head::SemaphoreHead;
pub(super) use reserved_grants::ReservedGrants;
pub(super) use salvage::{SalvagedRow, SalvagedSemaphores};

/// Writes the changes of a batch.
pub(super) fn write(
    db: &Connection,
    changes: &SemaphoreChanges,
    (next_event, grant_floor): (u64, u64),
    head: &mut SemaphoreHead,
    reserved: &mut ReservedGrants,
) -> Result<(), WriteError> {
    for (number, row) in &changes.semaphores {
        match row {
            Row::Insert(record) => {
                head.semaphores += 1;
                write_semaphore(db, *number, &reserved.reserve(*number, record))?;
            }
            Row::Update(record) => {
                write_semaphore(db, *number, &reserved.reserve(*number, record))?;
            }
            Row::Remove => {
                head.semaphores = head.semaphores.wrapping_sub(1);
                reserved.forget(*number);
                let sql = "DELETE FROM semaphore WHERE number = ?";
                expect_one(remove(db, sql, i64::from(*number))?, "a semaphore")?;
            }
        }
    }
    for (number, record) in &changes.granted {
        if !reserved.covers(*number, record) {
            write_semaphore(db, *number, &reserved.reserve(*number, record))?;
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
        expect_one(written, "an entry of a semaphore")?;
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
    // Also without a deleted row: a new semaphore may have taken the number of a dropped one.
    if head.grant_floor != grant_floor {
        let sql = "INSERT OR REPLACE INTO semaphore_floor VALUES (1, ?)";
        db.prepare_cached(sql)?.execute([grant_floor as i64])?;
        head.grant_floor = grant_floor;
    }
    head.next_event = next_event;
    head.write(db)?;
    Ok(())
}

/// Writes the row of a semaphore.
fn write_semaphore(
    db: &Connection,
    number: u32,
    record: &SemaphoreRecord,
) -> Result<(), WriteError> {
    expect_one(codec::write_semaphore(db, number, record)?, "a semaphore")
}

/// Writes the exact numbers of grants instead of the reserved ones; none is issued afterwards.
pub(super) fn release_reserved(
    db: &Connection,
    machine: &Machine,
    reserved: &mut ReservedGrants,
) -> Result<(), WriteError> {
    for number in reserved.take() {
        if let Some(record) = machine.semaphores().record(number) {
            write_semaphore(db, number, record)?;
        }
    }
    Ok(())
}

fn floor(db: &Connection) -> rusqlite::Result<u64> {
    // The database may have an older format, without this table.
    let exists = "SELECT count(*) FROM sqlite_master WHERE name = 'semaphore_floor'";
    if db.query_row(exists, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(0);
    }
    let found = db.query_row("SELECT max(grants) FROM semaphore_floor", [], |row| {
        row.get::<_, Option<i64>>(0)
    })?;
    Ok(found.unwrap_or(0) as u64)
}

fn remove(db: &Connection, sql: &str, key: i64) -> rusqlite::Result<usize> {
    db.prepare_cached(sql)?.execute([key])
}

fn expect_one(written: usize, what: &str) -> Result<(), WriteError> {
    if written == 1 {
        return Ok(());
    }
    Err(WriteError::Damaged(format!("{what}: {written} rows instead of 1")))
}

/// Verifies a row of a table of this module and counts it.
pub(super) fn verify(
    table: &str,
    row: &rusqlite::Row<'_>,
    found: &mut SemaphoreHead,
) -> Result<(), RowError> {
    match table {
        "semaphore" => {
            codec::read_semaphore(row)?;
            found.semaphores += 1;
        }
        "semaphore_task" => found.add_task(codec::read_task(row)?.entry.seq as i64),
        "semaphore_event" => found.add_event(codec::read_event(row)?.0.0 as i64),
        _ => {}
    }
    Ok(())
}

/// Restores all semaphores, and checks that none is missing.
pub(super) fn read(db: &Connection, machine: &mut Machine) -> Result<SemaphoreHead, RowError> {
    let head = SemaphoreHead { grant_floor: floor(db)?, ..SemaphoreHead::read(db)? };
    let SemaphoreHead { next_event, grant_floor, .. } = head;
    let mut found = SemaphoreHead { next_event, grant_floor, ..SemaphoreHead::default() };
    let semaphores = machine.semaphores_mut();
    semaphores.set_next_event(head.next_event);
    semaphores.raise_grant_floor(grant_floor);
    each(db, "SELECT * FROM semaphore ORDER BY number", |row| {
        let (number, record) = codec::read_semaphore(row)?;
        found.semaphores += 1;
        fits(semaphores.restore_semaphore(number, record), "semaphore number", &number)
    })?;
    each(db, "SELECT * FROM semaphore_task ORDER BY seq", |row| {
        let record = codec::read_task(row)?;
        let seq = record.entry.seq;
        found.add_task(seq as i64);
        fits(
            semaphores.restore_place(record),
            "the entry of a semaphore with the sequence number",
            &seq,
        )
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
        "it should have {written:?} semaphores, entries and events, and has {left:?}"
    )))
}

/// Lets the grants of all semaphores, also of those that will be created, and the ids of events go on later by this many.
pub(super) fn skip_numbers(db: &Connection, skipped: u64) -> Result<(), RowError> {
    let has_table = |name: &str| {
        let exists = "SELECT count(*) FROM sqlite_schema WHERE name = ?";
        db.query_row(exists, [name], |row| row.get::<_, i64>(0)).map(|count| count > 0)
    };
    if !has_table("semaphore")? {
        return Ok(());
    }
    let mut found = Vec::new();
    each(db, "SELECT * FROM semaphore", |row| {
        found.push(codec::read_semaphore(row)?);
        Ok(())
    })?;
    let mut highest = floor(db)?;
    for (number, mut record) in found {
        highest = highest.max(record.grant_seq);
        record.grant_seq = record.grant_seq.saturating_add(skipped);
        codec::write_semaphore(db, number, &record)?;
    }
    // A semaphore that was created after the backup may be created again.
    if has_table("semaphore_floor")? {
        let sql = "INSERT OR REPLACE INTO semaphore_floor VALUES (1, ?)";
        db.execute(sql, [highest.saturating_add(skipped) as i64])?;
    }
    let mut head = SemaphoreHead::read(db)?;
    head.next_event = head.next_event.saturating_add(skipped);
    head.write(db)?;
    Ok(())
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
    if fits { Ok(()) } else { Err(RowError::Damaged(format!("{what} {number} is invalid"))) }
}

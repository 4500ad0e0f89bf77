//! What can be saved from a damaged database, when its owner accepts the loss.

use std::path::Path;

use rusqlite::{Connection, params};
use taskyard_core::TaskId;

use super::codec::{self, Head, RowError};
use super::folder::{connect, create, database, log, row_error};
use crate::OpenError;

/// Keeps the damaged files under other names and makes a new database of every row that is as it
/// was written.
pub(super) fn rebuild(folder: &Path) -> Result<(), OpenError> {
    let io = |error: std::io::Error| OpenError::Unavailable {
        folder: folder.to_owned(),
        what: error.to_string(),
    };
    let damaged = (1..)
        .map(|number| folder.join(format!("taskyard.db.damaged-{number}")))
        .find(|path| !path.exists())
        .unwrap_or_else(|| folder.join("taskyard.db.damaged"));
    std::fs::rename(database(folder), &damaged).map_err(io)?;
    let mut damaged_log = damaged.clone().into_os_string();
    damaged_log.push("-wal");
    if log(folder).exists() {
        std::fs::rename(log(folder), damaged_log).map_err(io)?;
    }
    _ = std::fs::remove_file(folder.join("taskyard.db-shm"));
    create(folder)?;
    let new = connect(folder)?;
    let old = Connection::open(&damaged).map_err(|error| row_error(folder, error.into()))?;
    let saved = copy(&old, &new).map_err(|error| row_error(folder, error))?;
    tracing::warn!(
        tasks = saved.tasks,
        tubes = saved.tubes,
        kept = %damaged.display(),
        "what could be read was saved into a new database"
    );
    Ok(())
}

#[derive(Debug, Default)]
struct Saved {
    tubes: u64,
    tasks: u64,
}

fn copy(old: &Connection, new: &Connection) -> Result<Saved, RowError> {
    let mut saved = Saved::default();
    let mut head = Head::default();
    // Lease numbers may have been issued up to an unknown one: go on far beyond any of them.
    head.lease_ceiling = Head::read(old).map_or(1 << 62, |head| head.lease_ceiling + (1 << 32));
    head.batch = 1;
    new.execute_batch("BEGIN IMMEDIATE")?;
    let tubes = copy_tubes(old, new, &mut saved);
    copy_tasks(old, new, "ASC", &tubes, &mut head)?;
    // A page that cannot be read ends the first pass: come from the other side.
    copy_tasks(old, new, "DESC", &tubes, &mut head)?;
    head.write(new)?;
    new.execute_batch("COMMIT")?;
    saved.tasks = head.tasks;
    Ok(saved)
}

fn copy_tubes(old: &Connection, new: &Connection, saved: &mut Saved) -> Vec<u32> {
    let mut numbers = Vec::new();
    let Ok(mut statement) = old.prepare("SELECT * FROM tube") else { return numbers };
    let Ok(mut rows) = statement.query([]) else { return numbers };
    while let Ok(Some(row)) = rows.next() {
        let Ok((number, mut record)) = codec::read_tube(row) else { continue };
        // Which ids the lost commits used is unknown: none of them may come again.
        record.next_id += 1 << 32;
        if codec::write_tube(new, number, &record).is_ok() {
            numbers.push(number);
            saved.tubes += 1;
        }
    }
    numbers
}

fn copy_tasks(
    old: &Connection,
    new: &Connection,
    order: &str,
    tubes: &[u32],
    head: &mut Head,
) -> Result<(), RowError> {
    let columns = codec::TASK_COLUMNS;
    let sql = format!("SELECT {columns}, data_sum, meta, data FROM task ORDER BY key {order}");
    let Ok(mut statement) = old.prepare(&sql) else { return Ok(()) };
    let Ok(mut rows) = statement.query([]) else { return Ok(()) };
    let mut insert =
        new.prepare("INSERT OR IGNORE INTO task VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)")?;
    while let Ok(Some(row)) = rows.next() {
        let Ok((number, record)) = codec::read_task(row) else { continue };
        let key = codec::key(number, TaskId(record.id.0));
        let Ok(body) = codec::read_body(row, key, 11) else { continue };
        if !tubes.contains(&number) {
            continue;
        }
        let columns = codec::TaskColumns::new(key, &record);
        let added = insert.execute(params![
            key,
            columns.state,
            columns.due,
            columns.pri,
            columns.created,
            columns.expires,
            columns.ttr,
            columns.attempts,
            columns.previous_start,
            record.subqueue.as_deref(),
            columns.sum,
            codec::body_sum(key, body.meta(), body.payload()),
            body.meta(),
            body.payload(),
        ])?;
        if added == 1 {
            head.add(key);
        }
    }
    Ok(())
}

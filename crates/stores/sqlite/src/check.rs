//! Checks that the files of a folder are intact, before anything is used or changed.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use rusqlite::Connection;

use super::codec::{Head, RowError};
use super::folder::{APPLICATION_ID, MIGRATIONS, damaged, database, row_error, unavailable};
use super::platform::{Access, DataFolder};
use super::seal::Sealed;
use super::{codec, reader};
use taskyard_store::OpenError;

/// Checks the header of the database before SQLite reads it. SQLite takes some kinds of damage there for
/// settings: an empty file lets it delete the log, other bits make it read-only or let it move pages.
pub(super) fn header(folder: &DataFolder) -> Result<(), OpenError> {
    // Opened for writing too, so that a missing permission is reported here and not as damage.
    let file = folder.platform().open(&database(folder), Access::ReadWrite);
    let file = file.map_err(unavailable(folder))?;
    let mut bytes = [0; 100];
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(damaged(folder, "its database file is truncated"));
        }
        // The disk may be readable again later.
        read => read.map_err(unavailable(folder))?,
    }
    let number = |at: usize| i64::from(u32::from_be_bytes([0, 1, 2, 3].map(|i| bytes[at + i])));
    if &bytes[..16] != b"SQLite format 3\0" || number(68) != APPLICATION_ID {
        return Err(damaged(folder, "taskyard.db is not a taskyard database"));
    }
    let log_or_journal = [[1, 1], [2, 2]].contains(&[bytes[18], bytes[19]]);
    let (vacuum, encoding) = ([number(52), number(64)], number(56));
    if !log_or_journal || bytes[20] != 0 || vacuum != [0, 0] || encoding != 1 {
        return Err(damaged(folder, "the header of its database is invalid"));
    }
    Ok(())
}

/// Returns the version of the format, if this program can read it.
pub(super) fn format(folder: &Path, db: &Connection) -> Result<i64, OpenError> {
    let known = MIGRATIONS.len() as i64;
    let found: i64 = db
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(|error| row_error(folder, error.into()))?;
    if found > known {
        return Err(OpenError::TooNew { folder: folder.to_owned(), found, known });
    }
    if found < 1 {
        return Err(damaged(folder, "its format number is invalid"));
    }
    let (ours, theirs) = (expected_schema(found as usize), schema(db));
    let theirs = theirs.map_err(|error| row_error(folder, error.into()))?;
    if theirs != *ours.map_err(|error| row_error(folder, error.into()))? {
        return Err(damaged(folder, "the definitions of its tables were changed"));
    }
    Ok(found)
}

/// The definitions of the tables. A damaged type or condition would only take effect much later. Those of SQLite itself, such as the
/// statistics of ANALYZE, are not ours.
fn schema(db: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
    let sql = "SELECT name, sql FROM sqlite_schema WHERE name NOT GLOB 'sqlite_*' ORDER BY name";
    let mut statement = db.prepare(sql)?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// The definitions of the tables in a format. Those of the newest are computed once.
fn expected_schema(format: usize) -> rusqlite::Result<Cow<'static, [(String, String)]>> {
    static NEWEST: OnceLock<Vec<(String, String)>> = OnceLock::new();
    let is_newest = format == MIGRATIONS.len();
    if let Some(known) = NEWEST.get().filter(|_| is_newest) {
        return Ok(Cow::Borrowed(known));
    }
    let db = Connection::open_in_memory()?;
    MIGRATIONS[..format].iter().try_for_each(|migration| db.execute_batch(migration))?;
    let found = schema(&db)?;
    Ok(if is_newest { Cow::Borrowed(NEWEST.get_or_init(|| found)) } else { Cow::Owned(found) })
}

/// Checks that no commit is missing, neither in the database nor in the database and the journal together.
pub(super) fn seal(
    folder: &Path,
    in_database: u64,
    newest: u64,
    sealed: &Sealed,
) -> Result<(), OpenError> {
    let (sealed, in_log) = match *sealed {
        Sealed::Absent => return Err(damaged(folder, "its seal file is missing")),
        Sealed::Blank | Sealed::Unreadable => {
            return Err(damaged(folder, "its seal file is damaged"));
        }
        Sealed::Batch { newest, in_database } => (newest, in_database),
    };
    if in_database < in_log {
        let lost = in_log - in_database;
        return Err(damaged(folder, &format!("its log has lost the newest {lost} commits")));
    }
    if newest < sealed {
        let lost = sealed - newest;
        return Err(damaged(folder, &format!("its newest {lost} commits are lost")));
    }
    Ok(())
}

/// Checks that the database has as many rows as its head row says.
pub(super) fn counts(folder: &Path, head: &Head, found: &Head) -> Result<(), OpenError> {
    if found.tubes != head.tubes {
        let what = format!("it should have {} tubes and has {}", head.tubes, found.tubes);
        return Err(damaged(folder, &what));
    }
    if (found.tasks, found.task_keys) != (head.tasks, head.task_keys) {
        let what = format!("it should have {} tasks and has {}", head.tasks, found.tasks);
        return Err(damaged(folder, &what));
    }
    Ok(())
}

/// Checks that every body exists and is intact. This reads the whole file, so it is done only when damage is
/// known.
pub(super) fn bodies(db: &Connection) -> Result<(), RowError> {
    let mut statement = db.prepare("SELECT key FROM task")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (tube, id) = codec::split_key(row.get(0)?);
        if reader::read_body(db, tube, id)?.is_none() {
            return Err(RowError::Damaged(format!("task {id} of tube number {tube} is missing")));
        }
    }
    Ok(())
}

//! Opening a folder: nobody else has it, and everything in it is as it was written.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use taskyard_core::Machine;

use super::codec::{self, Head, RowError, TASK_COLUMNS};
use super::salvage;
use super::seal::{Seal, Sealed};
use super::writer::Writer;
use crate::{OpenError, OpenOptions};

/// The formats this version can read, as migrations to be applied in order.
const MIGRATIONS: &[&str] = &[include_str!("migrations/0001.sql")];
/// "yard" in ASCII: says that the file is ours.
const APPLICATION_ID: i64 = 0x7961_7264;

/// An open folder.
pub(super) struct Folder {
    pub machine: Machine,
    pub writer: Writer,
    /// Held for as long as the store is open.
    pub lock: File,
}

pub(super) fn database(folder: &Path) -> PathBuf {
    folder.join("taskyard.db")
}

pub(super) fn log(folder: &Path) -> PathBuf {
    folder.join("taskyard.db-wal")
}

pub(super) fn open(folder: &Path, options: &OpenOptions) -> Result<Folder, OpenError> {
    let unavailable = |error: std::io::Error| OpenError::Unavailable {
        folder: folder.to_owned(),
        what: error.to_string(),
    };
    std::fs::create_dir_all(folder).map_err(unavailable)?;
    let lock = lock(folder)?;
    let is_new = !database(folder).exists();
    let (seal, mut sealed) = Seal::open(&folder.join("taskyard.seal")).map_err(unavailable)?;
    if is_new {
        create(folder)?;
        if sealed != Sealed::Absent && !options.accept_loss {
            return Err(damaged(folder, "its database file is gone"));
        }
        sealed = Sealed::Batch(0);
        seal.reset(0).map_err(unavailable)?;
    }
    let (db, head, machine) = match read(folder, &sealed) {
        Ok(content) => content,
        Err(OpenError::Damaged { what, .. }) if options.accept_loss => {
            tracing::warn!(%what, "opening what is left of a damaged store");
            salvage::rebuild(folder)?;
            read(folder, &Sealed::Batch(0))?
        }
        Err(error) => return Err(error),
    };
    seal.reset(head.batch).map_err(unavailable)?;
    let mut writer = Writer::new(db, head, seal);
    for (number, next_id) in next_ids(&writer.db).map_err(|error| row_error(folder, error))? {
        writer.set_next_id(number, next_id);
    }
    Ok(Folder { machine, writer, lock })
}

fn lock(folder: &Path) -> Result<File, OpenError> {
    let what = |error: std::io::Error| OpenError::Unavailable {
        folder: folder.to_owned(),
        what: error.to_string(),
    };
    let file = File::create(folder.join("taskyard.lock")).map_err(what)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(folder.to_owned())),
        Err(TryLockError::Error(error)) => Err(what(error)),
    }
}

/// Makes an empty database under another name first, so that a crash leaves no half-made one.
pub(super) fn create(folder: &Path) -> Result<(), OpenError> {
    let draft = folder.join("taskyard.db.new");
    _ = std::fs::remove_file(&draft);
    let make = || -> rusqlite::Result<()> {
        let mut db = Connection::open(&draft)?;
        let tx = db.transaction()?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        for migration in MIGRATIONS {
            tx.execute_batch(migration)?;
        }
        tx.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
        Head::default().write(&tx)?;
        tx.commit()
    };
    make().map_err(|error| row_error(folder, RowError::Sqlite(error)))?;
    let publish = || {
        File::open(&draft)?.sync_all()?;
        // Left over from a database that is gone, it would be taken for a part of this one.
        _ = std::fs::remove_file(log(folder));
        std::fs::rename(&draft, database(folder))?;
        File::open(folder)?.sync_all()
    };
    publish().map_err(|error: std::io::Error| OpenError::Unavailable {
        folder: folder.to_owned(),
        what: error.to_string(),
    })
}

/// A connection to the database, set up as every one of ours is.
pub(super) fn connect(folder: &Path) -> Result<Connection, OpenError> {
    let open = || -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(database(folder), flags)?;
        db.set_prepared_statement_cache_capacity(32);
        db.busy_timeout(std::time::Duration::from_secs(10))?;
        db.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
        db.pragma_update(None, "synchronous", "full")?;
        db.pragma_update(None, "wal_autocheckpoint", 0)?;
        db.pragma_update(None, "cache_size", -8 * 1024)?;
        Ok(db)
    };
    open().map_err(|error| row_error(folder, RowError::Sqlite(error)))
}

/// Reads and checks everything.
fn read(folder: &Path, sealed: &Sealed) -> Result<(Connection, Head, Machine), OpenError> {
    let db = connect(folder)?;
    check_format(folder, &db)?;
    let head = Head::read(&db).map_err(|error| row_error(folder, error))?;
    check_seal(folder, &head, sealed)?;
    let mut machine = Machine::default();
    machine.set_next_lease(head.lease_ceiling);
    let found = read_rows(&db, &mut machine).map_err(|error| row_error(folder, error))?;
    if (found.tasks, found.task_keys) != (head.tasks, head.task_keys) {
        let what = format!("{} tasks are written down, {} were found", head.tasks, found.tasks);
        return Err(damaged(folder, &what));
    }
    Ok((db, head, machine))
}

fn check_format(folder: &Path, db: &Connection) -> Result<(), OpenError> {
    let pragma = |name: &str| -> Result<i64, OpenError> {
        db.pragma_query_value(None, name, |row| row.get(0))
            .map_err(|error| row_error(folder, RowError::Sqlite(error)))
    };
    if pragma("application_id")? != APPLICATION_ID {
        return Err(damaged(folder, "taskyard.db is no database of taskyard"));
    }
    let (found, known) = (pragma("user_version")?, MIGRATIONS.len() as i64);
    if found > known {
        return Err(OpenError::TooNew { folder: folder.to_owned(), found, known });
    }
    if found < 1 {
        return Err(damaged(folder, "its format number makes no sense"));
    }
    Ok(())
}

fn check_seal(folder: &Path, head: &Head, sealed: &Sealed) -> Result<(), OpenError> {
    match *sealed {
        Sealed::Absent => Err(damaged(folder, "its seal file is gone")),
        Sealed::Unreadable => Err(damaged(folder, "its seal file is damaged")),
        Sealed::Batch(batch) if head.batch < batch => {
            let lost = batch - head.batch;
            Err(damaged(folder, &format!("the newest {lost} commits are lost from its log")))
        }
        Sealed::Batch(_) => Ok(()),
    }
}

/// Fills the machine; returns what was found, to be compared with what was written.
fn read_rows(db: &Connection, machine: &mut Machine) -> Result<Head, RowError> {
    let mut statement = db.prepare("SELECT * FROM tube ORDER BY number")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (number, record) = codec::read_tube(row)?;
        machine.restore_tube(number, record);
    }
    let mut found = Head::default();
    let mut statement = db.prepare(&format!("SELECT {TASK_COLUMNS} FROM task ORDER BY key"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (number, record) = codec::read_task(row)?;
        let id = record.id;
        found.add(codec::key(number, id));
        if !machine.restore_task(number, record) {
            return Err(RowError::Damaged(format!("task {id} belongs to no tube ({number})")));
        }
    }
    Ok(found)
}

fn next_ids(db: &Connection) -> Result<Vec<(u32, u64)>, RowError> {
    let mut statement = db.prepare("SELECT * FROM tube")?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let (number, record) = codec::read_tube(row)?;
        found.push((number, record.next_id));
    }
    Ok(found)
}

pub(super) fn damaged(folder: &Path, what: &str) -> OpenError {
    OpenError::Damaged { folder: folder.to_owned(), what: what.to_owned() }
}

/// What SQLite or a row says, as what the user can do about it.
pub(super) fn row_error(folder: &Path, error: RowError) -> OpenError {
    use rusqlite::ErrorCode::{CannotOpen, DiskFull, PermissionDenied, ReadOnly};
    let error = match error {
        RowError::Damaged(what) => return damaged(folder, &what),
        RowError::Sqlite(error) => error,
    };
    match error.sqlite_error_code() {
        Some(CannotOpen | PermissionDenied | ReadOnly | DiskFull) => {
            OpenError::Unavailable { folder: folder.to_owned(), what: error.to_string() }
        }
        _ => damaged(folder, &error.to_string()),
    }
}

//! Opening a folder: nobody else has it, and everything in it is as it was written.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use taskyard_core::Machine;

use super::codec::{self, Head, RowError, TASK_COLUMNS};
use super::seal::{Seal, Sealed};
use super::writer::Writer;
use super::{check, salvage};
use crate::{OpenError, OpenOptions};

/// The formats this version can read, as migrations to be applied in order.
pub(super) const MIGRATIONS: &[&str] = &[include_str!("migrations/0001.sql")];
/// "yard" in ASCII: says that the file is ours.
pub(super) const APPLICATION_ID: i64 = 0x7961_7264;

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

/// A database that is being made.
fn draft(folder: &Path) -> PathBuf {
    folder.join("taskyard.db.new")
}

fn seal_file(folder: &Path) -> PathBuf {
    folder.join("taskyard.seal")
}

pub(super) fn open(folder: &Path, options: &OpenOptions) -> Result<Folder, OpenError> {
    std::fs::create_dir_all(folder).map_err(unavailable(folder))?;
    let lock = lock(folder)?;
    let mut sealed = Seal::read(&seal_file(folder)).map_err(unavailable(folder))?;
    if !database(folder).exists() {
        make(folder, &sealed, options)?;
        sealed = Sealed::Batch(0);
    }
    let (db, head, machine) = match read(folder, &sealed, options.accept_loss) {
        Ok(content) => content,
        Err(OpenError::Damaged { what, .. }) if options.accept_loss => {
            tracing::warn!(%what, "opening what is left of a damaged store");
            // Beyond the old seal, so that a crash before the new one does no harm.
            let batch = if let Sealed::Batch(batch) = sealed { batch + 1 } else { 1 };
            salvage::rebuild(folder, batch)?;
            read(folder, &Sealed::Batch(batch), true)?
        }
        Err(error) => return Err(error),
    };
    let seal = Seal::open(&seal_file(folder), head.batch).map_err(unavailable(folder))?;
    sync(folder).map_err(unavailable(folder))?;
    let mut writer = Writer::new(db, head, seal);
    for (number, next_id) in next_ids(&writer.db).map_err(|error| row_error(folder, error))? {
        writer.set_next_id(number, next_id);
    }
    Ok(Folder { machine, writer, lock })
}

fn lock(folder: &Path) -> Result<File, OpenError> {
    let file = File::create(folder.join("taskyard.lock")).map_err(unavailable(folder))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(folder.to_owned())),
        Err(TryLockError::Error(error)) => Err(unavailable(folder)(error)),
    }
}

/// Makes the database of a folder that has none. The seal of an empty store comes first: where there
/// is such a seal and no database, a crash interrupted this and nothing is lost.
fn make(folder: &Path, sealed: &Sealed, options: &OpenOptions) -> Result<(), OpenError> {
    let had_one = log(folder).exists() || !matches!(sealed, Sealed::Absent | Sealed::Batch(0));
    if had_one && !options.accept_loss {
        return Err(damaged(folder, "its database file is gone"));
    }
    if had_one {
        salvage::set_aside(folder).map_err(unavailable(folder))?;
    }
    Seal::open(&seal_file(folder), 0).map_err(unavailable(folder))?;
    draw_up(folder)?;
    publish(folder)
}

/// Makes an empty database under another name, so that a crash leaves no half-made one.
pub(super) fn draw_up(folder: &Path) -> Result<Connection, OpenError> {
    _ = std::fs::remove_file(draft(folder));
    _ = std::fs::remove_file(folder.join("taskyard.db.new-journal"));
    let make = || -> rusqlite::Result<Connection> {
        let mut db = Connection::open(draft(folder))?;
        let tx = db.transaction()?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        for migration in MIGRATIONS {
            tx.execute_batch(migration)?;
        }
        tx.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
        Head::default().write(&tx)?;
        tx.commit()?;
        Ok(db)
    };
    make().map_err(|error| row_error(folder, RowError::Sqlite(error)))
}

/// Gives a finished draft its name.
pub(super) fn publish(folder: &Path) -> Result<(), OpenError> {
    let publish = || {
        File::open(draft(folder))?.sync_all()?;
        std::fs::rename(draft(folder), database(folder))?;
        sync(folder)
    };
    publish().map_err(unavailable(folder))
}

/// Makes the names of the files durable.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A connection to the database, set up as every one of ours is.
pub(super) fn connect(folder: &Path) -> Result<Connection, OpenError> {
    let open = || -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(database(folder), flags)?;
        // A damaged log would be thrown away when the connection that found the damage closes.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
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

/// Reads and checks everything; the bodies too, if somebody wants to be thorough.
fn read(
    folder: &Path,
    sealed: &Sealed,
    thorough: bool,
) -> Result<(Connection, Head, Machine), OpenError> {
    check::header(folder)?;
    let db = connect(folder)?;
    check::format(folder, &db)?;
    let head = Head::read(&db).map_err(|error| row_error(folder, error))?;
    check::seal(folder, &head, sealed)?;
    let mut machine = Machine::default();
    machine.set_next_lease(head.lease_ceiling);
    let found = read_rows(&db, &mut machine).map_err(|error| row_error(folder, error))?;
    check::counts(folder, &head, &found)?;
    if thorough {
        check::bodies(&db).map_err(|error| row_error(folder, error))?;
    }
    Ok((db, head, machine))
}

/// Fills the machine; returns what was found, to be compared with what was written.
fn read_rows(db: &Connection, machine: &mut Machine) -> Result<Head, RowError> {
    let mut found = Head::default();
    let mut statement = db.prepare("SELECT * FROM tube ORDER BY number")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (number, record) = codec::read_tube(row)?;
        machine.restore_tube(number, record);
        found.tubes += 1;
    }
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

/// What the operating system says.
pub(super) fn unavailable(folder: &Path) -> impl Fn(io::Error) -> OpenError {
    |error| OpenError::Unavailable { folder: folder.to_owned(), what: error.to_string() }
}

/// What SQLite or a row says, as what the user can do about it.
pub(super) fn row_error(folder: &Path, error: RowError) -> OpenError {
    use rusqlite::ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, PermissionDenied, ReadOnly,
    };
    let error = match error {
        RowError::Damaged(what) => return damaged(folder, &what),
        RowError::Sqlite(error) => error,
    };
    match error.sqlite_error_code() {
        Some(
            CannotOpen | DatabaseBusy | DatabaseLocked | DiskFull | PermissionDenied | ReadOnly,
        ) => OpenError::Unavailable { folder: folder.to_owned(), what: error.to_string() },
        _ => damaged(folder, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database that somebody else was busy with was called damaged, and its owner told to accept
    /// a loss.
    #[test]
    fn busy_is_not_damaged() {
        for code in [rusqlite::ffi::SQLITE_BUSY, rusqlite::ffi::SQLITE_LOCKED] {
            let error = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            let error = row_error(Path::new("data"), error.into());
            assert!(matches!(error, OpenError::Unavailable { .. }), "{error}");
        }
    }
}

//! Opens a folder: locks it, checks that everything in it is intact, and restores the machine.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use taskyard_core::Machine;

use super::checkpoint::{BUSY_TIMEOUT, LOG_BYTES_KEPT};
use super::codec::{self, Head, RowError};
use super::lock::FolderLock;
use super::platform::{Access, DataFolder, PlatformFile};
use super::rewrite::rewrite_log;
use super::rows::Batch;
use super::seal::{Seal, Sealed};
use super::semaphores::{self, SemaphoreHead};
use super::task_rows::{self, TaskSource};
use super::write_error::WriteError;
use super::writer::WriterState;
use super::{check, clock, journal, keys, pace, rows, salvage};
use taskyard_store::{OpenError, OpenOptions};

/// The formats this version can read, as migrations that are applied in order.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
    include_str!("migrations/0006.sql"),
    include_str!("migrations/0007.sql"),
    include_str!("migrations/0008.sql"),
    include_str!("migrations/0009.sql"),
    include_str!("migrations/0010.sql"),
    include_str!("migrations/0011.sql"),
    include_str!("migrations/0012.sql"),
    include_str!("migrations/0013.sql"),
];
/// The first format that has semaphores.
const WITH_SEMAPHORES: i64 = 2;
/// The first format in which tasks have a semaphore priority of their own.
pub(super) const WITH_PRIORITIES: i64 = 5;
/// The first format that stores how far wall time is ahead.
const WITH_CLOCK: i64 = 8;
/// The first format in which tasks have failures.
pub(super) const WITH_FAILURES: i64 = 10;
/// The first format in which done tasks are kept.
pub(super) const WITH_DONE: i64 = 11;
/// The first format in which tasks have unique keys.
const WITH_KEYS: i64 = 12;
/// The first format that has retry policies, rate limits and schedules.
const WITH_PACE: i64 = 13;
/// "yard" in ASCII: identifies a database of taskyard.
pub(super) const APPLICATION_ID: i64 = 0x7961_7264;

/// An open folder.
pub(super) struct OpenFolder {
    pub machine: Machine,
    pub db: Connection,
    pub writer_state: WriterState,
    /// Held while the store is open.
    pub lock: FolderLock,
}

pub(super) fn database(folder: &Path) -> PathBuf {
    folder.join("taskyard.db")
}

pub(super) fn log(folder: &Path) -> PathBuf {
    folder.join("taskyard.db-wal")
}

/// A database that is being created.
pub(super) fn draft(folder: &Path) -> PathBuf {
    folder.join("taskyard.db.new")
}

/// Marks a folder whose restore has not ended: it may have only a part of the tasks.
pub(super) fn restore_mark(folder: &Path) -> PathBuf {
    folder.join("taskyard.restoring")
}

pub(super) fn seal_file(folder: &Path) -> PathBuf {
    folder.join("taskyard.seal")
}

/// Opens the store in a folder.
pub(super) fn open(folder: &DataFolder, options: &OpenOptions) -> Result<OpenFolder, OpenError> {
    open_as(folder, options, false)
}

/// Opens the store in the folder in which a restore works: nothing else opens one with its mark.
pub(super) fn open_restored(folder: &DataFolder) -> Result<OpenFolder, OpenError> {
    open_as(folder, &OpenOptions::default(), true)
}

fn open_as(
    folder: &DataFolder,
    options: &OpenOptions,
    is_restore: bool,
) -> Result<OpenFolder, OpenError> {
    folder.platform().make_private(folder)?;
    let mut lock = FolderLock::take(folder)?;
    if !is_restore && folder.has(&restore_mark(folder)) {
        let what =
            "a restore into it did not end; run `taskyard restore` again, or remove this folder";
        return Err(OpenError::Unavailable { folder: folder.to_path_buf(), what: what.into() });
    }
    salvage::finish(folder)?;
    let mut sealed = Seal::read(folder).map_err(unavailable(folder))?;
    if is_new(folder, &sealed) {
        create(folder)?;
        sealed = Sealed::Batch { newest: 0, in_database: 0 };
    }
    let file = lock.database().map_err(unavailable(folder))?;
    let content = match read(folder, &sealed, options.accept_loss, file) {
        Ok(content) => content,
        Err(OpenError::Damaged { what, .. }) if options.accept_loss => {
            tracing::warn!(%what, "opening the intact data of a damaged store");
            // Higher than the old seal, so that a crash before the new seal is written is harmless.
            let newest = if let Sealed::Batch { newest, .. } = sealed { newest } else { 0 };
            let batch = newest.saturating_add(1);
            salvage::rebuild(folder, batch, &sealed)?;
            read(folder, &Sealed::Batch { newest: batch, in_database: batch }, true, None)?
        }
        Err(error) => return Err(error),
    };
    let StoredContent { db, head, semaphores, machine, next_ids } = content;
    let seal = Seal::open(folder, head.batch).map_err(unavailable(folder))?;
    folder.sync().map_err(unavailable(folder))?;
    lock.take_database()?;
    Ok(OpenFolder {
        machine,
        db,
        writer_state: WriterState { head, semaphores, seal, next_ids },
        lock,
    })
}

/// Whether the folder has never had a database.
fn is_new(folder: &DataFolder, sealed: &Sealed) -> bool {
    let had_one = folder.has(&log(folder))
        || journal::paths(folder).iter().any(|path| folder.has(path))
        || !matches!(sealed, Sealed::Absent | Sealed::Blank | Sealed::Batch { newest: 0, .. });
    !had_one && !folder.has(&database(folder))
}

/// Creates the database of a new folder. The seal of an empty store is written first: such a seal without a
/// database, or one without content after a power failure, means that a crash interrupted the creation and nothing is lost.
fn create(folder: &DataFolder) -> Result<(), OpenError> {
    Seal::open(folder, 0).map_err(unavailable(folder))?;
    create_draft(folder)?;
    folder.rename(&draft(folder), &database(folder)).map_err(unavailable(folder))
}

/// Creates an empty database under another name, so that a crash does not leave an incomplete one.
pub(super) fn create_draft(folder: &DataFolder) -> Result<Connection, OpenError> {
    create_draft_of(folder, MIGRATIONS.len())
}

/// The same of an older format.
pub(super) fn create_draft_of(folder: &DataFolder, format: usize) -> Result<Connection, OpenError> {
    let platform = folder.platform();
    _ = platform.remove(&draft(folder));
    _ = platform.remove(&folder.join("taskyard.db.new-journal"));
    // SQLite gives the files beside it the same mode.
    drop(platform.open(&draft(folder), Access::CreateNew).map_err(unavailable(folder))?);
    let make = || -> rusqlite::Result<Connection> {
        let mut db = open_database(folder, &draft(folder), OpenFlags::default())?;
        let tx = db.transaction()?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        for migration in &MIGRATIONS[..format] {
            tx.execute_batch(migration)?;
        }
        tx.pragma_update(None, "user_version", format as i64)?;
        Head::default().write(&tx)?;
        tx.commit()?;
        Ok(db)
    };
    make().map_err(|error| row_error(folder, RowError::Sqlite(error)))
}

/// Opens a database with the file system of the platform.
fn open_database(
    folder: &DataFolder,
    path: &Path,
    flags: OpenFlags,
) -> rusqlite::Result<Connection> {
    match folder.platform().sqlite_vfs() {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs),
        None => Connection::open_with_flags(path, flags),
    }
}

/// Opens a connection to the database with the settings that all connections of the store have.
pub(super) fn connect(folder: &DataFolder) -> Result<Connection, OpenError> {
    let open = || -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = open_database(folder, &database(folder), flags)?;
        // Otherwise a damaged log would be deleted when the connection that detected the damage closes.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        db.set_prepared_statement_cache_capacity(48);
        db.busy_timeout(BUSY_TIMEOUT)?;
        db.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
        db.pragma_update(None, "synchronous", "full")?;
        db.pragma_update(None, "wal_autocheckpoint", 0)?;
        db.pragma_update_and_check(None, "journal_size_limit", LOG_BYTES_KEPT as i64, |_| Ok(()))?;
        db.pragma_update(None, "cache_size", -8 * 1024)?;
        Ok(db)
    };
    open().map_err(|error| row_error(folder, RowError::Sqlite(error)))
}

/// The content of a database.
struct StoredContent {
    db: Connection,
    head: Head,
    semaphores: SemaphoreHead,
    machine: Machine,
    /// The `next_id` on disk of each tube, by number.
    next_ids: Vec<(u32, u64)>,
}

/// Reads and checks everything; with `with_bodies` also all bodies. `file` is the open database, if it is known.
fn read(
    folder: &DataFolder,
    sealed: &Sealed,
    with_bodies: bool,
    file: Option<&dyn PlatformFile>,
) -> Result<StoredContent, OpenError> {
    if !folder.has(&database(folder)) {
        return Err(damaged(folder, "its database file is missing"));
    }
    check::header(folder)?;
    let log_bytes = rewrite_log(folder).map_err(unavailable(folder))?;
    let db = connect(folder)?;
    let mut format = check::format(folder, &db)?;
    let mut head = Head::read(&db).map_err(|error| row_error(folder, error))?;
    let batches = journal::read(folder).map_err(unavailable(folder))?.after(head.batch);
    let batches = batches.map_err(|what| damaged(folder, what))?;
    let newest = batches.last().map_or(head.batch, |batch| batch.head.batch);
    check::seal(folder, head.batch, newest, sealed)?;
    // Committed only when everything is found intact: a refused opening must not change anything.
    if !batches.is_empty() {
        replay_journal(&db, format, &batches, &mut head)
            .map_err(|error| row_error(folder, error))?;
        format = MIGRATIONS.len() as i64;
    }
    // What is in the log or in an open transaction is not in the file.
    let file = file.filter(|_| log_bytes == 0 && batches.is_empty());
    let (mut machine, next_ids) = restore(folder, &db, format, &head, file)?;
    if format >= WITH_KEYS {
        keys::read(&db, &mut machine).map_err(|error| row_error(folder, error))?;
    }
    if with_bodies {
        check::bodies(&db).map_err(|error| row_error(folder, error))?;
    }
    let mut semaphores = SemaphoreHead::default();
    if format >= WITH_SEMAPHORES {
        semaphores =
            semaphores::read(&db, &mut machine).map_err(|error| row_error(folder, error))?;
    }
    machine.restored();
    for key in machine.lost_semaphores() {
        tracing::warn!(%key, "a tube has a semaphore that is lost; no task is admitted until the semaphore is configured again");
    }
    let finish = || -> rusqlite::Result<()> {
        if !batches.is_empty() {
            db.execute_batch("COMMIT; PRAGMA cache_spill = ON")?;
        }
        migrate(&db, format)
    };
    finish().map_err(|error| row_error(folder, RowError::Sqlite(error)))?;
    sync_log(folder, &db)?;
    Ok(StoredContent { db, head, semaphores, machine, next_ids })
}

/// Restores the tubes and their tasks, and checks that none is missing; returns the next id of each tube. A file whose pages
/// are not as expected is read once more by SQLite, which decides whether they are damaged.
fn restore(
    folder: &DataFolder,
    db: &Connection,
    format: i64,
    head: &Head,
    file: Option<&dyn PlatformFile>,
) -> Result<(Machine, Vec<(u32, u64)>), OpenError> {
    let from = |source| {
        let mut machine = Machine::default();
        machine.set_next_lease(head.lease_ceiling);
        if format >= WITH_CLOCK {
            machine.restore_wall_ahead(clock::read(db)?);
        }
        let next_ids = read_tubes(db, format, &mut machine)?;
        let mut found = task_rows::read(db, format, source, &mut machine)?;
        found.tubes = next_ids.len() as u64;
        Ok((machine, next_ids, found))
    };
    if let Some(file) = file
        && let Ok((machine, next_ids, found)) = from(TaskSource::Pages(file))
        && check::counts(folder, head, &found).is_ok()
    {
        return Ok((machine, next_ids));
    }
    let restored = from(TaskSource::Statement);
    let (machine, next_ids, found) = restored.map_err(|error| row_error(folder, error))?;
    check::counts(folder, head, &found)?;
    Ok((machine, next_ids))
}

/// Makes the content of the log durable. SQLite uses commits in the log that were never synced, and after
/// this the journal is overwritten, which may have the only copy on disk. The log is also copied into the
/// database: after a failed sync the system treats pages as written that are not.
fn sync_log(folder: &DataFolder, db: &Connection) -> Result<(), OpenError> {
    match db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
        // The log itself fits, because it exists.
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => {}
        copied => copied.map_err(|error| row_error(folder, RowError::Sqlite(error)))?,
    }
    match folder.platform().open(&log(folder), Access::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => file.and_then(|file| file.sync_data()).map_err(unavailable(folder)),
    }
}

/// Writes the batches that only the journal has into the database, in a transaction that stays open. Rows are
/// written in the newest format, so a database of an older one gets what it lacks first.
fn replay_journal(
    db: &Connection,
    format: i64,
    batches: &[Batch],
    head: &mut Head,
) -> Result<(), RowError> {
    // None of it may reach the log before everything is found intact.
    db.execute_batch("PRAGMA cache_spill = OFF; BEGIN IMMEDIATE")?;
    add_missing(db, format)?;
    rows::write_all(db, batches, head).map_err(as_row_error)
}

/// Converts an error of writing rows into one of reading them.
pub(super) fn as_row_error(error: WriteError) -> RowError {
    match error {
        WriteError::Sqlite(error) => RowError::Sqlite(error),
        other => RowError::Damaged(other.describe()),
    }
}

/// Brings an older database to the newest format; last, when everything in it was found intact.
fn migrate(db: &Connection, format: i64) -> rusqlite::Result<()> {
    if format >= MIGRATIONS.len() as i64 {
        return Ok(());
    }
    let tx = db.unchecked_transaction()?;
    add_missing(&tx, format)?;
    tx.commit()
}

/// Creates the tables and columns that an older database lacks, within a transaction.
fn add_missing(db: &Connection, format: i64) -> rusqlite::Result<()> {
    let missing = &MIGRATIONS[usize::try_from(format).unwrap_or(0).min(MIGRATIONS.len())..];
    if missing.is_empty() {
        return Ok(());
    }
    missing.iter().try_for_each(|migration| db.execute_batch(migration))?;
    db.pragma_update(None, "user_version", MIGRATIONS.len() as i64)
}

/// Restores the tubes and the schedules; returns the number of each tube and its next id.
fn read_tubes(
    db: &Connection,
    format: i64,
    machine: &mut Machine,
) -> Result<Vec<(u32, u64)>, RowError> {
    let mut paces = if format >= WITH_PACE { pace::read(db, machine)? } else { BTreeMap::new() };
    let mut statement = db.prepare("SELECT * FROM tube ORDER BY number")?;
    let mut rows = statement.query([])?;
    let mut next_ids = Vec::new();
    while let Some(row) = rows.next()? {
        let (number, mut record) = codec::read_tube(row)?;
        next_ids.push((number, record.next_id));
        if let Some(pace) = paces.remove(&number) {
            pace.add_to(&mut record);
        }
        if !machine.restore_tube(number, record) {
            return Err(RowError::Damaged(format!("tube number {number} is invalid")));
        }
    }
    if let Some((number, _)) = paces.first_key_value() {
        let what =
            format!("tube number {number} is missing, and its retry policy or rate limit is not");
        return Err(RowError::Damaged(what));
    }
    Ok(next_ids)
}

/// Makes the name of a folder durable.
pub(super) fn sync_parent(folder: &Path) -> io::Result<()> {
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

pub(super) fn damaged(folder: &Path, what: &str) -> OpenError {
    OpenError::Damaged { folder: folder.to_owned(), what: what.to_owned() }
}

/// Converts an error of the operating system.
pub(super) fn unavailable(folder: &Path) -> impl Fn(io::Error) -> OpenError {
    |error| OpenError::Unavailable { folder: folder.to_owned(), what: error.to_string() }
}

/// Converts an error of SQLite or of a row: either the store is unavailable or it is damaged.
pub(super) fn row_error(folder: &Path, error: RowError) -> OpenError {
    use rusqlite::ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, FileLockingProtocolFailed, OutOfMemory,
        PermissionDenied, ReadOnly, SystemIoFailure,
    };
    let error = match error {
        RowError::Damaged(what) => return damaged(folder, &what),
        RowError::Sqlite(error) => error,
    };
    let unavailable = match error.sqlite_error_code() {
        // A file that ends too early is damaged.
        Some(SystemIoFailure) => error
            .sqlite_error()
            .is_some_and(|error| error.extended_code != rusqlite::ffi::SQLITE_IOERR_SHORT_READ),
        Some(
            CannotOpen
            | DatabaseBusy
            | DatabaseLocked
            | DiskFull
            | FileLockingProtocolFailed
            | OutOfMemory
            | PermissionDenied
            | ReadOnly,
        ) => true,
        _ => false,
    };
    if unavailable {
        OpenError::Unavailable { folder: folder.to_owned(), what: error.to_string() }
    } else {
        damaged(folder, &error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;
    use taskyard_core::{Kind, TubeName, TubeOptions, TubeRecord};

    use super::*;

    /// A folder that is removed with its guard.
    fn temporary() -> (tempfile::TempDir, DataFolder) {
        let guard = tempfile::tempdir().expect("a folder");
        let folder = DataFolder::of_system(guard.path());
        (guard, folder)
    }

    /// A database that another program had locked, or an opening without enough memory, was reported as
    /// damage, and the operator was advised to accept a loss.
    #[test]
    fn only_damage_is_reported_as_damage() {
        let error_of = |code| {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            row_error(Path::new("data"), error.into())
        };
        for code in [
            ffi::SQLITE_BUSY,
            ffi::SQLITE_LOCKED,
            ffi::SQLITE_NOMEM,
            ffi::SQLITE_PROTOCOL,
            ffi::SQLITE_IOERR_READ,
            ffi::SQLITE_IOERR_LOCK,
        ] {
            assert!(matches!(error_of(code), OpenError::Unavailable { .. }), "{code}");
        }
        for code in [ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB, ffi::SQLITE_IOERR_SHORT_READ] {
            assert!(matches!(error_of(code), OpenError::Damaged { .. }), "{code}");
        }
    }

    /// The registry allocated an entry for every number up to the highest: a tube with a valid checksum and a
    /// number near four billion used all memory.
    #[test]
    fn an_invalid_tube_number_is_damage() {
        let (_guard, folder) = temporary();
        let mut options = OpenOptions::default();
        let OpenFolder { db, mut writer_state, .. } =
            open(&folder, &options).expect("the folder opens");
        for (number, name) in [(0, "mail"), (u32::MAX, "far")] {
            let name = TubeName::new(name).expect("a good name");
            let record = TubeRecord {
                name,
                options: TubeOptions::new(Kind::Fifo),
                next_id: 0,
                bucket: None,
            };
            codec::write_tube(&db, number, &record).expect("a row");
            writer_state.head.tubes += 1;
        }
        writer_state.head.write(&db).expect("a row");
        drop(db);
        let refused = open(&folder, &options).map(|_| ()).expect_err("no such tube");
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
        options.accept_loss = true;
        let left = open(&folder, &options).expect("the intact data opens");
        assert_eq!(left.machine.tube_numbers().collect::<Vec<_>>(), [0]);
    }

    /// A power failure while a store was created could leave its seal file without content, and the folder was refused as
    /// damaged from then on.
    #[test]
    fn a_seal_without_content_does_not_prevent_the_creation() {
        for content in [&[][..], &[0; 24]] {
            let (_guard, folder) = temporary();
            std::fs::write(seal_file(&folder), content).expect("a seal file");
            open(&folder, &OpenOptions::default()).expect("the folder is new");
            // With a database it is damage.
            std::fs::write(seal_file(&folder), content).expect("a seal file");
            let refused =
                open(&folder, &OpenOptions::default()).map(|_| ()).expect_err("it is damaged");
            assert!(refused.to_string().contains("its seal file is damaged"), "{refused}");
        }
    }

    /// All durability depends on this setting, and no other test would detect that it is missing.
    #[test]
    fn the_writer_syncs_every_commit() {
        let (_guard, folder) = temporary();
        let open = open(&folder, &OpenOptions::default()).expect("the folder opens");
        let synchronous = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let found = open.db.pragma_query_value(None, "synchronous", synchronous);
        assert_eq!(found, Ok(2));
    }
}

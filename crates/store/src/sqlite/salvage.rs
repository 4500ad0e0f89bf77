//! What can be saved from a damaged database, when its owner accepts the loss.
//!
//! The damaged files are only read, and kept under other names. SQLite works on a copy of them.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use taskyard_core::record::Record;
use taskyard_core::{Body, Kind, TubeName, TubeOptions, TubeRecord};

use super::codec::{self, Head, RowError};
use super::folder::{
    database, draft, draw_up, log, rename, row_error, seal_file, sync, unavailable,
};
use super::generation;
use super::insert::Insert;
use super::seal::Seal;
use crate::OpenError;

/// Which ids and leases the lost commits used is unknown: so many are left out.
const LEFT_OUT: u64 = 1 << 32;
/// Where ids go on in a tube of which nothing is known.
const UNKNOWN_NEXT_ID: u64 = 1 << 44;
/// Where leases go on when nothing is known of them: a number that JavaScript still has.
const UNKNOWN_LEASE: u64 = 1 << 52;

/// Makes a new database of every row that is as it was written, as the commit number `batch`, and
/// puts it in the place of the damaged one, which is kept.
pub(super) fn rebuild(folder: &Path, batch: u64) -> Result<(), OpenError> {
    let copied = copy_files(folder).map_err(unavailable(folder))?;
    let new = draw_up(folder)?;
    let old = Connection::open(&copied).map_err(|error| row_error(folder, error.into()))?;
    let saved = save(&old, &new, batch).map_err(|error| row_error(folder, error))?;
    drop((old, new));
    remove_copies(folder);
    rename(&draft(folder), &rebuilt(folder)).map_err(unavailable(folder))?;
    tracing::warn!(
        tasks = saved.tasks,
        tubes = saved.tubes,
        "what could be read was saved into a new database"
    );
    finish(folder)
}

/// Puts a rebuilt database in the place of the damaged one. If a crash interrupts this, the next
/// opening does the rest: only the last step takes the rebuilt one away.
pub(super) fn finish(folder: &Path) -> Result<(), OpenError> {
    let rebuilt = rebuilt(folder);
    if !rebuilt.exists() {
        return Ok(());
    }
    let head = Connection::open(&rebuilt).map_err(RowError::from).and_then(|db| Head::read(&db));
    let batch = match head.map_err(|error| row_error(folder, error)) {
        Ok(head) => Some(head.batch),
        // It is found to be damaged like any other, once it has its place.
        Err(OpenError::Damaged { .. }) => None,
        Err(error) => return Err(error),
    };
    let replace = || {
        if let Some(batch) = batch {
            Seal::open(&seal_file(folder), batch)?;
        }
        let kept = set_aside(folder)?;
        tracing::warn!(kept = %kept.display(), "the damaged database is kept");
        rename(&rebuilt, &database(folder))
    };
    replace().map_err(unavailable(folder))
}

/// A finished database that is to replace a damaged one.
fn rebuilt(folder: &Path) -> PathBuf {
    folder.join("taskyard.db.rebuilt")
}

/// Keeps the files of a database under other names, and tells the new name. The log goes first, so
/// that a database whose log has gone already finds the name that belongs to it.
pub(super) fn set_aside(folder: &Path) -> io::Result<PathBuf> {
    let (database, log) = (database(folder), log(folder));
    let taken = |name: &PathBuf| name.exists() || (log.exists() && log_of(name).exists());
    let kept = (1..)
        .map(|number| folder.join(format!("taskyard.db.damaged-{number}")))
        .find(|name| !taken(name));
    let kept = kept.ok_or_else(|| io::Error::other("too many damaged databases are kept"))?;
    for (from, to) in [(log, log_of(&kept)), (database, kept.clone())] {
        if from.exists() {
            fs::rename(from, to)?;
        }
    }
    _ = fs::remove_file(folder.join("taskyard.db-shm"));
    // Before anything takes their place: a new database must never meet the old log.
    sync(folder)?;
    Ok(kept)
}

fn log_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

fn copy_of(folder: &Path) -> PathBuf {
    folder.join("taskyard.db.copy")
}

fn copy_files(folder: &Path) -> io::Result<PathBuf> {
    remove_copies(folder);
    let copied = copy_of(folder);
    fs::copy(database(folder), &copied)?;
    if log(folder).exists() {
        fs::copy(log(folder), log_of(&copied))?;
    }
    mend_header(&copied)?;
    Ok(copied)
}

fn remove_copies(folder: &Path) {
    for end in ["", "-wal", "-shm"] {
        _ = fs::remove_file(folder.join(format!("taskyard.db.copy{end}")));
    }
}

/// What never changes in the header of our databases can be put right.
fn mend_header(database: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(database)?;
    if file.metadata()?.len() < 100 {
        return Ok(());
    }
    file.write_all_at(b"SQLite format 3\0", 0)?;
    file.write_all_at(&[2, 2, 0, 64, 32, 32], 18)?;
    file.write_all_at(&[0, 0, 0, 0, 0, 0, 0, 1], 52)?;
    file.write_all_at(&[0, 0, 0, 0], 64)
}

fn save(old: &Connection, new: &Connection, batch: u64) -> Result<Head, RowError> {
    new.execute_batch("BEGIN IMMEDIATE")?;
    let mut rescue =
        Rescue { new, head: Head { batch, ..Head::default() }, tubes: BTreeMap::new() };
    let ceiling = Head::read(old).map(|head| head.lease_ceiling.saturating_add(LEFT_OUT));
    rescue.head.lease_ceiling = ceiling.unwrap_or(UNKNOWN_LEASE);
    rescue.save_tubes(old)?;
    rescue.save_tasks(old, "ASC")?;
    // A page that cannot be read ends the first pass: come from the other side.
    rescue.save_tasks(old, "DESC")?;
    rescue.head.tubes = rescue.tubes.len() as u64;
    rescue.head.write(new)?;
    new.execute_batch("COMMIT")?;
    Ok(rescue.head)
}

/// A new database that fills up.
struct Rescue<'a> {
    new: &'a Connection,
    head: Head,
    tubes: BTreeMap<u32, (TubeName, Kind)>,
}

impl Rescue<'_> {
    fn save_tubes(&mut self, old: &Connection) -> Result<(), RowError> {
        let Ok(mut statement) = old.prepare("SELECT * FROM tube") else { return Ok(()) };
        let Ok(mut rows) = statement.query([]) else { return Ok(()) };
        while let Ok(Some(row)) = rows.next() {
            let Ok((number, mut record)) = codec::read_tube(row) else { continue };
            record.next_id = record.next_id.saturating_add(LEFT_OUT);
            self.add_tube(number, record)?;
        }
        Ok(())
    }

    /// Adds a tube, unless there is one of that number or name.
    fn add_tube(&mut self, number: u32, record: TubeRecord) -> Result<(), RowError> {
        let taken = self.tubes.values().any(|(name, _)| *name == record.name);
        if !taken && !self.tubes.contains_key(&number) && generation::fits(number) {
            codec::write_tube(self.new, number, &record)?;
            self.tubes.insert(number, (record.name, record.options.kind));
        }
        Ok(())
    }

    /// Whether the task has a tube to be in; those of a tube that is lost itself get one that says so.
    fn find_tube(&mut self, number: u32, task: &Record) -> Result<bool, RowError> {
        if !self.tubes.contains_key(&number) {
            let kind = if task.subqueue.is_some() { Kind::UtubeTtl } else { Kind::FifoTtl };
            let Ok(name) = TubeName::new(&format!("recovered-{number}")) else { return Ok(false) };
            let options = TubeOptions::new(kind);
            self.add_tube(number, TubeRecord { name, options, next_id: UNKNOWN_NEXT_ID })?;
        }
        Ok(self.tubes.contains_key(&number))
    }

    fn save_tasks(&mut self, old: &Connection, order: &str) -> Result<(), RowError> {
        let columns = codec::TASK_COLUMNS;
        let sql = format!("SELECT {columns}, data_sum, meta, data FROM task ORDER BY key {order}");
        let Ok(mut statement) = old.prepare(&sql) else { return Ok(()) };
        let Ok(mut rows) = statement.query([]) else { return Ok(()) };
        while let Ok(Some(row)) = rows.next() {
            let Ok((number, mut record)) = codec::read_task(row) else { continue };
            let key = codec::key(number, record.id);
            let Ok(body) = codec::read_body(row, key, codec::TASK_COLUMNS_COUNT) else { continue };
            if self.find_tube(number, &record)? {
                if self.tubes.get(&number).is_some_and(|(_, kind)| kind.has_subqueues()) {
                    record.subqueue.get_or_insert_default();
                }
                self.add_task(key, &record, &body)?;
            }
        }
        Ok(())
    }

    fn add_task(&mut self, key: i64, record: &Record, body: &Body) -> Result<(), RowError> {
        let added = Insert::new(self.new)?.add(key, record, body)?;
        if added == 1 {
            self.head.add(key);
        }
        Ok(())
    }
}

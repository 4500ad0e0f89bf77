//! Reads everything in the database in one read transaction, part by part, while the store goes on.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use taskyard_core::limits::BACKUP_LOG_PART;
use taskyard_core::{Error, Timestamp};
use taskyard_store::{BackupPart, StoreBackup};

use super::super::applier::ApplierState;
use super::super::check;
use super::super::codec::{self, Head, RowError, TASK_COLUMNS, TASK_COLUMNS_COUNT};
use super::super::folder::{MIGRATIONS, connect};
use super::super::platform::DataFolder;
use super::format::{BackupEncoder, BackupHeader, RowBuffer};
use super::slot::BackupSlot;
use super::snapshot_check::SnapshotCheck;

/// A part of rows ends when it has this many bytes.
const PART_BYTES: usize = 256 << 10;
/// The columns of a task that its payload consists of.
const BODY_COLUMNS: [&str; 4] = ["key", "data_sum", "meta", "data"];

/// A backup that is being read.
pub(crate) struct Snapshot {
    slot: Arc<BackupSlot>,
    encoder: BackupEncoder,
    next: NextPart,
    tables: VecDeque<Table>,
    check: SnapshotCheck,
}

enum NextPart {
    Start(BackupHeader),
    /// The beginning of the first of the remaining tables.
    Table,
    /// Its rows from this rowid on.
    Rows(i64),
    Nothing,
}

struct Table {
    name: String,
    columns: Vec<String>,
    /// Reads them from a rowid on.
    sql: String,
    /// How many columns stand before them, for the verification.
    before: usize,
    /// Where the payload is, in the table of tasks.
    body: Option<[usize; 4]>,
}

impl Snapshot {
    /// Begins with everything up to a batch, and possibly newer ones.
    pub fn begin(
        folder: &DataFolder,
        applier: &ApplierState,
        slot: Arc<BackupSlot>,
        (now, newest): (Timestamp, u64),
    ) -> Result<Snapshot, Error> {
        slot.claim()?;
        // From here on its end makes room for the next one.
        let mut snapshot = Snapshot {
            slot: slot.clone(),
            encoder: BackupEncoder::new(),
            next: NextPart::Nothing,
            tables: VecDeque::new(),
            check: SnapshotCheck::default(),
        };
        let db = connect(folder).map_err(|error| Error::Store(error.to_string()))?;
        let database = applier.caught_up(newest)?;
        if database.checkpointer.is_filled_by(BACKUP_LOG_PART) {
            return Err(log_too_long());
        }
        let begun = db.execute_batch("BEGIN").map_err(RowError::Sqlite);
        let head = begun.and_then(|()| Head::read(&db));
        drop(database);
        let head = head.map_err(|error| unreadable(with_advice(error)))?;
        check::format(folder, &db).map_err(|error| Error::Store(error.to_string()))?;
        let check = SnapshotCheck::new(&db, head);
        snapshot.check = check.map_err(|error| unreadable(with_advice(error)))?;
        snapshot.tables = tables(&db).map_err(unreadable)?;
        slot.connect(db)?;
        snapshot.next = NextPart::Start(BackupHeader {
            program: env!("CARGO_PKG_VERSION").into(),
            store: store_url(folder),
            taken_at: now.as_micros(),
            schema: MIGRATIONS.len() as u32,
            batch: head.batch,
            tubes: head.tubes,
            tasks: head.tasks,
        });
        Ok(snapshot)
    }

    fn read_part(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match std::mem::replace(&mut self.next, NextPart::Nothing) {
            NextPart::Start(header) => {
                self.next = NextPart::Table;
                Ok(Some(self.encoder.start(&header)))
            }
            NextPart::Table => match self.tables.front() {
                Some(table) => {
                    self.next = NextPart::Rows(i64::MIN);
                    Ok(Some(self.encoder.table(&table.name, &table.columns)))
                }
                None => {
                    let checked = self.check.finish();
                    checked.map_err(|error| unreadable(with_advice(error)))?;
                    Ok(Some(self.encoder.end()))
                }
            },
            NextPart::Rows(from) => {
                let Some(table) = self.tables.front() else { return Ok(None) };
                let check = &mut self.check;
                let read = self.slot.read(|db| table.read(db, from, check))?;
                let (rows, next) = read.map_err(unreadable)?;
                self.next = match next {
                    Some(from) => NextPart::Rows(from),
                    None => NextPart::Table,
                };
                if next.is_none() {
                    self.tables.pop_front();
                }
                Ok(Some(self.encoder.rows(rows)))
            }
            NextPart::Nothing => Ok(None),
        }
    }
}

impl StoreBackup for Snapshot {
    fn next_part(&mut self) -> Option<BackupPart> {
        match self.read_part() {
            Ok(bytes) => bytes.map(|bytes| BackupPart { bytes, failure: None }),
            Err(error) => {
                self.next = NextPart::Nothing;
                let bytes = self.encoder.failure(&error.to_string());
                Some(BackupPart { bytes, failure: Some(error) })
            }
        }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.slot.release();
    }
}

impl Table {
    fn new(db: &Connection, name: String) -> Result<Table, RowError> {
        let statement = db.prepare(&format!("SELECT * FROM \"{name}\" LIMIT 0"))?;
        let columns: Vec<String> = statement.column_names().map(Into::into).collect();
        let is_task = name == "task";
        let (first, before) = if is_task {
            (format!("{TASK_COLUMNS}, "), TASK_COLUMNS_COUNT)
        } else {
            Default::default()
        };
        let at = |wanted| columns.iter().position(|column| column == wanted);
        let body = match BODY_COLUMNS.map(at) {
            [Some(key), Some(sum), Some(meta), Some(data)] if is_task => {
                Some([key, sum, meta, data].map(|at| at + before))
            }
            _ => None,
        };
        let sql =
            format!("SELECT {first}\"{name}\".* FROM \"{name}\" WHERE rowid >= ? ORDER BY rowid");
        Ok(Table { name, columns, sql, before, body })
    }

    /// Reads rows from this rowid on and verifies them; returns the first one that was not read, if there may be one.
    fn read(
        &self,
        db: &Connection,
        from: i64,
        check: &mut SnapshotCheck,
    ) -> Result<(RowBuffer, Option<i64>), RowError> {
        let mut statement = db.prepare_cached(&self.sql)?;
        let mut rows = statement.query([from])?;
        let mut read = RowBuffer::default();
        while let Some(row) = rows.next()? {
            check.add(&self.name, row).map_err(with_advice)?;
            if let Some(columns) = self.body {
                check_body(row, columns)?;
            }
            for column in self.before..self.before + self.columns.len() {
                read.add(row.get_ref(column)?);
            }
            read.count += 1;
            if read.len() >= PART_BYTES {
                // The first column of every table is its rowid.
                return Ok((read, row.get::<_, i64>(self.before)?.checked_add(1)));
            }
        }
        Ok((read, None))
    }
}

/// Adds what to do about damage that no restore would accept.
fn with_advice(error: RowError) -> RowError {
    match error {
        RowError::Damaged(what) => RowError::Damaged(format!(
            "the store is damaged: {what}. No backup of it could be restored; restart the server with --accept-loss, which keeps what \
             is intact, and repeat the backup"
        )),
        error => error,
    }
}

/// Checks the payload of a task, so that damage is reported when the backup is made and not when it is needed.
fn check_body(row: &rusqlite::Row<'_>, [key, sum, meta, data]: [usize; 4]) -> Result<(), RowError> {
    let key = row.get(key)?;
    let (meta, data) = (row.get_ref(meta)?.as_blob_or_null(), row.get_ref(data)?.as_blob());
    let sum: i64 = row.get(sum)?;
    match (meta, data) {
        (Ok(meta), Ok(data)) if sum == codec::body_sum(key, meta, data) => Ok(()),
        _ => {
            let (tube, id) = codec::split_key(key);
            let what = format!("the payload of task {id} of tube number {tube} is damaged");
            Err(RowError::Damaged(format!("{what}; delete this task and repeat the backup")))
        }
    }
}

/// All tables of the database but those of SQLite itself; what else it has follows from its format.
fn tables(db: &Connection) -> Result<VecDeque<Table>, RowError> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB 'sqlite_*' ORDER BY name";
    let mut statement = db.prepare(sql)?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?;
    names.map(|name| Table::new(db, name?)).collect()
}

fn unreadable(error: RowError) -> Error {
    match error {
        RowError::Sqlite(error) => Error::Store(error.to_string()),
        RowError::Damaged(what) => Error::Store(what),
    }
}

/// The error of a backup during which the store changes too much.
pub(crate) fn log_too_long() -> Error {
    Error::Store(
        "the write-ahead log became too long for a backup, because the store changes faster than the backup is read; \
         repeat it when there is less load, or write it to a faster disk"
            .into(),
    )
}

fn store_url(folder: &Path) -> String {
    let path = folder.canonicalize();
    format!("sqlite:{}", path.as_deref().unwrap_or(folder).display())
}

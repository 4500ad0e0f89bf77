//! Reads everything in the database in one read transaction, part by part, while the store goes on.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use taskyard_core::limits::BACKUP_LOG_PART;
use taskyard_core::{Error, Timestamp};
use taskyard_store::{BackupPart, StoreBackup};

use super::super::applier::ApplierState;
use super::super::codec::{self, Head, RowError};
use super::super::folder::{MIGRATIONS, connect};
use super::super::platform::DataFolder;
use super::format::{BackupEncoder, BackupHeader, RowBuffer};
use super::slot::BackupSlot;

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
        };
        let db = connect(folder).map_err(|error| Error::Store(error.to_string()))?;
        let database = applier.caught_up(newest)?;
        if database.checkpointer.is_filled_by(BACKUP_LOG_PART) {
            return Err(log_too_long());
        }
        let begun = db.execute_batch("BEGIN").map_err(RowError::Sqlite);
        let head = begun.and_then(|()| Head::read(&db));
        drop(database);
        let (head, tables) = head.and_then(|head| Ok((head, tables(&db)?))).map_err(unreadable)?;
        slot.connect(db)?;
        snapshot.tables = tables;
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
                None => Ok(Some(self.encoder.end())),
            },
            NextPart::Rows(from) => {
                let Some(table) = self.tables.front() else { return Ok(None) };
                let read = self.slot.read(|db| table.read(db, from))?;
                let (rows, next) = read.map_err(unreadable)?;
                self.next = match next {
                    Some(from) => NextPart::Rows(from),
                    None => NextPart::Table,
                };
                if next.is_none() {
                    self.tables.pop_front();
                }
                Ok(Some(self.encoder.rows(&rows)))
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
    /// Reads rows from this rowid on; returns the first one that was not read, if there may be one.
    fn read(&self, db: &Connection, from: i64) -> Result<(RowBuffer, Option<i64>), RowError> {
        let sql = format!("SELECT rowid, * FROM \"{}\" WHERE rowid >= ? ORDER BY rowid", self.name);
        let mut statement = db.prepare_cached(&sql)?;
        let mut rows = statement.query([from])?;
        let mut read = RowBuffer::default();
        while let Some(row) = rows.next()? {
            if let Some(columns) = self.body {
                check_body(row, columns)?;
            }
            for column in 1..=self.columns.len() {
                read.add(row.get_ref(column)?);
            }
            read.count += 1;
            if read.bytes.len() >= PART_BYTES {
                return Ok((read, row.get::<_, i64>(0)?.checked_add(1)));
            }
        }
        Ok((read, None))
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

/// All tables of the database; what else it has follows from its format.
fn tables(db: &Connection) -> Result<VecDeque<Table>, RowError> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    let mut statement = db.prepare(sql)?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?;
    let tables = names.map(|name| {
        let name = name?;
        let statement = db.prepare(&format!("SELECT * FROM \"{name}\" LIMIT 0"))?;
        let columns: Vec<String> = statement.column_names().map(Into::into).collect();
        // The rowid comes first.
        let at = |wanted| columns.iter().position(|column| column == wanted).map(|at| at + 1);
        let body = match BODY_COLUMNS.map(at) {
            [Some(key), Some(sum), Some(meta), Some(data)] if name == "task" => {
                Some([key, sum, meta, data])
            }
            _ => None,
        };
        Ok(Table { name, columns, body })
    });
    tables.collect()
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

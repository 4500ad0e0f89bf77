//! Decides which rows of a damaged database are intact.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};
use taskyard_core::record::Record;
use taskyard_core::{Body, KeyRecord, TubeRecord};

use super::super::clock;
use super::super::codec::{
    self, Head, RowError, TASK_COLUMNS, TASK_COLUMNS_COUNT, TUBE_COLUMNS, TUBE_COLUMNS_ADDED,
};
use super::super::folder::MIGRATIONS;
use super::super::keys::{self, KeyHead};
use super::super::pace::{self, PaceHead};
use super::super::semaphores::SalvagedRow;
use super::cells::RowCell;
use super::pages::Pages;

/// The columns of each table, in the order of `migrations/0001.sql`; the last three of a task came with
/// `0005.sql`, `0010.sql` and `0011.sql`.
const STORE_COLUMNS: usize = 7;
const TASK_ROW: [&str; 17] = [
    "key",
    "state",
    "due",
    "pri",
    "created",
    "expires",
    "ttr",
    "attempts",
    "previous_start",
    "subqueue",
    "sum",
    "data_sum",
    "meta",
    "data",
    "semaphore_priority",
    "failures",
    "finished",
];
/// Number of columns of a task up to its body.
const WITH_BODY: usize = 14;
/// Number of columns of a task before its body; they always fit in one page.
const BEFORE_BODY: usize = 12;

/// Passes columns to the code that reads rows of an intact database, through a database in memory that never
/// holds more than a head row.
pub struct RowVerifier {
    db: Connection,
    task: String,
}

impl RowVerifier {
    pub fn new() -> Result<RowVerifier, RowError> {
        let db = Connection::open_in_memory()?;
        MIGRATIONS.iter().try_for_each(|migration| db.execute_batch(migration))?;
        let columns: Vec<String> = TASK_ROW.iter().map(|name| format!("? AS {name}")).collect();
        let columns = columns.join(", ");
        let task = format!("SELECT {TASK_COLUMNS}, data_sum, meta, data FROM (SELECT {columns})");
        Ok(RowVerifier { db, task })
    }

    /// Decodes the head row, if it is intact.
    pub fn head(&self, row: &RowCell<'_>) -> Option<Head> {
        let values = row.start(STORE_COLUMNS, STORE_COLUMNS)?;
        let sql = "INSERT OR REPLACE INTO store VALUES (?,?,?,?,?,?,?)";
        self.db.prepare_cached(sql).ok()?.execute(params_from_iter(values)).ok()?;
        Head::read(&self.db).ok()
    }

    /// Decodes a tube and its number.
    pub fn tube(&self, row: &RowCell<'_>, pages: &Pages) -> Option<(u32, TubeRecord)> {
        let most = TUBE_COLUMNS + TUBE_COLUMNS_ADDED;
        let mut columns = (TUBE_COLUMNS..=most).rev();
        let mut values = columns.find_map(|columns| row.all(pages, columns))?;
        values.resize(most, Value::Null);
        let sql = "SELECT ?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?";
        self.decode(sql, values, |row| codec::read_tube(row).ok())
    }

    /// Decodes a task, the number of its tube, and its body.
    pub fn task(&self, row: &RowCell<'_>, pages: &Pages) -> Option<(u32, Record, Body)> {
        let mut columns = (WITH_BODY..=TASK_ROW.len()).rev();
        let columns = columns.find(|columns| row.has(*columns))?;
        // The checksum covers columns behind the body too, which are known only when all pages are read.
        let ends_with_body = (WITH_BODY + 1..=TASK_ROW.len()).all(|column| row.is_null(column));
        if !row.is_whole() && ends_with_body {
            // Reads the overflow pages only if the beginning of the row is intact.
            let mut values = row.start(columns, BEFORE_BODY)?;
            values.extend([Value::Null, Value::Blob(Vec::new())]);
            values.resize(TASK_ROW.len(), Value::Null);
            self.decode(&self.task, values, |row| codec::read_task(row).ok())?;
        }
        let mut values = row.all(pages, columns)?;
        values.resize(TASK_ROW.len(), Value::Null);
        self.decode(&self.task, values, |found| {
            let (number, record) = codec::read_task(found).ok()?;
            let body = codec::read_body(found, row.key, TASK_COLUMNS_COUNT).ok()?;
            Some((number, record, body))
        })
    }

    /// Decodes a row of semaphores.
    pub fn semaphores(&self, row: &RowCell<'_>, pages: &Pages) -> Option<SalvagedRow> {
        SalvagedRow::COLUMNS.into_iter().find_map(|columns| {
            let values = row.all(pages, columns)?;
            let parameters = vec!["?"; columns].join(",");
            self.decode(&format!("SELECT {parameters}"), values, |row| {
                SalvagedRow::read(columns, row)
            })
        })
    }

    /// Decodes a unique key and the key of its task.
    pub fn key(&self, row: &RowCell<'_>, pages: &Pages) -> Option<(i64, KeyRecord)> {
        let values = row.all(pages, keys::COLUMNS)?;
        self.decode("SELECT ?,?,?,?,?", values, |row| keys::read_row(row).ok())
    }

    /// Decodes the row that counts the keys.
    pub fn key_head(&self, row: &RowCell<'_>, pages: &Pages) -> Option<KeyHead> {
        let values = row.all(pages, keys::HEAD_COLUMNS)?;
        self.decode("SELECT ?,?,?,?", values, |row| KeyHead::read_row(row).ok())
    }

    /// Decodes the clock row.
    pub fn clock(&self, row: &RowCell<'_>, pages: &Pages) -> Option<i64> {
        let values = row.all(pages, clock::COLUMNS)?;
        self.decode("SELECT ?,?,?", values, |row| clock::read_row(row).ok())
    }

    /// Decodes a row of a tube's pace or of a schedule.
    pub fn pace(&self, row: &RowCell<'_>, pages: &Pages) -> Option<pace::SalvagedPaceRow> {
        let columns =
            pace::SalvagedPaceRow::COLUMNS.into_iter().find(|columns| row.has(*columns))?;
        let values = row.all(pages, columns)?;
        let parameters = vec!["?"; columns].join(",");
        self.decode(&format!("SELECT {parameters}"), values, |row| {
            pace::SalvagedPaceRow::read(columns, row)
        })
    }

    /// Decodes the row that counts them.
    pub fn pace_head(&self, row: &RowCell<'_>, pages: &Pages) -> Option<PaceHead> {
        let values = row.all(pages, PaceHead::COLUMNS)?;
        self.decode("SELECT ?,?,?,?,?,?", values, |row| PaceHead::read_row(row).ok())
    }

    fn decode<T>(
        &self,
        sql: &str,
        values: Vec<Value>,
        read: impl FnOnce(&Row<'_>) -> Option<T>,
    ) -> Option<T> {
        let mut statement = self.db.prepare_cached(sql).ok()?;
        let mut rows = statement.query(params_from_iter(values)).ok()?;
        rows.next().ok()?.and_then(read)
    }
}

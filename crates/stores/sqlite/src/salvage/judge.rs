//! Which rows are as they were written.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};
use taskyard_core::record::Record;
use taskyard_core::{Body, TubeRecord};

use super::super::clock;
use super::super::codec::{self, Head, RowError, TASK_COLUMNS, TASK_COLUMNS_COUNT, TUBE_COLUMNS};
use super::super::folder::MIGRATIONS;
use super::super::semaphores::Found;
use super::cells::Cell;
use super::pages::Pages;

/// The columns of each table, in the order of `migrations/0001.sql`; the last of a task came with `0005.sql`.
const STORE_COLUMNS: usize = 7;
const TASK_ROW: [&str; 15] = [
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
];
/// How many columns of a task stand before its body; they are never too long for one page.
const BEFORE_BODY: usize = 12;

/// Hands columns to the same code that reads rows of a sound database, through a database in memory
/// that never holds more than a head row.
pub struct Judge {
    db: Connection,
    task: String,
}

impl Judge {
    pub fn new() -> Result<Judge, RowError> {
        let db = Connection::open_in_memory()?;
        MIGRATIONS.iter().try_for_each(|migration| db.execute_batch(migration))?;
        let columns: Vec<String> = TASK_ROW.iter().map(|name| format!("? AS {name}")).collect();
        let columns = columns.join(", ");
        let task = format!("SELECT {TASK_COLUMNS}, data_sum, meta, data FROM (SELECT {columns})");
        Ok(Judge { db, task })
    }

    /// The head row, if it is one.
    pub fn head(&self, row: &Cell<'_>) -> Option<Head> {
        let values = row.start(STORE_COLUMNS, STORE_COLUMNS)?;
        let sql = "INSERT OR REPLACE INTO store VALUES (?,?,?,?,?,?,?)";
        self.db.prepare_cached(sql).ok()?.execute(params_from_iter(values)).ok()?;
        Head::read(&self.db).ok()
    }

    /// A tube and its number.
    pub fn tube(&self, row: &Cell<'_>, pages: &Pages) -> Option<(u32, TubeRecord)> {
        let columns = [TUBE_COLUMNS + 2, TUBE_COLUMNS + 1, TUBE_COLUMNS];
        let mut values = columns.into_iter().find_map(|columns| row.all(pages, columns))?;
        values.resize(TUBE_COLUMNS + 2, Value::Null);
        let sql = "SELECT ?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?";
        self.ask(sql, values, |row| codec::read_tube(row).ok())
    }

    /// A task, the number of its tube, and its body.
    pub fn task(&self, row: &Cell<'_>, pages: &Pages) -> Option<(u32, Record, Body)> {
        let columns = [TASK_ROW.len(), TASK_ROW.len() - 1];
        let columns = columns.into_iter().find(|columns| row.has(*columns))?;
        // What stands behind the body is under the checksum too, and not known before all is read.
        if !row.is_whole() && row.ends_empty(TASK_ROW.len()) {
            // Only a row that begins well is worth reading many pages for.
            let mut values = row.start(columns, BEFORE_BODY)?;
            values.extend([Value::Null, Value::Blob(Vec::new()), Value::Null]);
            self.ask(&self.task, values, |row| codec::read_task(row).ok())?;
        }
        let mut values = row.all(pages, columns)?;
        values.resize(TASK_ROW.len(), Value::Null);
        self.ask(&self.task, values, |found| {
            let (number, record) = codec::read_task(found).ok()?;
            let body = codec::read_body(found, row.key, TASK_COLUMNS_COUNT).ok()?;
            Some((number, record, body))
        })
    }

    /// A row of semaphores.
    pub fn semaphores(&self, row: &Cell<'_>, pages: &Pages) -> Option<Found> {
        Found::COLUMNS.into_iter().find_map(|columns| {
            let values = row.all(pages, columns)?;
            let places = vec!["?"; columns].join(",");
            self.ask(&format!("SELECT {places}"), values, |row| Found::read(columns, row))
        })
    }

    /// How far wall time is ahead.
    pub fn clock(&self, row: &Cell<'_>, pages: &Pages) -> Option<i64> {
        let values = row.all(pages, clock::COLUMNS)?;
        self.ask("SELECT ?,?,?", values, |row| clock::read_row(row).ok())
    }

    fn ask<T>(
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

//! Inserts the rows of new tasks.

use std::sync::LazyLock;

use rusqlite::{CachedStatement, Connection, Statement, params};
use taskyard_core::Body;
use taskyard_core::record::Record;

use super::codec::{self, TaskColumns};

/// A task to insert, with the key of its row.
pub(super) type NewRow<'a> = (i64, &'a Record, &'a Body);

/// Number of plain tasks that one statement inserts: the fixed cost of a statement is a third of the cost of
/// a row.
const RUN: usize = 16;

/// Number of columns that a plain task sets.
const PLAIN_COLUMNS: usize = 8;

/// Inserts one plain task.
static PLAIN_ONE: LazyLock<String> = LazyLock::new(|| plain(1));
/// Inserts [`RUN`] plain tasks.
static PLAIN_RUN: LazyLock<String> = LazyLock::new(|| plain(RUN));

fn plain(rows: usize) -> String {
    let columns = "key, state, pri, created, attempts, sum, data_sum, data";
    let rows = vec!["(?,?,?,?,?,?,?,?)"; rows].join(",");
    format!("INSERT OR IGNORE INTO task ({columns}) VALUES {rows}")
}

/// Inserts rows of `task`. A plain task leaves the optional columns empty, and a statement without these is
/// faster.
pub(super) struct TaskInsert<'db> {
    run: CachedStatement<'db>,
    plain: CachedStatement<'db>,
    full: CachedStatement<'db>,
}

impl<'db> TaskInsert<'db> {
    pub fn new(db: &'db Connection) -> rusqlite::Result<Self> {
        Ok(TaskInsert {
            run: db.prepare_cached(&PLAIN_RUN)?,
            plain: db.prepare_cached(&PLAIN_ONE)?,
            full: db.prepare_cached(
                "INSERT OR IGNORE INTO task VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            )?,
        })
    }

    /// Inserts the rows in their order. `check` receives the first key of each statement, the number of rows
    /// that it added and the expected number.
    pub fn add_all<E: From<rusqlite::Error>>(
        &mut self,
        rows: &[NewRow<'_>],
        check: impl Fn(i64, usize, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        for rows in rows.chunks(RUN) {
            if rows.len() == RUN && rows.iter().all(is_plain) {
                for (index, row) in rows.iter().enumerate() {
                    bind_plain(&mut self.run, index * PLAIN_COLUMNS, row)?;
                }
                check(rows[0].0, self.run.raw_execute()?, RUN)?;
                continue;
            }
            for row in rows {
                check(row.0, self.add(row)?, 1)?;
            }
        }
        Ok(())
    }

    /// Inserts one row and returns how many were added: 0 if the key exists already.
    pub fn add(&mut self, row: &NewRow<'_>) -> rusqlite::Result<usize> {
        if !is_plain(row) {
            return self.add_full(row);
        }
        bind_plain(&mut self.plain, 0, row)?;
        self.plain.raw_execute()
    }

    fn add_full(&mut self, row: &NewRow<'_>) -> rusqlite::Result<usize> {
        let (key, record, body) = row;
        let columns = TaskColumns::new(*key, record);
        let (meta, data) = (body.meta(), body.payload());
        let data_sum = codec::body_sum(*key, meta, data);
        self.full.execute(params![
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
            data_sum,
            meta,
            data,
            columns.semaphore_priority,
            columns.failures,
            columns.finished,
        ])
    }
}

/// Whether all optional columns are empty.
fn is_plain((_, record, body): &NewRow<'_>) -> bool {
    codec::is_plain(record) && body.meta().is_none()
}

/// Binds a plain task to the parameters after the first `before`.
fn bind_plain(
    statement: &mut Statement<'_>,
    before: usize,
    (key, record, body): &NewRow<'_>,
) -> rusqlite::Result<()> {
    let TaskColumns { state, pri, created, attempts, sum, .. } = TaskColumns::new(*key, record);
    let data = body.payload();
    let data_sum = codec::body_sum(*key, None, data);
    let numbers = [*key, state, pri, created, attempts, sum, data_sum];
    for (parameter, number) in (before + 1..).zip(numbers) {
        statement.raw_bind_parameter(parameter, number)?;
    }
    statement.raw_bind_parameter(before + PLAIN_COLUMNS, data)
}

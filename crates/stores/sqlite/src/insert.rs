//! Writing new tasks.

use std::sync::LazyLock;

use rusqlite::{CachedStatement, Connection, Statement, params};
use taskyard_core::Body;
use taskyard_core::record::Record;

use super::codec::{self, TaskColumns};

/// A task to be written, with the key of its row.
pub(super) type NewRow<'a> = (i64, &'a Record, &'a Body);

/// So many plain tasks are written with one statement: what a statement costs by itself is a third of
/// what a row costs.
const RUN: usize = 16;

/// How many columns a plain task fills.
const PLAIN_COLUMNS: usize = 8;

/// Writes one plain task.
static PLAIN_ONE: LazyLock<String> = LazyLock::new(|| plain(1));
/// Writes a run of them.
static PLAIN_RUN: LazyLock<String> = LazyLock::new(|| plain(RUN));

fn plain(rows: usize) -> String {
    let columns = "key, state, pri, created, attempts, sum, data_sum, data";
    let rows = vec!["(?,?,?,?,?,?,?,?)"; rows].join(",");
    format!("INSERT OR IGNORE INTO task ({columns}) VALUES {rows}")
}

/// Writes new rows of `task`. Most tasks leave most columns empty, and a statement that does not
/// mention these is faster.
pub(super) struct Insert<'db> {
    run: CachedStatement<'db>,
    plain: CachedStatement<'db>,
    full: CachedStatement<'db>,
}

impl<'db> Insert<'db> {
    pub fn new(db: &'db Connection) -> rusqlite::Result<Self> {
        Ok(Insert {
            run: db.prepare_cached(&PLAIN_RUN)?,
            plain: db.prepare_cached(&PLAIN_ONE)?,
            full: db.prepare_cached(
                "INSERT OR IGNORE INTO task VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            )?,
        })
    }

    /// Writes these, in their order. `check` is told the first key of each statement, how many rows it
    /// added and how many it should have.
    pub fn add_all<E: From<rusqlite::Error>>(
        &mut self,
        rows: &[NewRow<'_>],
        check: impl Fn(i64, usize, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        for rows in rows.chunks(RUN) {
            if rows.len() == RUN && rows.iter().all(is_plain) {
                for (place, row) in rows.iter().enumerate() {
                    bind_plain(&mut self.run, place * PLAIN_COLUMNS, row)?;
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

    /// Writes one; the number of rows added is 0 when one of this key is there already.
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
        ])
    }
}

/// Whether the columns that may be empty are.
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
    for (place, number) in (before + 1..).zip(numbers) {
        statement.raw_bind_parameter(place, number)?;
    }
    statement.raw_bind_parameter(before + PLAIN_COLUMNS, data)
}

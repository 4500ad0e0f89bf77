//! Writing new tasks.

use rusqlite::{CachedStatement, Connection, params};
use taskyard_core::Body;
use taskyard_core::record::Record;

use super::codec::{self, TaskColumns};

/// Writes new rows of `task`. Most tasks leave most columns empty, and a statement that does not
/// mention these is faster, so there are two.
pub(super) struct Insert<'db> {
    plain: CachedStatement<'db>,
    full: CachedStatement<'db>,
}

impl<'db> Insert<'db> {
    pub fn new(db: &'db Connection) -> rusqlite::Result<Self> {
        Ok(Insert {
            plain: db.prepare_cached(
                "INSERT OR IGNORE INTO task (key, state, pri, created, attempts, sum, data_sum, data) \
                 VALUES (?,?,?,?,?,?,?,?)",
            )?,
            full: db
                .prepare_cached("INSERT OR IGNORE INTO task VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)")?,
        })
    }

    /// Writes one; the number of rows added is 0 when one of this key is there already.
    pub fn add(&mut self, key: i64, record: &Record, body: &Body) -> rusqlite::Result<usize> {
        let columns = TaskColumns::new(key, record);
        let (meta, data) = (body.meta(), body.payload());
        let data_sum = codec::body_sum(key, meta, data);
        if columns.is_plain() && record.subqueue.is_none() && meta.is_none() {
            let TaskColumns { state, pri, created, attempts, sum, .. } = columns;
            let columns = params![key, state, pri, created, attempts, sum, data_sum, data];
            return self.plain.execute(columns);
        }
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
        ])
    }
}

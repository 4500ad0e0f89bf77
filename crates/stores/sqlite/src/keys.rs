//! Reads and writes the rows of unique keys, and the row that counts them.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use rusqlite::{Connection, OptionalExtension, Row, Statement, params};
use taskyard_core::{Key, KeyChange, KeyRecord, Machine, Span, Timestamp};

use super::codec::{self, RowChecksum, RowError, mix};
use super::write_error::WriteError;

/// Number of columns of a key's row.
pub(super) const COLUMNS: usize = 5;
/// Number of columns of the row that counts them.
pub(super) const HEAD_COLUMNS: usize = 4;

/// The one row of `unique_key_head`. A store that never had a key has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyHead {
    pub rows: u64,
    row_keys: u64,
}

impl KeyHead {
    pub fn add(&mut self, key: i64) {
        self.rows = self.rows.wrapping_add(1);
        self.row_keys = self.row_keys.wrapping_add(mix(key));
    }

    fn remove(&mut self, key: i64) {
        self.rows = self.rows.wrapping_sub(1);
        self.row_keys = self.row_keys.wrapping_sub(mix(key));
    }

    fn sum(&self) -> i64 {
        RowChecksum::new(1).number(self.rows as i64).number(self.row_keys as i64).finish()
    }

    fn write(&self, db: &Connection) -> rusqlite::Result<usize> {
        let sql = "INSERT OR REPLACE INTO unique_key_head VALUES (1,?,?,?)";
        let numbers = [self.rows as i64, self.row_keys as i64, self.sum()];
        db.prepare_cached(sql)?.execute(numbers)
    }

    pub fn read(db: &Connection) -> Result<KeyHead, RowError> {
        let mut statement = db.prepare_cached("SELECT * FROM unique_key_head")?;
        let found = statement.query_row([], |row| Ok(KeyHead::read_row(row))).optional()?;
        found.unwrap_or(Ok(KeyHead::default()))
    }

    /// Reads the values of the row and verifies its checksum.
    pub fn read_row(row: &Row<'_>) -> Result<KeyHead, RowError> {
        let number = |column: usize| row.get::<_, i64>(column);
        let head = KeyHead { rows: number(1)? as u64, row_keys: number(2)? as u64 };
        if number(3)? != head.sum() {
            let what = "the checksum of the head row of its keys is wrong";
            return Err(RowError::Damaged(what.into()));
        }
        Ok(head)
    }
}

/// Writes the changes of batches within a transaction.
pub(super) fn write<'a>(
    db: &Connection,
    changes: impl IntoIterator<Item = &'a (i64, KeyChange)>,
) -> Result<(), WriteError> {
    let changes: Vec<_> = changes.into_iter().collect();
    if changes.is_empty() {
        return Ok(());
    }
    let mut head = KeyHead::read(db)?;
    for run in changes.chunk_by(|first, second| share_statement(first, second)) {
        write_run(db, run, &mut head)?;
    }
    head.write(db)?;
    Ok(())
}

/// Whether one statement can write two successive changes.
fn share_statement(first: &(i64, KeyChange), second: &(i64, KeyChange)) -> bool {
    match (&first.1, &second.1) {
        (KeyChange::Insert(_), KeyChange::Insert(_)) => true,
        (KeyChange::Remove, KeyChange::Remove) => first.0.checked_add(1) == Some(second.0),
        _ => false,
    }
}

/// Writes changes that can share a statement.
fn write_run(
    db: &Connection,
    run: &[&(i64, KeyChange)],
    head: &mut KeyHead,
) -> Result<(), WriteError> {
    let (first, last) = (run[0], run[run.len() - 1]);
    let written = match &first.1 {
        KeyChange::Insert(_) => {
            run.iter().for_each(|(key, _)| head.add(*key));
            insert_all(db, run)?
        }
        KeyChange::Update(record) => {
            let sql = "UPDATE unique_key SET unique_for = ?, until = ?, sum = ? WHERE key = ?";
            let (unique_for, until) = columns(record);
            let values = params![unique_for, until, sum(first.0, record), first.0];
            db.prepare_cached(sql)?.execute(values)?
        }
        KeyChange::Remove => {
            run.iter().for_each(|(key, _)| head.remove(*key));
            let sql = "DELETE FROM unique_key WHERE key BETWEEN ? AND ?";
            db.prepare_cached(sql)?.execute([first.0, last.0])?
        }
    };
    if written == run.len() {
        return Ok(());
    }
    let (tube, id) = codec::split_key(first.0);
    let expected = run.len();
    let what =
        format!("the key of task {id} of tube number {tube}: {written} rows instead of {expected}");
    Err(WriteError::Damaged(what))
}

/// Number of keys that one statement inserts, if there are as many.
const RUN: usize = 16;
/// Inserts one key.
static INSERT_ONE: LazyLock<String> = LazyLock::new(|| insert_sql(1));
/// Inserts [`RUN`] keys.
static INSERT_RUN: LazyLock<String> = LazyLock::new(|| insert_sql(RUN));

fn insert_sql(rows: usize) -> String {
    let rows = vec!["(?,?,?,?,?)"; rows].join(",");
    format!("INSERT OR IGNORE INTO unique_key VALUES {rows}")
}

/// Inserts the keys of these changes and returns how many were added.
fn insert_all(db: &Connection, changes: &[&(i64, KeyChange)]) -> rusqlite::Result<usize> {
    let rows: Vec<_> = changes
        .iter()
        .filter_map(|(key, change)| match change {
            KeyChange::Insert(record) => Some((*key, record)),
            _ => None,
        })
        .collect();
    let (runs, rest) = rows.as_chunks::<RUN>();
    let mut added = 0;
    if !runs.is_empty() {
        let mut statement = db.prepare_cached(&INSERT_RUN)?;
        for run in runs {
            for (index, (key, record)) in run.iter().enumerate() {
                bind(&mut statement, index * COLUMNS, *key, record)?;
            }
            added += statement.raw_execute()?;
        }
    }
    for (key, record) in rest {
        added += insert(db, *key, record)?;
    }
    Ok(added)
}

fn insert(db: &Connection, key: i64, record: &KeyRecord) -> rusqlite::Result<usize> {
    let mut statement = db.prepare_cached(&INSERT_ONE)?;
    bind(&mut statement, 0, key, record)?;
    statement.raw_execute()
}

/// Binds a key to the parameters after the first `before`.
fn bind(
    statement: &mut Statement<'_>,
    before: usize,
    key: i64,
    record: &KeyRecord,
) -> rusqlite::Result<()> {
    let (unique_for, until) = columns(record);
    statement.raw_bind_parameter(before + 1, key)?;
    statement.raw_bind_parameter(before + 2, record.key.as_str())?;
    statement.raw_bind_parameter(before + 3, unique_for)?;
    statement.raw_bind_parameter(before + 4, until)?;
    statement.raw_bind_parameter(before + 5, sum(key, record))
}

/// Removes all keys of a tube.
pub(super) fn clear(db: &Connection, number: u32) -> Result<(), WriteError> {
    let mut head = KeyHead::read(db)?;
    let before = head;
    let (first, last) = codec::key_range(number);
    let mut keys = db.prepare_cached("SELECT key FROM unique_key WHERE key BETWEEN ? AND ?")?;
    let mut rows = keys.query([first, last])?;
    while let Some(row) = rows.next()? {
        head.remove(row.get(0)?);
    }
    if head != before {
        let sql = "DELETE FROM unique_key WHERE key BETWEEN ? AND ?";
        db.prepare_cached(sql)?.execute([first, last])?;
        head.write(db)?;
    }
    Ok(())
}

/// Restores all keys, after the tasks, and checks that none is missing.
pub(super) fn read(db: &Connection, machine: &mut Machine) -> Result<(), RowError> {
    let (head, mut found) = (KeyHead::read(db)?, KeyHead::default());
    let mut statement = db.prepare("SELECT * FROM unique_key ORDER BY key")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (key, record) = read_row(row)?;
        found.add(key);
        let (number, id) = codec::split_key(key);
        if !machine.restore_key(number, id, record) {
            let what = format!("the key of task {id} cannot belong to tube number {number}");
            return Err(RowError::Damaged(what));
        }
    }
    if found == head {
        return Ok(());
    }
    let what = format!("it should have {} unique keys and has {}", head.rows, found.rows);
    Err(RowError::Damaged(what))
}

/// Decodes a row of `unique_key` and verifies it.
pub(super) fn read_row(row: &Row<'_>) -> Result<(i64, KeyRecord), RowError> {
    let key: i64 = row.get(0)?;
    let (tube, id) = codec::split_key(key);
    let bad = |what: &str| {
        RowError::Damaged(format!("the key of task {id} of tube number {tube}: {what}"))
    };
    let name = row.get_ref(1)?.as_str().map_err(|_| bad("it is not a text"))?;
    let record = KeyRecord {
        key: Key::new(name).map_err(|_| bad("it is invalid"))?,
        unique_for: row.get::<_, Option<i64>>(2)?.map(Span::from_micros),
        until: row.get::<_, Option<i64>>(3)?.map(Timestamp::from_micros),
    };
    if row.get::<_, i64>(4)? != sum(key, &record) {
        return Err(bad("its checksum is wrong"));
    }
    Ok((key, record))
}

fn columns(record: &KeyRecord) -> (Option<i64>, Option<i64>) {
    (record.unique_for.map(Span::as_micros), record.until.map(Timestamp::as_micros))
}

fn sum(key: i64, record: &KeyRecord) -> i64 {
    let (unique_for, until) = columns(record);
    let numbers = RowChecksum::new(key).optional(unique_for).optional(until);
    numbers.bytes(record.key.as_bytes()).finish()
}

/// The intact keys of a damaged database.
#[derive(Debug, Default)]
pub(super) struct SalvagedKeys {
    rows: BTreeMap<i64, KeyRecord>,
    /// How many there should be.
    pub expected: u64,
}

impl SalvagedKeys {
    /// Adds a row, unless there is one for this task.
    pub fn add(&mut self, key: i64, record: KeyRecord) {
        self.rows.entry(key).or_insert(record);
    }

    /// Whether rows are missing.
    pub fn is_incomplete(&self) -> bool {
        (self.rows.len() as u64) < self.expected
    }

    /// Applies the changes of a batch of the journal.
    pub fn apply(&mut self, changes: &[(i64, KeyChange)]) {
        for (key, change) in changes {
            match change {
                KeyChange::Insert(record) => {
                    self.expected += 1;
                    self.rows.insert(*key, record.clone());
                }
                KeyChange::Update(record) => _ = self.rows.insert(*key, record.clone()),
                KeyChange::Remove => {
                    self.expected = self.expected.saturating_sub(1);
                    self.rows.remove(key);
                }
            }
        }
    }

    /// Writes the keys into a new database with the saved tasks; returns their number. `has_tube` tells which
    /// tubes were saved. Of two tasks with the same key the later one has it.
    pub fn write(self, db: &Connection, has_tube: impl Fn(u32) -> bool) -> Result<u64, RowError> {
        let (mut head, mut names) = (KeyHead::default(), HashSet::new());
        for (key, mut record) in self.rows.into_iter().rev() {
            let (number, _) = codec::split_key(key);
            if !has_tube(number) {
                continue;
            }
            let sql = "SELECT finished IS NULL FROM task WHERE key = ?";
            let mut statement = db.prepare_cached(sql)?;
            let is_alive: Option<bool> = statement.query_row([key], |row| row.get(0)).optional()?;
            match is_alive {
                // Of a task that was saved although it had ended.
                Some(true) => {
                    record.until = None;
                    record.unique_for.get_or_insert(Span::ZERO);
                }
                Some(false) => {}
                None => record.unique_for = None,
            }
            let holds = is_alive == Some(true) || record.until.is_some();
            if holds && !names.insert((number, record.key.clone())) {
                record.until = None;
                record.unique_for = record.unique_for.filter(|_| is_alive == Some(false));
            }
            if record.unique_for.is_some() || record.until.is_some() {
                insert(db, key, &record)?;
                head.add(key);
            }
        }
        if head.rows > 0 {
            head.write(db)?;
        }
        Ok(head.rows)
    }
}

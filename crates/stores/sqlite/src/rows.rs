//! Collects the changes of a batch to the rows of tasks, and writes them.

use rusqlite::{Connection, OptionalExtension, params};
use taskyard_core::record::{Change, Record};
use taskyard_core::{Changes, KeyChange, Machine, TaskId, TubeRecord};

use super::codec::{self, Head, RowError, TaskColumns};
use super::insert::{NewRow, TaskInsert};
use super::keys;
use super::pace::PaceRows;
use super::write_error::WriteError;

/// How many ids of a temporary tube are reserved on disk at a time: its tasks are not written, so after a
/// crash nothing else shows which ids were used. A tube that used many reserves more at a time, because each
/// reservation costs a sync.
const IDS_RESERVED_MIN: u64 = 64;
const IDS_RESERVED_MAX: u64 = 1 << 20;

/// A batch that only changes tasks, and the head row after it.
#[derive(Debug, PartialEq)]
pub(super) struct Batch {
    pub head: Head,
    pub rows: Rows,
}

/// Rows of tasks to insert, update and delete, and rows of their keys; each row occurs at most once.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rows {
    pub inserts: Vec<(i64, Record)>,
    pub updates: Vec<(i64, Record)>,
    /// Rows that are updated with their bodies.
    pub replaced: Vec<(i64, Record)>,
    /// Keys, ascending.
    pub removed: Vec<i64>,
    /// The next ids of tubes, by number, which no row of a task shows.
    pub next_ids: Vec<(u32, u64)>,
    /// Keys of tasks, by the keys of their rows.
    pub keys: Vec<(i64, KeyChange)>,
    /// Buckets and schedules.
    pub pace: PaceRows,
}

impl Rows {
    /// Converts changes into rows. `next_ids` are the next ids on disk, by the number of the tube.
    pub fn new(machine: &Machine, changes: &mut Changes, next_ids: &[u64]) -> Self {
        let mut rows = Rows::default();
        let is_temporary =
            |number| machine.tube_by_number(number).is_none_or(|tube| tube.1.temporary);
        for (number, id, change) in std::mem::take(&mut changes.keys) {
            if !is_temporary(number) {
                rows.keys.push((codec::key(number, id), change));
            }
        }
        // Consecutive changes mostly concern one tube, so the last lookup is kept.
        let mut latest = (u32::MAX, true, 0);
        for (number, change) in std::mem::take(&mut changes.tasks) {
            if latest.0 != number {
                let temporary = is_temporary(number);
                latest = (number, temporary, next_ids.get(number as usize).copied().unwrap_or(0));
            }
            let (_, temporary, next_id) = latest;
            if needs_next_id(&change, temporary).is_some_and(|id| id.0 >= next_id) {
                rows.next_ids.push((number, 0));
                latest.2 = u64::MAX;
            }
            if !temporary {
                rows.add(number, change);
            }
        }
        rows.next_ids.sort_unstable();
        rows.next_ids.dedup();
        for (number, next_id) in &mut rows.next_ids {
            *next_id = machine.tube_record(*number).map_or(0, |record| self::next_id(&record));
        }
        rows.removed.sort_unstable();
        rows
    }

    fn add(&mut self, number: u32, change: Change) {
        match change {
            Change::Insert(mut record) => {
                // It is among the keys of the batch.
                record.key = None;
                if record.body.is_some() {
                    self.inserts.push((codec::key(number, record.id), record));
                }
            }
            Change::Replace(record) => self.replaced.push((codec::key(number, record.id), record)),
            Change::Update(mut record) => {
                // The body does not change, and must not stay in memory because of this.
                record.body = None;
                self.updates.push((codec::key(number, record.id), record));
            }
            Change::Remove(id) => self.removed.push(codec::key(number, id)),
            Change::Passed(_) => {}
        }
    }

    pub fn is_empty(&self) -> bool {
        self.next_ids.is_empty()
            && self.inserts.is_empty()
            && self.updates.is_empty()
            && self.replaced.is_empty()
            && self.removed.is_empty()
            && self.keys.is_empty()
            && self.pace.is_empty()
    }

    /// Counts inserted and deleted rows.
    pub fn count(&self, head: &mut Head) {
        self.inserts.iter().for_each(|row| head.add(row.0));
        self.removed.iter().for_each(|key| head.remove(*key));
    }

    /// The keys of the rows whose bodies it writes.
    pub fn with_bodies(&self) -> Vec<i64> {
        self.inserts.iter().chain(&self.replaced).map(|row| row.0).collect()
    }

    /// Writes all rows but those of keys, and but updates of the rows that are removed later.
    fn write(&self, db: &Connection, later: &LaterRemovals<'_>) -> Result<(), WriteError> {
        for (number, next_id) in &self.next_ids {
            write_next_id(db, *number, *next_id)?;
        }
        let remains = |row: &&(i64, Record)| !later.contains(row.0);
        self.insert(db)?;
        update_all(db, self.updates.iter().filter(remains))?;
        replace_all(db, self.replaced.iter().filter(remains))?;
        self.remove(db)?;
        self.pace.write(db)
    }

    pub fn insert(&self, db: &Connection) -> Result<(), WriteError> {
        if self.inserts.is_empty() {
            return Ok(());
        }
        let rows: Vec<NewRow<'_>> = self
            .inserts
            .iter()
            .filter_map(|(key, record)| Some((*key, record, record.body.as_ref()?)))
            .collect();
        TaskInsert::new(db)?.add_all(&rows, expect_rows)
    }

    pub fn update(&self, db: &Connection) -> Result<(), WriteError> {
        update_all(db, &self.updates)
    }

    /// Updates rows with their bodies.
    pub fn replace(&self, db: &Connection) -> Result<(), WriteError> {
        replace_all(db, &self.replaced)
    }

    /// Deletes rows; one statement deletes consecutive rows.
    pub fn remove(&self, db: &Connection) -> Result<(), WriteError> {
        if self.removed.is_empty() {
            return Ok(());
        }
        let mut delete = db.prepare_cached("DELETE FROM task WHERE key BETWEEN ? AND ?")?;
        for run in self.removed.chunk_by(|a, b| a + 1 == *b) {
            let changed = delete.execute([run[0], run[run.len() - 1]])?;
            expect_rows(run[0], changed, run.len())?;
        }
        Ok(())
    }
}

fn update_all<'a>(
    db: &Connection,
    rows: impl IntoIterator<Item = &'a (i64, Record)>,
) -> Result<(), WriteError> {
    let mut rows = rows.into_iter().peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    let sql = "UPDATE task SET state = ?, due = ?, expires = ?, ttr = ?, attempts = ?, \
               previous_start = ?, sum = ?, failures = ?, finished = ? WHERE key = ?";
    let mut update = db.prepare_cached(sql)?;
    for (key, record) in rows {
        let columns = TaskColumns::new(*key, record);
        let changed = update.execute(params![
            columns.state,
            columns.due,
            columns.expires,
            columns.ttr,
            columns.attempts,
            columns.previous_start,
            columns.sum,
            columns.failures,
            columns.finished,
            key,
        ])?;
        expect_rows(*key, changed, 1)?;
    }
    Ok(())
}

/// Updates rows with their bodies.
fn replace_all<'a>(
    db: &Connection,
    rows: impl IntoIterator<Item = &'a (i64, Record)>,
) -> Result<(), WriteError> {
    let sql = "UPDATE task SET state = ?, due = ?, pri = ?, expires = ?, ttr = ?, attempts = ?, \
               previous_start = ?, sum = ?, failures = ?, finished = ?, \
               semaphore_priority = ?, data_sum = ?, meta = ?, data = ? WHERE key = ?";
    for (key, record) in rows {
        let Some(body) = &record.body else { continue };
        let columns = TaskColumns::new(*key, record);
        let changed = db.prepare_cached(sql)?.execute(params![
            columns.state,
            columns.due,
            columns.pri,
            columns.expires,
            columns.ttr,
            columns.attempts,
            columns.previous_start,
            columns.sum,
            columns.failures,
            columns.finished,
            columns.semaphore_priority,
            codec::body_sum(*key, body.meta(), body.payload()),
            body.meta(),
            body.payload(),
            key,
        ])?;
        expect_rows(*key, changed, 1)?;
    }
    Ok(())
}

/// The rows that batches of one transaction remove, and in which batch. What earlier batches of the transaction write into such a row
/// would be lost with it.
#[derive(Debug, Default)]
struct RemovedRows {
    /// The first and the last key of consecutive rows, and the index of the batch; by key.
    runs: Vec<(i64, i64, usize)>,
}

/// The rows that batches after one of the transaction remove.
struct LaterRemovals<'a> {
    removed: &'a RemovedRows,
    batch: usize,
}

impl RemovedRows {
    fn of<'a>(batches: impl Iterator<Item = &'a Batch> + Clone) -> Self {
        let is_changed =
            |batch: &Batch| !batch.rows.updates.is_empty() || !batch.rows.replaced.is_empty();
        // Nothing can be left out, so nothing is looked up.
        if !batches.clone().any(is_changed) {
            return RemovedRows::default();
        }
        RemovedRows::all(batches)
    }

    fn all<'a>(batches: impl Iterator<Item = &'a Batch>) -> Self {
        let runs = |(index, batch): (usize, &'a Batch)| {
            let runs = batch.rows.removed.chunk_by(|a, b| a + 1 == *b);
            runs.map(move |run| (run[0], run[run.len() - 1], index))
        };
        let mut runs: Vec<_> = batches.enumerate().flat_map(runs).collect();
        runs.sort_unstable();
        RemovedRows { runs }
    }

    fn after(&self, batch: usize) -> LaterRemovals<'_> {
        LaterRemovals { removed: self, batch }
    }
}

impl LaterRemovals<'_> {
    fn contains(&self, key: i64) -> bool {
        let runs = &self.removed.runs;
        // A key that is removed twice may be found in its earlier run: then its row is written although it need not be.
        let index = runs.partition_point(|(first, _, _)| *first <= key);
        let run = index.checked_sub(1).map(|index| runs[index]);
        run.is_some_and(|(_, last, batch)| key <= last && batch > self.batch)
    }
}

/// Writes batches within a transaction; `head` becomes the head of the last one.
pub(super) fn write_all<'a>(
    db: &Connection,
    batches: impl IntoIterator<Item = &'a Batch, IntoIter: Clone> + Clone,
    head: &mut Head,
) -> Result<(), WriteError> {
    keys::write(db, batches.clone().into_iter().flat_map(|batch| &batch.rows.keys))?;
    let removed = RemovedRows::of(batches.clone().into_iter());
    for (index, batch) in batches.into_iter().enumerate() {
        let follows = Some(batch.head.batch) == head.batch.checked_add(1);
        batch.rows.write(db, &removed.after(index))?;
        batch.rows.count(head);
        let expected = [batch.head.tubes, batch.head.tasks, batch.head.task_keys];
        if !follows || [head.tubes, head.tasks, head.task_keys] != expected {
            let what = format!("batch {} does not follow the latest batch", batch.head.batch);
            return Err(WriteError::Damaged(what));
        }
        *head = batch.head;
    }
    head.write(db)?;
    Ok(())
}

/// The next id to write for a tube.
pub(super) fn next_id(tube: &TubeRecord) -> u64 {
    if !tube.options.temporary {
        return tube.next_id;
    }
    tube.next_id + (tube.next_id / 4).clamp(IDS_RESERVED_MIN, IDS_RESERVED_MAX)
}

/// Writes the next id of a tube.
fn write_next_id(db: &Connection, number: u32, next_id: u64) -> Result<(), WriteError> {
    let mut tube = db.prepare_cached("SELECT * FROM tube WHERE number = ?")?;
    let found = tube.query_row([number], |row| Ok(codec::read_tube(row))).optional()?;
    let missing = || RowError::Damaged(format!("tube number {number} is missing"));
    let (_, mut record) = found.ok_or_else(missing)??;
    record.next_id = next_id;
    codec::write_tube(db, number, &record)?;
    Ok(())
}

/// The id that must not be issued again after a crash although no row shows it: the row of the tube has to.
/// While a task has its row, that is enough, so most batches do not write the tube.
fn needs_next_id(change: &Change, temporary: bool) -> Option<TaskId> {
    match change {
        Change::Remove(id) | Change::Passed(id) => Some(*id),
        Change::Insert(record) if temporary => Some(record.id),
        _ => None,
    }
}

fn expect_rows(key: i64, changed: usize, wanted: usize) -> Result<(), WriteError> {
    if changed == wanted {
        return Ok(());
    }
    let (tube, id) = codec::split_key(key);
    let what = format!("task {id} of tube number {tube}: {changed} rows instead of {wanted}");
    Err(WriteError::Damaged(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(removed: &[i64]) -> Batch {
        let rows = Rows { removed: removed.to_vec(), ..Rows::default() };
        Batch { head: Head::default(), rows }
    }

    #[test]
    fn removals_of_later_batches_are_found() {
        let batches = [batch(&[1, 2, 3, 7]), batch(&[5, 6]), batch(&[10])];
        let removed = RemovedRows::all(batches.iter());
        let found = |batch: usize| (0..12).filter(move |key| removed.after(batch).contains(*key));
        assert_eq!(found(0).collect::<Vec<_>>(), [5, 6, 10]);
    }
}

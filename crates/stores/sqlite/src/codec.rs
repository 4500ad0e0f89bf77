//! Encodes and decodes the rows of the database and verifies their checksums.

use std::sync::Arc;

use rusqlite::types::FromSql;
use rusqlite::{Row, params};
use taskyard_core::limits::KEEP_DONE_DEFAULT;
use taskyard_core::record::{Record, StoredState};
use taskyard_core::{
    Body, Failures, Finished, Kind, Priority, SemaphoreKey, Span, TaskId, Timestamp, TubeName,
    TubeOptions, TubeRecord,
};

/// Task ids use the lower bits of a row's key, the tube's number the rest.
const ID_BITS: u32 = 49;

/// The state of a task uses the lower bits of its column, its `attempts_max` the rest.
const STATE_BITS: u32 = 8;

/// The reason that a row could not be read.
#[derive(Debug)]
pub(super) enum RowError {
    /// The row's content contradicts its checksum or is invalid.
    Damaged(String),
    /// SQLite could not read it.
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for RowError {
    fn from(error: rusqlite::Error) -> Self {
        RowError::Sqlite(error)
    }
}

/// The key of a task's row.
pub(super) fn key(tube: u32, id: TaskId) -> i64 {
    (i64::from(tube) << ID_BITS) | id.0 as i64
}

/// The lowest and the highest key that a task of the tube can have.
pub(super) fn key_range(tube: u32) -> (i64, i64) {
    (key(tube, TaskId(0)), key(tube, TaskId((1 << ID_BITS) - 1)))
}

/// The tube's number and the task's id in a key.
pub(super) fn split_key(key: i64) -> (u32, TaskId) {
    ((key >> ID_BITS) as u32, TaskId((key & ((1 << ID_BITS) - 1)) as u64))
}

/// The value that a key adds to the sum over all keys: mixed, so that missing rows do not cancel out.
pub(super) fn mix(key: i64) -> u64 {
    let mut mixed = (key as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Calculates a checksum over the fields of a row. They are buffered first: one long input is faster than
/// many short ones.
pub(super) struct RowChecksum {
    fields: [u8; 192],
    length: usize,
    hasher: crc32fast::Hasher,
}

impl RowChecksum {
    pub fn new(key: i64) -> Self {
        RowChecksum { fields: [0; 192], length: 0, hasher: crc32fast::Hasher::new() }.number(key)
    }

    pub fn number(mut self, number: i64) -> Self {
        if self.length + 8 > self.fields.len() {
            self.flush();
        }
        self.fields[self.length..self.length + 8].copy_from_slice(&number.to_le_bytes());
        self.length += 8;
        self
    }

    pub fn optional(self, number: Option<i64>) -> Self {
        let present = self.number(i64::from(number.is_some()));
        present.number(number.unwrap_or(0))
    }

    pub fn bytes(self, bytes: &[u8]) -> Self {
        let mut sized = self.number(bytes.len() as i64);
        if !bytes.is_empty() {
            sized.flush();
            sized.hasher.update(bytes);
        }
        sized
    }

    fn flush(&mut self) {
        self.hasher.update(&self.fields[..self.length]);
        self.length = 0;
    }

    pub fn finish(mut self) -> i64 {
        self.flush();
        i64::from(self.hasher.finalize())
    }
}

/// Whether all optional columns of a new task's row are empty.
pub(super) fn is_plain(record: &Record) -> bool {
    let due = match record.state {
        StoredState::Delayed(_) | StoredState::Scheduled(_) => true,
        StoredState::Ready(since) => since != record.created,
        StoredState::Buried | StoredState::DeadLetter | StoredState::Done => false,
    };
    let times = record.expires != Timestamp::NEVER || record.ttr != Span::FOREVER;
    let named = record.subqueue.is_some() || record.semaphore_priority.is_some();
    let ended = record.failures.is_some() || record.finished.is_some();
    !(due || times || named || ended) && record.previous_start.is_none()
}

/// The time since which a task is ready, if it differs from the time of its put. It is stored in the column
/// of the due time, which only delayed tasks use.
pub(super) fn ready_since(record: &Record, since: Timestamp) -> Option<i64> {
    (since != record.created).then(|| since.as_micros())
}

/// The columns of a task's row that may change.
pub(super) struct TaskColumns<'a> {
    pub state: i64,
    pub due: Option<i64>,
    pub pri: i64,
    pub created: i64,
    pub expires: Option<i64>,
    pub ttr: Option<i64>,
    pub attempts: i64,
    pub previous_start: Option<i64>,
    pub semaphore_priority: Option<f64>,
    pub failures: Option<&'a [u8]>,
    pub finished: Option<&'a [u8]>,
    pub sum: i64,
}

impl<'a> TaskColumns<'a> {
    pub fn new(key: i64, record: &'a Record) -> Self {
        let (state, due) = match record.state {
            // Most tasks are ready since their put.
            StoredState::Ready(since) => (0, ready_since(record, since)),
            StoredState::Delayed(due) => (1, Some(due.as_micros())),
            StoredState::Buried => (2, None),
            StoredState::DeadLetter => (3, None),
            StoredState::Scheduled(due) => (4, Some(due.as_micros())),
            StoredState::Done => (5, None),
        };
        let mut columns = TaskColumns {
            state: state | (i64::from(record.attempts_max.unwrap_or(0)) << STATE_BITS),
            due,
            pri: record.pri as i64,
            created: record.created.as_micros(),
            expires: (record.expires != Timestamp::NEVER).then(|| record.expires.as_micros()),
            ttr: (record.ttr != Span::FOREVER).then(|| record.ttr.as_micros()),
            attempts: i64::from(record.attempts),
            previous_start: record.previous_start.map(Timestamp::as_micros),
            semaphore_priority: record.semaphore_priority.map(Priority::value),
            failures: record.failures.as_ref().map(Failures::as_bytes),
            finished: record.finished.as_ref().map(Finished::as_bytes),
            sum: 0,
        };
        columns.sum = columns.checksum(key, record.subqueue.as_deref());
        columns
    }

    /// The state, if it is valid.
    fn stored_state(&self) -> Option<StoredState> {
        Some(match (self.state & ((1 << STATE_BITS) - 1), self.due) {
            (0, since) => StoredState::Ready(Timestamp::from_micros(since.unwrap_or(self.created))),
            (1, Some(due)) => StoredState::Delayed(Timestamp::from_micros(due)),
            (2, None) => StoredState::Buried,
            (3, None) => StoredState::DeadLetter,
            (4, Some(due)) => StoredState::Scheduled(Timestamp::from_micros(due)),
            (5, None) if self.finished.is_some() => StoredState::Done,
            _ => return None,
        })
    }

    fn checksum(&self, key: i64, subqueue: Option<&str>) -> i64 {
        let subqueue = subqueue.unwrap_or("").as_bytes();
        let pair = |number: Option<i64>| [i64::from(number.is_some()), number.unwrap_or(0)];
        let fields = [
            [key, self.state],
            pair(self.due),
            [self.pri, self.created],
            pair(self.expires),
            pair(self.ttr),
            // From here on the pairs are shifted by one field.
            [self.attempts, i64::from(self.previous_start.is_some())],
            [self.previous_start.unwrap_or(0), subqueue.len() as i64],
        ];
        let sum = sum_of(fields.as_flattened(), subqueue);
        // Rows without priority, failures and end keep the checksum of earlier formats.
        let sum = match self.semaphore_priority {
            Some(priority) => sum_of(&[sum, priority.to_bits() as i64], &[]),
            None => sum,
        };
        let sum = match self.failures {
            Some(failures) => sum_of(&[sum, failures.len() as i64], failures),
            None => sum,
        };
        match self.finished {
            Some(finished) => sum_of(&[sum, finished.len() as i64], finished),
            None => sum,
        }
    }
}

/// The checksum of a body.
pub(super) fn body_sum(key: i64, meta: Option<&[u8]>, data: &[u8]) -> i64 {
    match meta {
        None => sum_of(&[key, 0, data.len() as i64], data),
        Some(meta) => RowChecksum::new(key).bytes(meta).bytes(data).finish(),
    }
}

/// The checksum of numbers followed by bytes: the same as a [`RowChecksum`] over them, and faster, because
/// their number is known.
fn sum_of(numbers: &[i64], bytes: &[u8]) -> i64 {
    const NUMBERS_MAX: usize = 16;
    let mut run = [[0; 8]; NUMBERS_MAX];
    for (slot, number) in run.iter_mut().zip(numbers) {
        *slot = number.to_le_bytes();
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(run[..numbers.len()].as_flattened());
    hasher.update(bytes);
    i64::from(hasher.finalize())
}

/// The columns that [`read_task`] expects, in its order.
pub(super) const TASK_COLUMNS: &str = "key, state, due, pri, created, expires, ttr, attempts, previous_start, subqueue, sum, \
     length(data) + coalesce(length(meta), 0), semaphore_priority, failures, finished";
/// Number of these columns.
pub(super) const TASK_COLUMNS_COUNT: usize = 15;

/// A row of `task` without its body, as it is stored.
pub(super) struct UnverifiedTask<'a> {
    pub key: i64,
    pub columns: TaskColumns<'a>,
    pub subqueue: Option<&'a str>,
    /// How many bytes payload and meta have together.
    pub body_bytes: u32,
}

/// Decodes a row of `task` without its body and verifies it.
pub(super) fn read_task(row: &Row<'_>) -> Result<(u32, Record), RowError> {
    let key: i64 = row.get(0)?;
    let (tube, id) = split_key(key);
    let columns = TaskColumns {
        state: row.get(1)?,
        due: row.get(2)?,
        pri: row.get(3)?,
        created: row.get(4)?,
        expires: row.get(5)?,
        ttr: row.get(6)?,
        attempts: row.get(7)?,
        previous_start: row.get(8)?,
        semaphore_priority: row.get(12)?,
        failures: row.get_ref(13)?.as_blob_or_null().map_err(|e| damaged(tube, id, &e))?,
        finished: row.get_ref(14)?.as_blob_or_null().map_err(|e| damaged(tube, id, &e))?,
        sum: row.get(10)?,
    };
    let subqueue = row.get_ref(9)?.as_str_or_null().map_err(|e| damaged(tube, id, &e))?;
    UnverifiedTask { key, columns, subqueue, body_bytes: row.get(11)? }.decode()
}

impl UnverifiedTask<'_> {
    /// Verifies the row, and returns the number of its tube and the task.
    pub fn decode(self) -> Result<(u32, Record), RowError> {
        let UnverifiedTask { key, columns, subqueue, body_bytes } = self;
        let (tube, id) = split_key(key);
        if columns.sum != columns.checksum(key, subqueue) {
            return Err(damaged(tube, id, &"its checksum is wrong"));
        }
        let record = Record {
            id,
            state: columns
                .stored_state()
                .ok_or_else(|| damaged(tube, id, &"its state is invalid"))?,
            pri: columns.pri as u64,
            created: Timestamp::from_micros(columns.created),
            expires: columns.expires.map_or(Timestamp::NEVER, Timestamp::from_micros),
            ttr: columns.ttr.map_or(Span::FOREVER, Span::from_micros),
            attempts: u32::try_from(columns.attempts).unwrap_or(u32::MAX),
            previous_start: columns.previous_start.map(Timestamp::from_micros),
            subqueue: subqueue.map(Arc::from),
            semaphore_priority: columns
                .semaphore_priority
                .map(Priority::new)
                .transpose()
                .map_err(|e| damaged(tube, id, &e))?,
            attempts_max: match u32::try_from(columns.state >> STATE_BITS) {
                Ok(own) => Some(own).filter(|own| *own > 0),
                Err(_) => return Err(damaged(tube, id, &"its number of attempts is invalid")),
            },
            failures: match columns.failures.map(Failures::from_bytes) {
                Some(None) => return Err(damaged(tube, id, &"its failures are invalid")),
                failures => failures.flatten(),
            },
            finished: match columns.finished.map(Finished::from_bytes) {
                Some(None) => return Err(damaged(tube, id, &"its end is invalid")),
                finished => finished.flatten(),
            },
            key: None,
            body_bytes,
            body: None,
        };
        Ok((tube, record))
    }
}

/// Decodes a body from the columns `data_sum, meta, data`, starting at `first`, and verifies it.
pub(super) fn read_body(row: &Row<'_>, key: i64, first: usize) -> Result<Body, RowError> {
    let (tube, id) = split_key(key);
    let sum: i64 = row.get(first)?;
    let meta = row.get_ref(first + 1)?.as_blob_or_null().map_err(|e| damaged(tube, id, &e))?;
    let data = row.get_ref(first + 2)?.as_blob().map_err(|e| damaged(tube, id, &e))?;
    if sum != body_sum(key, meta, data) {
        return Err(damaged(tube, id, &"the checksum of its payload is wrong"));
    }
    Ok(Body::with_meta(data, meta.unwrap_or(&[])))
}

fn damaged(tube: u32, id: TaskId, what: &dyn std::fmt::Display) -> RowError {
    RowError::Damaged(format!("task {id} of tube number {tube}: {what}"))
}

fn tube_sum(number: u32, record: &TubeRecord) -> i64 {
    let options = &record.options;
    let sum = RowChecksum::new(i64::from(number))
        .bytes(record.name.as_str().as_bytes())
        .bytes(options.kind.name().as_bytes())
        .number(i64::from(options.temporary))
        .optional(options.capacity.map(|capacity| capacity as i64))
        .optional(options.ttl.map(Span::as_micros))
        .optional(options.ttr.map(Span::as_micros))
        .optional(options.delay.map(Span::as_micros))
        .number(options.pri as i64)
        .optional(options.attempts_max.map(i64::from))
        .number(i64::from(options.ttl_kills_taken))
        .number(i64::from(options.paused))
        .number(record.next_id as i64);
    // Rows without these columns keep the checksum of earlier formats.
    let sum = match &options.semaphore {
        Some(key) => sum.bytes(key.as_str().as_bytes()),
        None => sum,
    };
    let sum = match options.queue_num {
        Some(queue_num) => sum.number(i64::from(queue_num)),
        None => sum,
    };
    match (options.keep_done, keep_done_max(options)) {
        (None, None) => sum.finish(),
        (keep, max) => sum.optional(keep.map(Span::as_micros)).optional(max).finish(),
    }
}

/// How many done tasks the tube keeps, if that is not the default.
fn keep_done_max(options: &TubeOptions) -> Option<i64> {
    Some(options.keep_done_max).filter(|max| *max != KEEP_DONE_DEFAULT).map(|max| max as i64)
}

/// Number of columns of a tube in the first format.
pub(super) const TUBE_COLUMNS: usize = 14;
/// Number of columns that later formats added: its semaphore, queue number, and both options for done tasks.
pub(super) const TUBE_COLUMNS_ADDED: usize = 4;

/// Writes a tube's row.
pub(super) fn write_tube(
    db: &rusqlite::Connection,
    number: u32,
    record: &TubeRecord,
) -> rusqlite::Result<usize> {
    let options = &record.options;
    let sql = "INSERT OR REPLACE INTO tube VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
    db.prepare_cached(sql)?.execute(params![
        number,
        record.name.as_str(),
        options.kind.name(),
        options.temporary,
        options.capacity.map(|capacity| capacity as i64),
        options.ttl.map(Span::as_micros),
        options.ttr.map(Span::as_micros),
        options.delay.map(Span::as_micros),
        options.pri as i64,
        options.attempts_max,
        options.ttl_kills_taken,
        options.paused,
        record.next_id as i64,
        tube_sum(number, record),
        options.semaphore.as_ref().map(SemaphoreKey::as_str),
        options.queue_num,
        options.keep_done.map(Span::as_micros),
        keep_done_max(options),
    ])
}

/// Decodes a row of `tube`, all columns in order, and verifies it.
pub(super) fn read_tube(row: &Row<'_>) -> Result<(u32, TubeRecord), RowError> {
    let number: u32 = row.get(0)?;
    let bad = |what: &str| RowError::Damaged(format!("tube number {number}: {what}"));
    let name = TubeName::new(&row.get::<_, String>(1)?).map_err(|_| bad("its name is damaged"))?;
    let kind =
        Kind::from_name(&row.get::<_, String>(2)?).ok_or_else(|| bad("its kind is damaged"))?;
    let span = |column: usize| -> rusqlite::Result<Option<Span>> {
        Ok(row.get::<_, Option<i64>>(column)?.map(Span::from_micros))
    };
    let options = TubeOptions {
        kind,
        temporary: row.get(3)?,
        capacity: row.get::<_, Option<i64>>(4)?.map(|capacity| capacity as u64),
        ttl: span(5)?,
        ttr: span(6)?,
        delay: span(7)?,
        pri: row.get::<_, i64>(8)? as u64,
        attempts_max: row.get(9)?,
        retry: None,
        rate: None,
        ttl_kills_taken: row.get(10)?,
        paused: row.get(11)?,
        semaphore: read_gate(row).map_err(|_| bad("its semaphore is damaged"))?,
        queue_num: later_column(row, TUBE_COLUMNS + 1)?,
        keep_done: later_column(row, TUBE_COLUMNS + 2)?.map(Span::from_micros),
        keep_done_max: later_column(row, TUBE_COLUMNS + 3)?
            .map_or(KEEP_DONE_DEFAULT, |max: i64| max as u64),
    };
    let record = TubeRecord { name, options, next_id: row.get::<_, i64>(12)? as u64, bucket: None };
    if row.get::<_, i64>(13)? != tube_sum(number, &record) {
        return Err(bad("its checksum is wrong"));
    }
    Ok((number, record))
}

/// A column that a later format added; `None` in an older database.
fn later_column<T: FromSql>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    if row.as_ref().column_count() <= column { Ok(None) } else { row.get(column) }
}

/// The semaphore of a tube.
fn read_gate(row: &Row<'_>) -> Result<Option<SemaphoreKey>, RowError> {
    let key: Option<String> = later_column(row, TUBE_COLUMNS)?;
    let bad = |_| RowError::Damaged("its semaphore is damaged".into());
    key.as_deref().map(SemaphoreKey::new).transpose().map_err(bad)
}

/// The one row of `store`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Increases with every commit.
    pub batch: u64,
    /// Lease numbers below this may have been issued.
    pub lease_ceiling: u64,
    /// Number of tube rows.
    pub tubes: u64,
    /// Number of task rows.
    pub tasks: u64,
    /// The sum over their mixed keys.
    pub task_keys: u64,
}

impl Head {
    /// Counts an inserted row.
    pub fn add(&mut self, key: i64) {
        self.tasks = self.tasks.wrapping_add(1);
        self.task_keys = self.task_keys.wrapping_add(mix(key));
    }

    /// Counts a deleted row.
    pub fn remove(&mut self, key: i64) {
        self.tasks = self.tasks.wrapping_sub(1);
        self.task_keys = self.task_keys.wrapping_sub(mix(key));
    }

    fn sum(&self) -> i64 {
        let first = RowChecksum::new(self.batch as i64).number(self.lease_ceiling as i64);
        let second = first.number(self.tubes as i64).number(self.tasks as i64);
        second.number(self.task_keys as i64).finish()
    }

    pub fn write(&self, db: &rusqlite::Connection) -> rusqlite::Result<usize> {
        let sql = "INSERT OR REPLACE INTO store VALUES (1,?,?,?,?,?,?)";
        db.prepare_cached(sql)?.execute(params![
            self.batch as i64,
            self.lease_ceiling as i64,
            self.tubes as i64,
            self.tasks as i64,
            self.task_keys as i64,
            self.sum(),
        ])
    }

    pub fn read(db: &rusqlite::Connection) -> Result<Head, RowError> {
        let sql =
            "SELECT batch, lease_ceiling, tubes, tasks, task_keys, sum FROM store WHERE one = 1";
        let row = db.query_row(sql, [], |row| {
            let number = |column: usize| row.get::<_, i64>(column);
            let numbers = [number(0)?, number(1)?, number(2)?, number(3)?, number(4)?];
            Ok((numbers, number(5)?))
        });
        let ([batch, lease_ceiling, tubes, tasks, task_keys], sum) = match row {
            Err(rusqlite::Error::QueryReturnedNoRows) => {
                return Err(RowError::Damaged("its head row is missing".into()));
            }
            other => other?,
        };
        let head = Head {
            batch: batch as u64,
            lease_ceiling: lease_ceiling as u64,
            tubes: tubes as u64,
            tasks: tasks as u64,
            task_keys: task_keys as u64,
        };
        if sum != head.sum() {
            return Err(RowError::Damaged("the checksum of its head row is wrong".into()));
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Databases keep their checksums, so both implementations must always agree.
    #[test]
    fn fast_and_slow_checksums_agree() {
        for (some, subqueue) in [(None, None), (Some(7), Some("key")), (Some(0), Some(""))] {
            let mut columns = TaskColumns {
                state: 2,
                due: some,
                pri: -1,
                created: 1_700_000_000_000_000,
                expires: some.map(|number| number + 1),
                ttr: some.map(|number| number + 2),
                attempts: 9,
                previous_start: some.map(|number| number + 3),
                semaphore_priority: None,
                failures: None,
                finished: None,
                sum: 0,
            };
            let slow = RowChecksum::new(5)
                .number(columns.state)
                .optional(columns.due)
                .number(columns.pri)
                .number(columns.created)
                .optional(columns.expires)
                .optional(columns.ttr)
                .number(columns.attempts)
                .optional(columns.previous_start)
                .bytes(subqueue.unwrap_or("").as_bytes())
                .finish();
            assert_eq!(columns.checksum(5, subqueue), slow);
            let mut own = |priority| {
                columns.semaphore_priority = Some(priority);
                columns.checksum(5, subqueue)
            };
            assert!(own(0.0) != slow && own(1.5) != own(-1.5));
            columns.semaphore_priority = None;
            columns.failures = Some(b"x");
            assert_ne!(columns.checksum(5, subqueue), slow);
            columns.failures = None;
            columns.finished = Some(b"x");
            assert_ne!(columns.checksum(5, subqueue), slow);
        }
        let slow = RowChecksum::new(5).bytes(&[]).bytes(b"data").finish();
        assert_eq!(body_sum(5, None, b"data"), slow);
        assert_ne!(body_sum(5, Some(b"meta"), b"data"), slow);
    }
}

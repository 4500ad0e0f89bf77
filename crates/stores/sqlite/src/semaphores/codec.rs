//! Encodes and decodes the rows of semaphores and verifies their checksums.

use rusqlite::{Connection, Row, params};
use taskyard_core::semaphore::{
    EntryState, EventRecord, HeldGrant, QueueEntry, QueueEntryRecord, SemaphoreRecord, Status,
};
use taskyard_core::{
    EventId, EventKind, Grant, Priority, SemaphoreKey, SemaphoreOptions, Span, TaskId, Timestamp,
};

use super::super::codec::{RowChecksum, RowError};

fn damaged(what: &str, number: &dyn std::fmt::Display) -> RowError {
    RowError::Damaged(format!("{what} {number}: its row is damaged"))
}

fn moment(moment: Timestamp) -> Option<i64> {
    (moment != Timestamp::NEVER).then(|| moment.as_micros())
}

fn or_never(micros: Option<i64>) -> Timestamp {
    micros.map_or(Timestamp::NEVER, Timestamp::from_micros)
}

fn semaphore_sum(number: u32, record: &SemaphoreRecord) -> i64 {
    let options = &record.options;
    RowChecksum::new(i64::from(number))
        .bytes(record.key.as_str().as_bytes())
        .number(i64::from(options.active))
        .number(i64::from(options.try_release))
        .number(options.margin.value().to_bits() as i64)
        .number(options.min_hold.as_micros())
        .number(options.cool_down.as_micros())
        .optional(options.max_revoking.map(i64::from))
        .number(options.revoke_grace.as_micros())
        .number(i64::from(options.force))
        .optional(options.lease.map(Span::as_micros))
        .optional(options.ack_timeout.map(Span::as_micros))
        .number(i64::from(options.shed))
        .number(i64::from(options.drop_expired))
        .number(record.grant_seq as i64)
        .optional(record.recheck_at.map(Timestamp::as_micros))
        .finish()
}

pub(super) fn write_semaphore(
    db: &Connection,
    number: u32,
    record: &SemaphoreRecord,
) -> rusqlite::Result<usize> {
    let options = &record.options;
    let sql = "INSERT OR REPLACE INTO semaphore VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
    db.prepare_cached(sql)?.execute(params![
        number,
        record.key.as_str(),
        options.active,
        options.try_release,
        options.margin.value(),
        options.min_hold.as_micros(),
        options.cool_down.as_micros(),
        options.max_revoking,
        options.revoke_grace.as_micros(),
        options.force,
        options.lease.map(Span::as_micros),
        options.ack_timeout.map(Span::as_micros),
        options.shed,
        options.drop_expired,
        record.grant_seq as i64,
        record.recheck_at.map(Timestamp::as_micros),
        semaphore_sum(number, record),
    ])
}

pub(super) fn read_semaphore(row: &Row<'_>) -> Result<(u32, SemaphoreRecord), RowError> {
    let number: u32 = row.get(0)?;
    let bad = || damaged("semaphore number", &number);
    let span = |column: usize| Ok::<_, rusqlite::Error>(Span::from_micros(row.get(column)?));
    let optional = |column: usize| {
        Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(Span::from_micros))
    };
    let options = SemaphoreOptions {
        active: row.get(2)?,
        try_release: row.get(3)?,
        margin: Priority::new(row.get(4)?).map_err(|_| bad())?,
        min_hold: span(5)?,
        cool_down: span(6)?,
        max_revoking: row.get(7)?,
        revoke_grace: span(8)?,
        force: row.get(9)?,
        lease: optional(10)?,
        ack_timeout: optional(11)?,
        shed: row.get(12)?,
        drop_expired: row.get(13)?,
    };
    let record = SemaphoreRecord {
        key: SemaphoreKey::new(&row.get::<_, String>(1)?).map_err(|_| bad())?,
        options,
        grant_seq: row.get::<_, i64>(14)? as u64,
        recheck_at: row.get::<_, Option<i64>>(15)?.map(Timestamp::from_micros),
    };
    if row.get::<_, i64>(16)? != semaphore_sum(number, &record) {
        return Err(bad());
    }
    Ok((number, record))
}

/// The columns of an entry that may change.
struct EntryColumns {
    status: Status,
    grant: Option<i64>,
    granted: Option<i64>,
    lease_until: Option<i64>,
    ack_by: Option<i64>,
    moment: Option<i64>,
    pinned: bool,
    sum: i64,
}

impl EntryColumns {
    fn new(record: &QueueEntryRecord) -> EntryColumns {
        let entry = &record.entry;
        let hold = entry.hold();
        let mut columns = EntryColumns {
            status: entry.status(),
            grant: hold.map(|hold| hold.grant.0 as i64),
            granted: hold.map(|hold| hold.granted.as_micros()),
            lease_until: hold.and_then(|hold| moment(hold.lease_until)),
            ack_by: hold.and_then(|hold| moment(hold.ack_by)),
            moment: match &entry.state {
                EntryState::Wait => None,
                EntryState::Delayed(until) => Some(until.as_micros()),
                EntryState::Held(hold) => hold.revoke_at.map(Timestamp::as_micros),
            },
            pinned: hold.is_some_and(|hold| hold.pinned),
            sum: 0,
        };
        columns.sum = RowChecksum::new(entry.seq as i64)
            .number(i64::from(record.semaphore))
            .number(record.task.0 as i64)
            .number(entry.priority.value().to_bits() as i64)
            .number(entry.enqueued.as_micros())
            .bytes(columns.status.stored_name().as_bytes())
            .optional(columns.grant)
            .optional(columns.granted)
            .optional(columns.lease_until)
            .optional(columns.ack_by)
            .optional(columns.moment)
            .number(i64::from(columns.pinned))
            .finish();
        columns
    }
}

pub(super) fn insert_task(db: &Connection, record: &QueueEntryRecord) -> rusqlite::Result<usize> {
    let columns = EntryColumns::new(record);
    let sql = "INSERT INTO semaphore_task VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)";
    db.prepare_cached(sql)?.execute(params![
        record.entry.seq as i64,
        record.semaphore,
        record.task.0 as i64,
        record.entry.priority.value(),
        record.entry.enqueued.as_micros(),
        columns.status.stored_name(),
        columns.grant,
        columns.granted,
        columns.lease_until,
        columns.ack_by,
        columns.moment,
        columns.pinned,
        columns.sum,
    ])
}

pub(super) fn update_task(db: &Connection, record: &QueueEntryRecord) -> rusqlite::Result<usize> {
    let columns = EntryColumns::new(record);
    let sql = "UPDATE semaphore_task SET priority = ?, status = ?, grant_no = ?, granted = ?, \
               lease_until = ?, ack_by = ?, moment = ?, pinned = ?, sum = ? WHERE seq = ?";
    db.prepare_cached(sql)?.execute(params![
        record.entry.priority.value(),
        columns.status.stored_name(),
        columns.grant,
        columns.granted,
        columns.lease_until,
        columns.ack_by,
        columns.moment,
        columns.pinned,
        columns.sum,
        record.entry.seq as i64,
    ])
}

pub(super) fn read_task(row: &Row<'_>) -> Result<QueueEntryRecord, RowError> {
    let seq: i64 = row.get(0)?;
    let bad = || damaged("the entry of a semaphore with the sequence number", &seq);
    let status = Status::from_stored_name(&row.get::<_, String>(5)?).ok_or_else(bad)?;
    let at = row.get::<_, Option<i64>>(10)?.map(Timestamp::from_micros);
    let state = match (status, at, row.get::<_, Option<i64>>(6)?, row.get::<_, Option<i64>>(7)?) {
        (Status::Wait, None, None, None) => EntryState::Wait,
        (Status::Delayed, Some(until), None, None) => EntryState::Delayed(until),
        (Status::Acquired | Status::TryRelease, revoke_at, Some(grant), Some(granted)) => {
            EntryState::Held(Box::new(HeldGrant {
                grant: Grant(grant as u64),
                granted: Timestamp::from_micros(granted),
                lease_until: or_never(row.get(8)?),
                ack_by: or_never(row.get(9)?),
                revoke_at,
                pinned: row.get(11)?,
            }))
        }
        _ => return Err(bad()),
    };
    let record = QueueEntryRecord {
        semaphore: row.get(1)?,
        task: TaskId(row.get::<_, i64>(2)? as u64),
        entry: QueueEntry {
            priority: Priority::new(row.get(3)?).map_err(|_| bad())?,
            seq: seq as u64,
            enqueued: Timestamp::from_micros(row.get(4)?),
            state,
        },
    };
    let columns = EntryColumns::new(&record);
    if columns.status != status || row.get::<_, i64>(12)? != columns.sum {
        return Err(bad());
    }
    Ok(record)
}

fn event_sum(id: EventId, record: &EventRecord) -> i64 {
    RowChecksum::new(id.0 as i64)
        .number(i64::from(record.semaphore))
        .number(record.task.0 as i64)
        .number(record.grant.0 as i64)
        .bytes(record.kind.name().as_bytes())
        .number(i64::from(record.attempts))
        .number(record.next_at.as_micros())
        .finish()
}

pub(super) fn insert_event(
    db: &Connection,
    id: EventId,
    record: &EventRecord,
) -> rusqlite::Result<usize> {
    let sql = "INSERT INTO semaphore_event VALUES (?,?,?,?,?,?,?,?)";
    db.prepare_cached(sql)?.execute(params![
        id.0 as i64,
        record.semaphore,
        record.task.0 as i64,
        record.grant.0 as i64,
        record.kind.name(),
        record.attempts,
        record.next_at.as_micros(),
        event_sum(id, record),
    ])
}

pub(super) fn update_event(
    db: &Connection,
    id: EventId,
    record: &EventRecord,
) -> rusqlite::Result<usize> {
    let sql = "UPDATE semaphore_event SET attempts = ?, next_at = ?, sum = ? WHERE id = ?";
    db.prepare_cached(sql)?.execute(params![
        record.attempts,
        record.next_at.as_micros(),
        event_sum(id, record),
        id.0 as i64
    ])
}

pub(super) fn read_event(row: &Row<'_>) -> Result<(EventId, EventRecord), RowError> {
    let id = EventId(row.get::<_, i64>(0)? as u64);
    let kind = EventKind::from_name(&row.get::<_, String>(4)?);
    let record = EventRecord {
        semaphore: row.get(1)?,
        task: TaskId(row.get::<_, i64>(2)? as u64),
        grant: Grant(row.get::<_, i64>(3)? as u64),
        kind: kind.ok_or_else(|| damaged("the event", &id))?,
        attempts: row.get(5)?,
        next_at: Timestamp::from_micros(row.get(6)?),
    };
    if row.get::<_, i64>(7)? != event_sum(id, &record) {
        return Err(damaged("the event", &id));
    }
    Ok((id, record))
}

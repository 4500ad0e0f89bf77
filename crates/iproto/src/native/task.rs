//! Encodes and decodes tasks, new ones and those in replies.

use taskyard_core::{
    Body, Failures, Finished, HeldKey, Key, KeyRequest, Lease, NewTask, OnConflict, Priority,
    Reason, State, Task, TaskId,
};

use super::row::{
    RowError, RowReader, RowResult, RowWriter, write_session, write_span, write_time,
};
use crate::msgpack::{MsgpackError, check_msgpack};
use crate::pack::{self, Out};
use crate::reader::{Value, ValueReader};

pub(super) fn write_new(out: &mut Out, task: &NewTask) {
    RowWriter::begin(out)
        .field(|out| write_body(out, &task.body))
        .optional(task.pri, pack::uint)
        .optional(task.ttl, write_span)
        .optional(task.ttr, write_span)
        .optional(task.delay, write_span)
        .optional(task.at, write_time)
        .optional(task.subqueue.as_deref(), pack::str)
        .optional(task.semaphore_priority, write_priority)
        .optional(task.key.as_deref(), write_key)
        .optional(task.attempts_max.map(u64::from), pack::uint)
        .end();
}

/// The key, for how long it is unique, and whether the put replaces its holder.
fn write_key(out: &mut Out, request: &KeyRequest) {
    let replaces = request.on_conflict == OnConflict::Replace;
    RowWriter::begin(out)
        .text(request.held.key.as_str())
        .span(request.held.unique_for)
        .optional(replaces.then_some(true), pack::bool)
        .end();
}

fn read_key_request(row: &mut RowReader<'_, '_>) -> RowResult<Box<KeyRequest>> {
    let key = key_of(row.text()?)?;
    let unique_for = row.span()?;
    let on_conflict = match row.value()? {
        Value::Nil | Value::Bool(false) => OnConflict::Keep,
        Value::Bool(true) => OnConflict::Replace,
        _ => return Err(RowError("not a yes or no")),
    };
    Ok(Box::new(KeyRequest { held: HeldKey { key, unique_for }, on_conflict }))
}

/// A checked key.
pub(super) fn key_of(text: &str) -> RowResult<Key> {
    Key::new(text).map_err(|_| RowError("a key has 1 to 128 bytes and no control characters"))
}

fn write_priority(out: &mut Out, priority: Priority) {
    pack::float(out, priority.value());
}

fn read_priority(row: &mut RowReader<'_, '_>) -> RowResult<Option<Priority>> {
    match row.value()? {
        Value::Nil => Ok(None),
        // Lua writes whole numbers without a fraction.
        value => {
            let number = value.number().ok_or(RowError("not a priority"))?;
            Priority::new(number)
                .map(Some)
                .map_err(|_| RowError("a priority must be a finite number"))
        }
    }
}

pub(super) fn read_new(row: &mut RowReader<'_, '_>) -> RowResult<NewTask> {
    match row.value()? {
        // Only replies from Lua, which does not distinguish bytes and text, have it as text.
        Value::Str(_) => Err(RowError("a payload is binary")),
        value => read_new_with(row, value),
    }
}

/// A new task in a reply: Lua may have stored it.
pub(super) fn read_stored_new(row: &mut RowReader<'_, '_>) -> RowResult<NewTask> {
    let body = row.value()?;
    read_new_with(row, body)
}

/// A new task behind its body.
fn read_new_with(row: &mut RowReader<'_, '_>, body: Value<'_>) -> RowResult<NewTask> {
    let body = body_of(row, body)?.ok_or(RowError("a task without a payload"))?;
    check_body(&body)?;
    Ok(NewTask {
        body,
        pri: row.optional_uint()?,
        ttl: row.optional_span()?,
        ttr: row.optional_span()?,
        delay: row.optional_span()?,
        at: row.optional_time()?,
        subqueue: row.optional_key()?,
        semaphore_priority: read_priority(row)?,
        key: row.optional_row(read_key_request)?,
        attempts_max: read_attempts(row)?,
    })
}

/// Bodies from outside are one MessagePack value, and their meta is a map.
fn check_body(body: &Body) -> RowResult<()> {
    check_msgpack(body.payload()).map_err(|error| match error {
        MsgpackError::TooDeep => RowError("a payload is nested too deep; flatten it"),
        _ => RowError("a payload is not one MessagePack value"),
    })?;
    let Some(meta) = body.meta() else { return Ok(()) };
    let map = matches!(ValueReader::new(meta).value(), Ok(Value::Map(_)));
    if map && check_msgpack(meta).is_ok() { Ok(()) } else { Err(RowError("meta is not a map")) }
}

/// A payload is binary; with a meta it is a list of both.
fn write_body(out: &mut Out, body: &Body) {
    match body.meta() {
        None => pack::bin(out, body.payload()),
        Some(meta) => {
            pack::array(out, 2);
            pack::bin(out, body.payload());
            pack::bin(out, meta);
        }
    }
}

fn read_body(row: &mut RowReader<'_, '_>) -> RowResult<Option<Body>> {
    let value = row.value()?;
    body_of(row, value)
}

fn body_of(row: &mut RowReader<'_, '_>, value: Value<'_>) -> RowResult<Option<Body>> {
    match value {
        Value::Nil => Ok(None),
        Value::Bin(payload) | Value::Str(payload) => Ok(Some(Body::new(payload))),
        Value::Array(2) => {
            let (payload, meta) = row.two_runs()?;
            Ok(Some(Body::with_meta(payload, meta)))
        }
        _ => Err(RowError("not a payload")),
    }
}

pub(super) fn write(out: &mut Out, task: &Task) {
    let delivery = task.lease.is_some()
        || task.lease_until.is_some()
        || task.session.is_some()
        || task.start.is_some();
    RowWriter::begin(out)
        .uint(task.id.0)
        .field(|out| write_state(out, task.state))
        .uint(task.pri)
        .time(task.created)
        .time(task.expires)
        .span(task.ttr)
        .uint(task.attempts.into())
        .field(|out| write_reason(out, task.reason))
        .optional(task.body.as_ref(), write_body)
        .optional(delivery.then_some(task), write_delivery)
        .optional(task.previous_start, write_time)
        .optional(task.due, write_time)
        .optional(task.subqueue.as_deref(), pack::str)
        .optional(task.semaphore_priority, write_priority)
        .optional(task.failures.as_ref(), |out, failures| pack::bin(out, failures.as_bytes()))
        .optional(task.finished.as_ref(), |out, finished| pack::bin(out, finished.as_bytes()))
        .optional(task.key.as_ref(), |out, key| pack::str(out, key.as_str()))
        .optional(task.attempts_max.map(u64::from), pack::uint)
        .end();
}

pub(super) fn read(row: &mut RowReader<'_, '_>) -> RowResult<Task> {
    let mut task = Task {
        id: TaskId(row.uint()?),
        state: read_state(row)?,
        pri: row.uint()?,
        created: row.time()?,
        expires: row.time()?,
        ttr: row.span()?,
        attempts: row.u32()?,
        reason: row.row(read_reason)?,
        body: read_body(row)?,
        due: None,
        start: None,
        previous_start: None,
        subqueue: None,
        semaphore_priority: None,
        key: None,
        attempts_max: None,
        session: None,
        worker: None,
        failures: None,
        finished: None,
        lease: None,
        lease_until: None,
    };
    row.optional_row(|row| read_delivery(row, &mut task))?;
    task.previous_start = row.optional_time()?;
    task.due = row.optional_time()?;
    task.subqueue = row.optional_key()?;
    task.semaphore_priority = read_priority(row)?;
    task.failures = read_failures(row)?;
    task.finished = read_finished(row)?;
    match row.value()? {
        Value::Str(key) => {
            let key = std::str::from_utf8(key).map_err(|_| RowError("a text is not UTF-8"))?;
            task.key = Some(Box::new(key_of(key)?));
        }
        Value::Nil => {}
        // In a task as Tarantool stores it, this field is the number of parts of its body, and all following
        // ones are its own too.
        Value::Uint(_) => return Ok(task),
        _ => return Err(RowError("not the key of a task")),
    }
    task.attempts_max = read_attempts(row)?;
    Ok(task)
}

fn read_attempts(row: &mut RowReader<'_, '_>) -> RowResult<Option<u32>> {
    let large = |_| RowError("a number of attempts is too large");
    row.optional_uint()?.map(u32::try_from).transpose().map_err(large)
}

fn read_finished(row: &mut RowReader<'_, '_>) -> RowResult<Option<Finished>> {
    match row.value()? {
        Value::Bin(bytes) | Value::Str(bytes) => {
            let damaged = RowError("the end of a done task is damaged");
            Finished::from_bytes(bytes).map(Some).ok_or(damaged)
        }
        // In a task as Tarantool stores it, this field is the size of its body.
        Value::Nil | Value::Uint(_) => Ok(None),
        _ => Err(RowError("not the end of a done task")),
    }
}

fn read_failures(row: &mut RowReader<'_, '_>) -> RowResult<Option<Failures>> {
    match row.value()? {
        Value::Bin(bytes) | Value::Str(bytes) => {
            let damaged = RowError("the failures of a task are damaged");
            Failures::from_bytes(bytes).map(Some).ok_or(damaged)
        }
        // In a task as Tarantool stores it, this field is the number of its tube.
        Value::Nil | Value::Uint(_) => Ok(None),
        _ => Err(RowError("not the failures of a task")),
    }
}

/// The fields that a task has only while it is taken.
fn write_delivery(out: &mut Out, task: &Task) {
    RowWriter::begin(out)
        .optional(task.lease.map(|lease| lease.0), pack::uint)
        .optional(task.lease_until, write_time)
        .optional(task.start, write_time)
        .optional(task.session, write_session)
        .optional(task.worker.as_deref(), pack::str)
        .end();
}

fn read_delivery(row: &mut RowReader<'_, '_>, task: &mut Task) -> RowResult<()> {
    task.lease = row.optional_uint()?.map(Lease);
    task.lease_until = row.optional_time()?;
    task.start = row.optional_time()?;
    task.session = row.optional_session()?;
    task.worker = match row.value()? {
        Value::Str(name) => {
            let name = std::str::from_utf8(name).map_err(|_| RowError("a text is not UTF-8"))?;
            Some(name.into())
        }
        // In a delivery as Tarantool stores it, this field is the number of its tube.
        Value::Nil | Value::Uint(_) => None,
        _ => return Err(RowError("not the name of a worker")),
    };
    Ok(())
}

/// Tasks as Tarantool stores them, each followed by its current delivery.
pub(super) fn read_delivered(row: &mut RowReader<'_, '_>) -> RowResult<Vec<Task>> {
    row.row(|list| {
        let count = list.count()?;
        let mut tasks = Vec::with_capacity(count / 2);
        for _ in 0..count / 2 {
            let mut task = list.row(read)?;
            list.row(|row| read_delivery(row, &mut task))?;
            (task.state, task.reason) = (State::Taken, Reason::Running);
            // In Tarantool this field is since when the task was ready, if that is not since its
            // put.
            task.due = task.due.or(Some(task.created));
            // Only a peek shows them.
            (task.semaphore_priority, task.worker, task.failures) = (None, None, None);
            tasks.push(task);
        }
        Ok(tasks)
    })
}

pub(super) fn write_state(out: &mut Out, state: State) {
    pack::uint(
        out,
        match state {
            State::Ready => 0,
            State::Taken => 1,
            State::Delayed => 2,
            State::Buried => 3,
            State::Done => 4,
        },
    );
}

pub(super) fn read_state(row: &mut RowReader<'_, '_>) -> RowResult<State> {
    Ok(match row.uint()? {
        0 => State::Ready,
        1 => State::Taken,
        2 => State::Delayed,
        3 => State::Buried,
        4 => State::Done,
        _ => return Err(RowError("a state that this version does not know")),
    })
}

fn write_reason(out: &mut Out, reason: Reason) {
    let (number, due) = match reason {
        Reason::WaitsForConsumer => (0, None),
        Reason::Running => (1, None),
        Reason::NotDue(due) => (2, Some(due)),
        Reason::TubePaused => (3, None),
        Reason::SubqueueBusy => (4, None),
        Reason::Buried => (5, None),
        Reason::AttemptsUsedUp => (6, None),
        Reason::Expired => (7, None),
        Reason::Finished => (8, None),
        Reason::Semaphore => (9, None),
        Reason::RateLimited(next) => (10, Some(next)),
        // The core's list may grow before this one does.
        _ => (0, None),
    };
    RowWriter::variant(out, number).optional(due, write_time).end();
}

fn read_reason(row: &mut RowReader<'_, '_>) -> RowResult<Reason> {
    Ok(match row.uint()? {
        0 => Reason::WaitsForConsumer,
        1 => Reason::Running,
        2 => Reason::NotDue(row.time()?),
        3 => Reason::TubePaused,
        4 => Reason::SubqueueBusy,
        5 => Reason::Buried,
        6 => Reason::AttemptsUsedUp,
        7 => Reason::Expired,
        8 => Reason::Finished,
        9 => Reason::Semaphore,
        10 => Reason::RateLimited(row.time()?),
        _ => return Err(RowError("a reason that this version does not know")),
    })
}

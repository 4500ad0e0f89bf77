//! Decodes tasks in the layouts of `lua/task.lua` and `lua/show.lua`.

use std::sync::Arc;

use taskyard_core::{
    Body, Failures, Finished, HeldKey, Lease, Priority, Reason, SessionId, State, Task, TaskId,
    Timestamp,
};

use super::codec::{ByteReader, TAIL_BYTES_MIN, Unreadable};
use super::extension::{Extension, is_extended};

/// The fixed part of a record, which ends with the size of the body. Larger bodies than `INLINE_MAX` are stored apart.
const RECORD_BYTES: usize = 65;
const INLINE_MAX: u32 = 512;
/// The state of a done task that is kept.
const DONE: u8 = 6;
/// The reason of a task whose tube has no token; the moment of the next one follows.
const RATE_LIMITED: u8 = 10;

/// How much of a task is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// A task that was just taken, with its body.
    Taken,
    /// Its worker, and no body.
    NoBodies,
    Bodies,
    /// Also its priority in the semaphore, its worker and its failures.
    Everything,
}

/// What an answer says of a task before its record.
pub(super) struct TaskHead<'a> {
    id: TaskId,
    reason: u8,
    state: u8,
    delivery: Option<Delivery<'a>>,
    /// When the rate limit of the tube allows the next delivery.
    next_token: Option<Timestamp>,
}

impl TaskHead<'_> {
    /// Whether this is a done task that is kept; then the answer says how it ended.
    pub fn is_kept(&self) -> bool {
        self.state == DONE
    }
}

struct Delivery<'a> {
    until: Timestamp,
    session: Option<SessionId>,
    start: Timestamp,
    lease: Lease,
    /// The name of the worker; empty if it gave none.
    worker: &'a [u8],
}

/// The head of one task that is shown.
pub(super) fn read_shown<'a>(bytes: &mut ByteReader<'a>) -> Result<TaskHead<'a>, Unreadable> {
    let id = TaskId(bytes.big()?);
    let (reason, state) = (bytes.byte()?, bytes.byte()?);
    let delivery = if state == 1 { Some(read_delivery(bytes)?) } else { None };
    let next_token = if reason == RATE_LIMITED { Some(bytes.moment()?) } else { None };
    Ok(TaskHead { id, reason, state, delivery, next_token })
}

/// The head of a task that was just taken, which has only its delivery.
pub(super) fn read_taken<'a>(bytes: &mut ByteReader<'a>) -> Result<TaskHead<'a>, Unreadable> {
    let (id, delivery) = (TaskId(bytes.big()?), read_delivery(bytes)?);
    Ok(TaskHead { id, reason: 1, state: 1, delivery: Some(delivery), next_token: None })
}

fn read_delivery<'a>(bytes: &mut ByteReader<'a>) -> Result<Delivery<'a>, Unreadable> {
    let (flags, _apart) = (bytes.byte()?, bytes.byte()?);
    let (until, session, start) = (bytes.moment()?, bytes.array()?, bytes.moment()?);
    let lease = Lease(bytes.big()?);
    let (_failed, size) = (bytes.byte()?, usize::from(bytes.byte()?));
    let worker = bytes.bytes(size)?;
    bytes.bytes(TAIL_BYTES_MIN.saturating_sub(2 + size))?;
    let session = (flags & 2 != 0).then_some(SessionId(session));
    Ok(Delivery { until, session, start, lease, worker })
}

/// Whether the body of a task is stored apart from its record.
pub(super) fn is_apart(record: &[u8]) -> Result<bool, Unreadable> {
    let size = record.get(RECORD_BYTES - 4..RECORD_BYTES).and_then(|size| size.try_into().ok());
    let size = size.ok_or(Unreadable("a record is cut"))?;
    Ok(u32::from_le_bytes(size) > INLINE_MAX)
}

/// Whether a task has failures: its record has half an attempt more.
pub(super) fn has_failures(record: &[u8]) -> Result<bool, Unreadable> {
    Ok(attempts(record)?.fract() >= 0.5)
}

/// The attempts in a record, with a fraction for failures and one for an extension.
fn attempts(record: &[u8]) -> Result<f64, Unreadable> {
    let mut bytes = ByteReader(record);
    let (_state, _moment) = (bytes.byte()?, bytes.number()?);
    bytes.number()
}

/// The key of a task with an extension, and for how long it is held after the end.
pub(super) fn read_held_key(record: &[u8]) -> Result<Option<HeldKey>, Unreadable> {
    if !is_extended(attempts(record)?) {
        return Ok(None);
    }
    let mut tail = ByteReader(record.get(RECORD_BYTES..).unwrap_or_default());
    Ok(Extension::read(&mut tail)?.key)
}

/// The failures of a task. They are missing if another program has removed them.
pub(super) fn read_failures(text: &[u8]) -> Result<Option<Failures>, Unreadable> {
    let damaged = Unreadable("the failures of a task are damaged");
    if text.is_empty() { Ok(None) } else { Failures::from_bytes(text).map(Some).ok_or(damaged) }
}

/// How a done task ended.
pub(super) fn read_finished(text: &[u8]) -> Result<Finished, Unreadable> {
    Finished::from_bytes(text).ok_or(Unreadable("the end of a done task is damaged"))
}

/// A task as it is shown, with its body if that is in its record or apart, and without its failures.
pub(super) fn read_task(
    shown: TaskHead<'_>,
    record: &[u8],
    apart: Option<&[u8]>,
    detail: Detail,
) -> Result<Task, Unreadable> {
    let TaskHead { id, reason, state, delivery, next_token } = shown;
    let mut bytes = ByteReader(record);
    // This is the state before it was taken.
    bytes.byte()?;
    let (moment, attempts) = (bytes.moment()?, bytes.number()?);
    let (pri, created, expires) = (bytes.big()?, bytes.moment()?, bytes.moment()?);
    let (ttr, previous) = (bytes.span()?, bytes.moment()?);
    let (tail, _) = (bytes.small()? as usize, bytes.small()?);
    let (tail, body) = bytes.rest().split_at_checked(tail).ok_or(Unreadable("a tail is cut"))?;
    let mut tail = ByteReader(tail);
    let extension =
        if is_extended(attempts) { Extension::read(&mut tail)? } else { Extension::default() };
    let (own, subqueue) = read_tail(tail.rest())?;
    let is_complete = detail == Detail::Everything;
    let key = extension.key.filter(|_| is_complete).map(|held| Box::new(held.key));
    let body = apart.or((!body.is_empty()).then_some(body));
    let due = (state == 2).then_some(moment);
    Ok(Task {
        key,
        id,
        state: if reason == 8 { State::Done } else { read_state(state)? },
        pri,
        created,
        due,
        expires,
        ttr,
        attempts: attempts as u32,
        start: delivery.as_ref().map(|delivery| delivery.start),
        previous_start: (previous != Timestamp::NEVER).then_some(previous),
        subqueue,
        semaphore_priority: own.filter(|_| is_complete && state != DONE),
        attempts_max: extension.attempts_max.filter(|_| is_complete || state == DONE),
        session: delivery.as_ref().and_then(|delivery| delivery.session),
        worker: read_worker(delivery.as_ref(), detail)?,
        failures: None,
        finished: None,
        lease: delivery.as_ref().map(|delivery| delivery.lease),
        lease_until: delivery.map(|delivery| delivery.until),
        reason: read_reason(reason, due.or(next_token))?,
        body: match body {
            Some(body) => Some(read_body(body).ok_or(Unreadable("a body is cut"))?),
            None => None,
        },
    })
}

/// The worker that holds a task, if it gave its name and the answer shows it.
fn read_worker(
    delivery: Option<&Delivery<'_>>,
    detail: Detail,
) -> Result<Option<Arc<str>>, Unreadable> {
    let shown = matches!(detail, Detail::NoBodies | Detail::Everything);
    match delivery.map(|delivery| delivery.worker) {
        Some(name) if shown && !name.is_empty() => {
            let name = std::str::from_utf8(name);
            Ok(Some(name.map_err(|_| Unreadable("the name of a worker is not UTF-8"))?.into()))
        }
        _ => Ok(None),
    }
}

/// Since when a task is ready, where that is not since its put.
pub(super) fn read_since(record: &[u8]) -> Result<Option<Timestamp>, Unreadable> {
    let mut bytes = ByteReader(record);
    let (state, since) = (bytes.byte()?, bytes.moment()?);
    Ok(Some(since).filter(|since| state != 2 && *since != Timestamp::EPOCH))
}

/// The priority in the semaphore after a star, and the sub-queue after a plus.
fn read_tail(tail: &[u8]) -> Result<(Option<Priority>, Option<Arc<str>>), Unreadable> {
    let (mut own, mut key) = (None, tail);
    if let Some(rest) = tail.strip_prefix(b"*") {
        let mut bytes = ByteReader(rest);
        let priority = Priority::new(bytes.number()?);
        own = Some(priority.map_err(|_| Unreadable("a priority is no number"))?);
        key = bytes.rest();
    }
    let key = std::str::from_utf8(key).map_err(|_| Unreadable("a sub-queue is not UTF-8"))?;
    // The plus distinguishes an empty name from none.
    Ok((own, key.strip_prefix('+').map(Arc::from)))
}

fn read_state(state: u8) -> Result<State, Unreadable> {
    Ok(match state {
        0 => State::Ready,
        1 => State::Taken,
        2 => State::Delayed,
        3 | 4 => State::Buried,
        5 => State::Delayed,
        _ => return Err(Unreadable("a task has an unknown state")),
    })
}

fn read_reason(reason: u8, moment: Option<Timestamp>) -> Result<Reason, Unreadable> {
    let moment = moment.unwrap_or(Timestamp::NEVER);
    Ok(match reason {
        0 => Reason::WaitsForConsumer,
        1 => Reason::Running,
        2 => Reason::NotDue(moment),
        3 => Reason::TubePaused,
        4 => Reason::SubqueueBusy,
        5 => Reason::Buried,
        6 => Reason::AttemptsUsedUp,
        7 => Reason::Expired,
        8 => Reason::Finished,
        9 => Reason::Semaphore,
        RATE_LIMITED => Reason::RateLimited(moment),
        _ => return Err(Unreadable("a task has an unknown reason")),
    })
}

fn read_body(bytes: &[u8]) -> Option<Body> {
    let (rest, size) = bytes.split_last_chunk::<4>()?;
    let (payload, meta) =
        rest.split_at_checked(rest.len().checked_sub(u32::from_le_bytes(*size) as usize)?)?;
    Some(Body::with_meta(payload, meta))
}

//! Encodes values of the core as SQL parameters and decodes them from rows.

use taskyard_core::command::TubeInfo;
use taskyard_core::estimate::DelayedTasks;
use taskyard_core::limits::TUBE_NAME_BYTES_MAX;
use taskyard_core::{
    Body, Failures, Finished, Key, Kind, Lease, Position, Priority, RateLimit, Reason, RetryPolicy,
    SemaphoreKey, SessionId, Span, State, SubqueuePosition, Task, TaskId, Timestamp, TubeName,
    TubeOptions, TubeStats,
};
use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::status::state;

/// Why a row could not be decoded.
pub(super) type DecodeError = Box<dyn std::error::Error + Send + Sync>;

/// A column, by its place.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, place: usize) -> Result<T, DecodeError> {
    Ok(row.try_get(place)?)
}

/// Priorities are unsigned in the core: stored less 2^63 they sort the same way.
pub(super) const fn pri_to_sql(pri: u64) -> i64 {
    (pri ^ (1 << 63)) as i64
}

pub(super) const fn pri_from_sql(pri: i64) -> u64 {
    (pri as u64) ^ (1 << 63)
}

/// A number of the core that may be larger than PostgreSQL's.
pub(super) fn count_to_sql(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) fn count_from_sql(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}

pub(super) fn span_to_sql(span: Option<Span>) -> Option<i64> {
    span.map(Span::as_micros)
}

pub(super) fn id_to_sql(id: TaskId) -> i64 {
    count_to_sql(id.0)
}

pub(super) fn session_to_sql(session: SessionId) -> Vec<u8> {
    session.0.to_vec()
}

/// A column in which NULL is never.
fn deadline(timer: Option<i64>) -> Timestamp {
    timer.map_or(Timestamp::NEVER, Timestamp::from_micros)
}

/// The payload of a body, without a copy.
#[derive(Debug)]
pub(super) struct Payload(pub Body);

/// The meta map of a body, if it has one.
#[derive(Debug)]
pub(super) struct Meta(pub Body);

impl ToSql for Payload {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, DecodeError> {
        out.extend_from_slice(self.0.payload());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::BYTEA
    }

    to_sql_checked!();
}

impl ToSql for Meta {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, DecodeError> {
        let Some(meta) = self.0.meta() else { return Ok(IsNull::Yes) };
        out.extend_from_slice(meta);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::BYTEA
    }

    to_sql_checked!();
}

/// The location of a row in its table, PostgreSQL's `ctid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowLocation {
    page: u32,
    line: u16,
}

impl ToSql for RowLocation {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, DecodeError> {
        out.extend_from_slice(&self.page.to_be_bytes());
        out.extend_from_slice(&self.line.to_be_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TID
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for RowLocation {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, DecodeError> {
        let [a, b, c, d, e, f] = raw.try_into()?;
        Ok(RowLocation { page: u32::from_be_bytes([a, b, c, d]), line: u16::from_be_bytes([e, f]) })
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TID
    }
}

/// The body in these two columns.
pub(super) fn body(row: &Row, meta: usize, payload: usize) -> Result<Option<Body>, DecodeError> {
    let Some(payload) = get::<Option<&[u8]>>(row, payload)? else { return Ok(None) };
    let meta = get::<Option<&[u8]>>(row, meta)?.unwrap_or_default();
    Ok(Some(Body::with_meta(payload, meta)))
}

/// The failures of a task.
pub(super) fn failures(stored: &[u8]) -> Result<Failures, DecodeError> {
    Failures::from_bytes(stored).ok_or_else(|| "the failures of a task are damaged".into())
}

/// How a done task ended.
pub(super) fn finished(stored: &[u8]) -> Result<Finished, DecodeError> {
    Finished::from_bytes(stored).ok_or_else(|| "the end of a done task is damaged".into())
}

/// The key of a task.
pub(super) fn key(stored: Option<&str>) -> Result<Option<Key>, DecodeError> {
    Ok(stored.map(Key::new).transpose()?)
}

/// A delivered task, in a row of `deliver_with_rate`.
pub(super) fn taken(row: &Row, session: Option<SessionId>) -> Result<Task, DecodeError> {
    let moment = |place| get::<i64>(row, place).map(Timestamp::from_micros);
    Ok(Task {
        key: None,
        id: TaskId(count_from_sql(get(row, 2)?)),
        state: State::Taken,
        pri: pri_from_sql(get(row, 3)?),
        created: moment(4)?,
        due: Some(moment(16)?),
        expires: moment(5)?,
        ttr: Span::from_micros(get(row, 6)?),
        attempts: attempts(get(row, 7)?),
        start: Some(moment(10)?),
        previous_start: get::<Option<i64>>(row, 8)?.map(Timestamp::from_micros),
        subqueue: get::<Option<&str>>(row, 9)?.map(Into::into),
        semaphore_priority: None,
        attempts_max: None,
        session,
        worker: None,
        failures: None,
        finished: None,
        lease: Some(Lease(count_from_sql(get(row, 11)?))),
        lease_until: Some(deadline(get(row, 12)?)),
        reason: Reason::Running,
        body: body(row, 13, 14)?,
    })
}

pub(super) fn attempts(stored: i64) -> u32 {
    u32::try_from(stored).unwrap_or(u32::MAX)
}

/// A task in a row of the type `outcome` or `shown`.
pub(super) fn viewed(row: &Row) -> Result<Task, DecodeError> {
    let moment = |place| get::<i64>(row, place).map(Timestamp::from_micros);
    let stored: i16 = get(row, 4)?;
    let timer = deadline(get(row, 9)?);
    let delivered = stored == state::TAKEN;
    let reason = reason(get(row, 16)?, timer)?;
    let session = get::<Option<&[u8]>>(row, 14)?.map(TryInto::try_into).transpose()?;
    Ok(Task {
        key: key(beyond(row, 24)?)?,
        id: TaskId(count_from_sql(get(row, 3)?)),
        state: if reason == Reason::Finished { State::Done } else { state_from_sql(stored)? },
        pri: pri_from_sql(get(row, 5)?),
        created: moment(6)?,
        due: match stored {
            state::DELAYED => Some(timer),
            _ => beyond(row, 20)?.map(Timestamp::from_micros),
        },
        expires: moment(7)?,
        ttr: Span::from_micros(get(row, 8)?),
        attempts: attempts(get(row, 10)?),
        start: get::<Option<i64>>(row, 13)?.map(Timestamp::from_micros),
        previous_start: get::<Option<i64>>(row, 11)?.map(Timestamp::from_micros),
        subqueue: get::<Option<&str>>(row, 15)?.map(Into::into),
        semaphore_priority: beyond(row, 19)?.map(Priority::new).transpose()?,
        attempts_max: beyond(row, 25)?.map(attempts),
        session: session.map(SessionId),
        worker: beyond::<&str>(row, 21)?.map(Into::into),
        failures: beyond(row, 22)?.map(failures).transpose()?,
        finished: beyond(row, 23)?.map(finished).transpose()?,
        lease: get::<Option<i64>>(row, 12)?.map(|lease| Lease(count_from_sql(lease))),
        lease_until: delivered.then_some(timer),
        reason,
        body: body(row, 17, 18)?,
    })
}

/// The same in a tube whose rate limit allows no delivery before `next_token`.
pub(super) fn viewed_in(row: &Row, next_token: Option<Timestamp>) -> Result<Task, DecodeError> {
    let mut task = viewed(row)?;
    if let Some(next) = next_token.filter(|_| task.reason == Reason::WaitsForConsumer) {
        task.reason = Reason::RateLimited(next);
    }
    Ok(task)
}

/// The position of a task, in a row of `show_positions`.
pub(super) fn position(row: &Row, delayed: &DelayedTasks) -> Result<Position, DecodeError> {
    let count = |place| get::<Option<i64>>(row, place).map(|count| count.map(count_from_sql));
    let (id, pri) = (TaskId(count_from_sql(get(row, 2)?)), pri_from_sql(get(row, 3)?));
    let subqueue = count(7)?.zip(get::<Option<bool>>(row, 8)?);
    Ok(Position {
        id,
        pri,
        due: get::<bool>(row, 13)?.then_some(deadline(get(row, 4)?)),
        ahead: count(5)?.unwrap_or_default(),
        delayed_ahead: delayed.before(pri, id),
        subqueue: subqueue.map(|(ahead, is_busy)| SubqueuePosition { ahead, is_busy }),
        gate_ahead: count(9)?,
        is_exact: get(row, 6)?,
        estimate: None,
    })
}

/// A column beyond those of the type `outcome`. A peek and the list of deliveries have the priority for the semaphore, since when a
/// taken task was ready and its worker; a peek also has the failures, the key and the own number of attempts and, as a deletion, the end of a done
/// task.
fn beyond<'a, T: FromSql<'a>>(row: &'a Row, place: usize) -> Result<Option<T>, DecodeError> {
    if row.len() > place { get(row, place) } else { Ok(None) }
}

pub(super) fn state_from_sql(stored: i16) -> Result<State, DecodeError> {
    Ok(match stored {
        state::READY | state::PASSED => State::Ready,
        state::TAKEN => State::Taken,
        state::DELAYED | state::GATED => State::Delayed,
        state::BURIED | state::USED_UP => State::Buried,
        other => return Err(format!("unknown task state {other}").into()),
    })
}

fn reason(stored: i16, timer: Timestamp) -> Result<Reason, DecodeError> {
    Ok(match stored {
        0 => Reason::WaitsForConsumer,
        1 => Reason::Running,
        2 => Reason::NotDue(timer),
        3 => Reason::TubePaused,
        4 => Reason::SubqueueBusy,
        5 => Reason::Buried,
        6 => Reason::AttemptsUsedUp,
        7 => Reason::Expired,
        8 => Reason::Finished,
        9 => Reason::Semaphore,
        other => return Err(format!("unknown reason {other}").into()),
    })
}

/// A tube in a row of `show_tubes`, its counters still empty.
pub(super) fn tube(row: &Row) -> Result<TubeInfo, DecodeError> {
    tube_from(row, 0)
}

/// The same, whose columns begin at `first`.
pub(super) fn tube_from(row: &Row, first: usize) -> Result<TubeInfo, DecodeError> {
    let span =
        |place| get::<Option<i64>>(row, first + place).map(|span| span.map(Span::from_micros));
    let count = |place| get::<i64>(row, first + place).map(count_from_sql);
    let kind: &str = get(row, first + 2)?;
    let options = TubeOptions {
        kind: Kind::from_name(kind).ok_or_else(|| format!("unknown kind of tube {kind}"))?,
        temporary: get(row, first + 3)?,
        capacity: get::<Option<i64>>(row, first + 4)?.map(count_from_sql),
        ttl: span(5)?,
        ttr: span(6)?,
        delay: span(7)?,
        pri: pri_from_sql(get(row, first + 8)?),
        attempts_max: get::<Option<i64>>(row, first + 9)?.map(attempts),
        retry: retry(row, first + 24)?,
        rate: rate(row, first + 29)?,
        ttl_kills_taken: get(row, first + 10)?,
        paused: get(row, first + 11)?,
        semaphore: get::<Option<&str>>(row, first + 18)?.map(SemaphoreKey::new).transpose()?,
        queue_num: get::<Option<i64>>(row, first + 19)?.map(u32::try_from).transpose()?,
        keep_done: span(21)?,
        keep_done_max: count(22)?,
    };
    let mut stats = TubeStats::default();
    stats.tasks.ready = count(12)?;
    stats.tasks.taken = count(13)?;
    stats.tasks.buried = count(14)?;
    stats.tasks.delayed = count(15)?;
    stats.tasks.kept = count(23)?;
    Ok(TubeInfo {
        name: name(get(row, first + 1)?)?,
        number: number(row, first)?,
        options,
        stats,
        takeable: count(16)?,
        next_wakeup: get::<Option<i64>>(row, first + 17)?.map(Timestamp::from_micros),
        oldest_ready: get::<Option<i64>>(row, first + 20)?.map(Timestamp::from_micros),
    })
}

/// The retry policy in these five columns.
fn retry(row: &Row, first: usize) -> Result<Option<Box<RetryPolicy>>, DecodeError> {
    let Some(delay) = get::<Option<i64>>(row, first)? else { return Ok(None) };
    let permille = |place| Ok::<_, DecodeError>(u32::try_from(get::<i64>(row, place)?)?);
    Ok(Some(Box::new(RetryPolicy {
        delay: Span::from_micros(delay),
        factor_permille: permille(first + 1)?,
        delay_max: Span::from_micros(get(row, first + 2)?),
        jitter_permille: permille(first + 3)?,
        retry_lost: get(row, first + 4)?,
    })))
}

/// The rate limit in these three columns.
fn rate(row: &Row, first: usize) -> Result<Option<Box<RateLimit>>, DecodeError> {
    let Some(count) = get::<Option<i64>>(row, first)? else { return Ok(None) };
    Ok(Some(Box::new(RateLimit {
        count: u32::try_from(count)?,
        per: Span::from_micros(get(row, first + 1)?),
        burst: u32::try_from(get::<i64>(row, first + 2)?)?,
    })))
}

/// A tube's number.
pub(super) fn number(row: &Row, place: usize) -> Result<u32, DecodeError> {
    Ok(u32::try_from(get::<i32>(row, place)?)?)
}

/// A tube's name.
pub(super) fn name(text: &str) -> Result<TubeName, DecodeError> {
    TubeName::new(text).map_err(|_| {
        let cut: String = text.chars().take(TUBE_NAME_BYTES_MAX).collect();
        format!("invalid tube name {cut:?}").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_sort_as_they_did() {
        let priorities = [0, 1, 7, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX];
        for pair in priorities.windows(2) {
            assert!(pri_to_sql(pair[0]) < pri_to_sql(pair[1]));
        }
        assert!(priorities.iter().all(|pri| pri_from_sql(pri_to_sql(*pri)) == *pri));
    }
}

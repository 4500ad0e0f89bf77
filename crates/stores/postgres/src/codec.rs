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

use super::columns::{Column, delivered, position, shown, tube};
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

/// The body in two columns.
pub(super) fn body(meta: Option<&[u8]>, payload: Option<&[u8]>) -> Option<Body> {
    Some(Body::with_meta(payload?, meta.unwrap_or_default()))
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

/// A delivered task.
pub(super) fn taken(row: &Row, session: Option<SessionId>) -> Result<Task, DecodeError> {
    let moment = |column: Column| column.get::<i64>(row).map(Timestamp::from_micros);
    Ok(Task {
        key: None,
        id: TaskId(count_from_sql(delivered::ID.get(row)?)),
        state: State::Taken,
        pri: pri_from_sql(delivered::PRI.get(row)?),
        created: moment(delivered::CREATED)?,
        due: Some(moment(delivered::SINCE)?),
        expires: moment(delivered::EXPIRES)?,
        ttr: Span::from_micros(delivered::TTR.get(row)?),
        attempts: attempts(delivered::ATTEMPTS.get(row)?),
        start: Some(moment(delivered::START)?),
        previous_start: optional_moment(row, delivered::PREVIOUS_START)?,
        subqueue: delivered::SUBQUEUE.get::<Option<&str>>(row)?.map(Into::into),
        semaphore_priority: None,
        attempts_max: None,
        session,
        worker: None,
        failures: None,
        finished: None,
        lease: Some(Lease(count_from_sql(delivered::LEASE.get(row)?))),
        lease_until: Some(deadline(delivered::TIMER.get(row)?)),
        reason: Reason::Running,
        body: body(delivered::META.get(row)?, delivered::PAYLOAD.get(row)?),
    })
}

fn optional_moment(row: &Row, column: Column) -> Result<Option<Timestamp>, DecodeError> {
    Ok(column.get::<Option<i64>>(row)?.map(Timestamp::from_micros))
}

pub(super) fn attempts(stored: i64) -> u32 {
    u32::try_from(stored).unwrap_or(u32::MAX)
}

/// A task in a row of the type `outcome` or `shown`. A peek and the list of deliveries have the priority for the semaphore, since when
/// a taken task was ready and its worker; a peek also has the failures, the key and the own number of attempts and, as a deletion, the
/// end of a done task.
pub(super) fn viewed(row: &Row) -> Result<Task, DecodeError> {
    let moment = |column: Column| column.get::<i64>(row).map(Timestamp::from_micros);
    let stored: i16 = shown::STATE.get(row)?;
    let timer = deadline(shown::TIMER.get(row)?);
    let delivered = stored == state::TAKEN;
    let reason = reason(shown::REASON.get(row)?, timer)?;
    let session = shown::SESSION.get::<Option<&[u8]>>(row)?.map(TryInto::try_into).transpose()?;
    let priority = shown::SEMAPHORE_PRIORITY.get_if_there(row)?;
    Ok(Task {
        key: key(shown::KEY.get_if_there(row)?)?.map(Box::new),
        id: TaskId(count_from_sql(shown::ID.get(row)?)),
        state: if reason == Reason::Finished { State::Done } else { state_from_sql(stored)? },
        pri: pri_from_sql(shown::PRI.get(row)?),
        created: moment(shown::CREATED)?,
        due: match stored {
            state::DELAYED => Some(timer),
            _ => shown::SINCE.get_if_there(row)?.map(Timestamp::from_micros),
        },
        expires: moment(shown::EXPIRES)?,
        ttr: Span::from_micros(shown::TTR.get(row)?),
        attempts: attempts(shown::ATTEMPTS.get(row)?),
        start: optional_moment(row, shown::START)?,
        previous_start: optional_moment(row, shown::PREVIOUS_START)?,
        subqueue: shown::SUBQUEUE.get::<Option<&str>>(row)?.map(Into::into),
        semaphore_priority: priority.map(Priority::new).transpose()?,
        attempts_max: shown::ATTEMPTS_MAX.get_if_there(row)?.map(attempts),
        session: session.map(SessionId),
        worker: shown::WORKER.get_if_there::<&str>(row)?.map(Into::into),
        failures: shown::FAILURES.get_if_there(row)?.map(failures).transpose()?,
        finished: shown::FINISHED.get_if_there(row)?.map(finished).transpose()?,
        lease: shown::LEASE.get::<Option<i64>>(row)?.map(|lease| Lease(count_from_sql(lease))),
        lease_until: delivered.then_some(timer),
        reason,
        body: body(shown::META.get(row)?, shown::PAYLOAD.get(row)?),
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

/// The position of a task.
pub(super) fn position(row: &Row, delayed: &DelayedTasks) -> Result<Position, DecodeError> {
    let count =
        |column: Column| column.get::<Option<i64>>(row).map(|count| count.map(count_from_sql));
    let id = TaskId(count_from_sql(position::ID.get(row)?));
    let pri = pri_from_sql(position::PRI.get(row)?);
    let is_busy = position::IS_BUSY.get::<Option<bool>>(row)?;
    let subqueue = count(position::SUBQUEUE_AHEAD)?.zip(is_busy);
    let is_delayed = position::IS_DELAYED.get::<bool>(row)?;
    Ok(Position {
        id,
        pri,
        due: is_delayed.then_some(deadline(position::DUE.get(row)?)),
        ahead: count(position::AHEAD)?.unwrap_or_default(),
        delayed_ahead: delayed.before(pri, id),
        subqueue: subqueue.map(|(ahead, is_busy)| SubqueuePosition { ahead, is_busy }),
        gate_ahead: count(position::GATE_AHEAD)?,
        is_exact: position::IS_EXACT.get(row)?,
        estimate: None,
    })
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
    tube_after(row, 0)
}

/// The same in a row where `before` other columns come first.
pub(super) fn tube_after(row: &Row, before: usize) -> Result<TubeInfo, DecodeError> {
    let info = TubeRow { row, before };
    let mut stats = TubeStats::default();
    stats.tasks.ready = info.count(tube::READY)?;
    stats.tasks.taken = info.count(tube::TAKEN)?;
    stats.tasks.buried = info.count(tube::BURIED)?;
    stats.tasks.delayed = info.count(tube::DELAYED)?;
    stats.tasks.kept = info.count(tube::KEPT)?;
    Ok(TubeInfo {
        name: name(info.get(tube::NAME)?)?,
        number: u32::try_from(info.get::<i32>(tube::NUMBER)?)?,
        options: info.options()?,
        stats,
        takeable: info.count(tube::TAKEABLE)?,
        next_wakeup: info.number(tube::NEXT_WAKEUP)?.map(Timestamp::from_micros),
        oldest_ready: info.number(tube::OLDEST_READY)?.map(Timestamp::from_micros),
    })
}

/// A row that has the columns of a tube after others.
struct TubeRow<'a> {
    row: &'a Row,
    before: usize,
}

impl<'a> TubeRow<'a> {
    fn get<T: FromSql<'a>>(&self, column: Column) -> Result<T, DecodeError> {
        column.get_after(self.row, self.before)
    }

    fn number(&self, column: Column) -> Result<Option<i64>, DecodeError> {
        self.get(column)
    }

    fn count(&self, column: Column) -> Result<u64, DecodeError> {
        self.get(column).map(count_from_sql)
    }

    fn span(&self, column: Column) -> Result<Option<Span>, DecodeError> {
        Ok(self.number(column)?.map(Span::from_micros))
    }

    fn options(&self) -> Result<TubeOptions, DecodeError> {
        let kind: &str = self.get(tube::KIND)?;
        let semaphore = self.get::<Option<&str>>(tube::SEMAPHORE)?;
        Ok(TubeOptions {
            kind: Kind::from_name(kind).ok_or_else(|| format!("unknown kind of tube {kind}"))?,
            temporary: self.get(tube::TEMPORARY)?,
            capacity: self.number(tube::CAPACITY)?.map(count_from_sql),
            ttl: self.span(tube::TTL)?,
            ttr: self.span(tube::TTR)?,
            delay: self.span(tube::DELAY)?,
            pri: pri_from_sql(self.get(tube::PRI)?),
            attempts_max: self.number(tube::ATTEMPTS_MAX)?.map(attempts),
            retry: self.retry()?,
            rate: self.rate()?,
            ttl_kills_taken: self.get(tube::TTL_KILLS_TAKEN)?,
            paused: self.get(tube::PAUSED)?,
            semaphore: semaphore.map(SemaphoreKey::new).transpose()?,
            queue_num: self.number(tube::QUEUE_NUM)?.map(u32::try_from).transpose()?,
            keep_done: self.span(tube::KEEP_DONE)?,
            keep_done_max: self.count(tube::KEEP_DONE_MAX)?,
        })
    }

    fn retry(&self) -> Result<Option<Box<RetryPolicy>>, DecodeError> {
        let Some(delay) = self.number(tube::RETRY_DELAY)? else { return Ok(None) };
        Ok(Some(Box::new(RetryPolicy {
            delay: Span::from_micros(delay),
            factor_permille: u32::try_from(self.get::<i64>(tube::RETRY_FACTOR)?)?,
            delay_max: Span::from_micros(self.get(tube::RETRY_DELAY_MAX)?),
            jitter_permille: u32::try_from(self.get::<i64>(tube::RETRY_JITTER)?)?,
            retry_lost: self.get(tube::RETRY_LOST)?,
        })))
    }

    fn rate(&self) -> Result<Option<Box<RateLimit>>, DecodeError> {
        let Some(count) = self.number(tube::RATE_COUNT)? else { return Ok(None) };
        Ok(Some(Box::new(RateLimit {
            count: u32::try_from(count)?,
            per: Span::from_micros(self.get(tube::RATE_PER)?),
            burst: u32::try_from(self.get::<i64>(tube::RATE_BURST)?)?,
        })))
    }
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

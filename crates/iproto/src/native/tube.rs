//! Encodes and decodes tubes: options, changes and statistics.

use taskyard_core::command::TubeInfo;
use taskyard_core::limits::KEEP_DONE_DEFAULT;
use taskyard_core::{
    Calls, Counts, Kind, RateLimit, RetryPolicy, SemaphoreKey, Span, TubeChange, TubeOptions,
    TubeStats,
};

use super::row::{RowError, RowReader, RowResult, RowWriter, write_span, write_time};
use super::semaphore::key_of;
use crate::pack::{self, Out};
use crate::reader::Value;

pub(super) fn write_options(out: &mut Out, options: &TubeOptions) {
    let keep_done_max = Some(options.keep_done_max).filter(|most| *most != KEEP_DONE_DEFAULT);
    RowWriter::begin(out)
        .text(options.kind.name())
        .uint(options.pri)
        .bool(options.temporary)
        .bool(options.ttl_kills_taken)
        .bool(options.paused)
        .optional(options.capacity, pack::uint)
        .optional(options.ttl, write_span)
        .optional(options.ttr, write_span)
        .optional(options.delay, write_span)
        .optional(options.attempts_max.map(u64::from), pack::uint)
        .optional(options.semaphore.as_ref().map(SemaphoreKey::as_str), pack::str)
        .optional(options.queue_num.map(u64::from), pack::uint)
        .optional(options.keep_done, write_span)
        .optional(keep_done_max, pack::uint)
        .optional(options.retry.as_deref(), write_retry)
        .optional(options.rate.as_deref(), write_rate)
        .end();
}

fn write_retry(out: &mut Out, retry: &RetryPolicy) {
    RowWriter::begin(out)
        .span(retry.delay)
        .uint(retry.factor_permille.into())
        .span(retry.delay_max)
        .uint(retry.jitter_permille.into())
        .bool(retry.retry_lost)
        .end();
}

fn read_retry(row: &mut RowReader<'_, '_>) -> RowResult<Box<RetryPolicy>> {
    Ok(Box::new(RetryPolicy {
        delay: row.span()?,
        factor_permille: row.u32()?,
        delay_max: row.span()?,
        jitter_permille: row.u32()?,
        retry_lost: row.bool()?,
    }))
}

fn write_rate(out: &mut Out, rate: &RateLimit) {
    RowWriter::begin(out).uint(rate.count.into()).span(rate.per).uint(rate.burst.into()).end();
}

fn read_rate(row: &mut RowReader<'_, '_>) -> RowResult<Box<RateLimit>> {
    Ok(Box::new(RateLimit { count: row.u32()?, per: row.span()?, burst: row.u32()? }))
}

pub(super) fn read_options(row: &mut RowReader<'_, '_>) -> RowResult<TubeOptions> {
    let kind = Kind::from_name(row.text()?);
    let mut options = TubeOptions::new(kind.ok_or(RowError("an unknown kind of tube"))?);
    options.pri = row.uint()?;
    options.temporary = row.bool()?;
    options.ttl_kills_taken = row.bool()?;
    options.paused = row.bool()?;
    options.capacity = row.optional_uint()?;
    options.ttl = row.optional_span()?;
    options.ttr = row.optional_span()?;
    options.delay = row.optional_span()?;
    options.attempts_max = row.optional_uint()?.map(attempts).transpose()?;
    options.semaphore = row.optional_text()?.map(key_of).transpose()?;
    options.queue_num = row.optional_uint()?.map(queue_num).transpose()?;
    options.keep_done = row.optional_span()?;
    options.keep_done_max = row.optional_uint()?.unwrap_or(KEEP_DONE_DEFAULT);
    options.retry = row.optional_row(read_retry)?;
    options.rate = row.optional_row(read_rate)?;
    Ok(options)
}

pub(super) fn queue_num(num: u64) -> RowResult<u32> {
    u32::try_from(num).map_err(|_| RowError("a queue number is too large"))
}

fn attempts(count: u64) -> RowResult<u32> {
    u32::try_from(count).map_err(|_| RowError("a number of attempts is too large"))
}

/// Nil keeps an option, false removes it.
pub(super) fn write_change(out: &mut Out, change: &TubeChange) {
    fn settable<T>(row: &mut RowWriter<'_>, value: Option<Option<T>>, write: fn(&mut Out, T)) {
        row.optional(value, |out, value| match value {
            Some(value) => write(out, value),
            None => pack::bool(out, false),
        });
    }
    let mut row = RowWriter::begin(out);
    row.optional(change.paused, pack::bool).optional(change.pri, pack::uint);
    settable(&mut row, change.capacity, pack::uint);
    settable(&mut row, change.ttl, write_span);
    settable(&mut row, change.ttr, write_span);
    settable(&mut row, change.delay, write_span);
    settable(&mut row, change.attempts_max.map(|count| count.map(u64::from)), pack::uint);
    settable(&mut row, change.keep_done, write_span);
    row.optional(change.keep_done_max, pack::uint);
    // A list with the new value, or an empty one that removes it.
    row.optional(change.retry.as_ref(), |out, retry| {
        RowWriter::begin(out).optional(retry.as_deref(), write_retry).end();
    });
    row.optional(change.rate.as_ref(), |out, rate| {
        RowWriter::begin(out).optional(rate.as_deref(), write_rate).end();
    });
    row.end();
}

pub(super) fn read_change(row: &mut RowReader<'_, '_>) -> RowResult<TubeChange> {
    let paused = match row.value()? {
        Value::Nil => None,
        Value::Bool(paused) => Some(paused),
        _ => return Err(RowError("a pause is a yes or no")),
    };
    Ok(TubeChange {
        paused,
        pri: row.optional_uint()?,
        capacity: read_settable(row)?,
        ttl: read_settable(row)?.map(|ttl| ttl.map(span)),
        ttr: read_settable(row)?.map(|ttr| ttr.map(span)),
        delay: read_settable(row)?.map(|delay| delay.map(span)),
        attempts_max: match read_settable(row)? {
            Some(count) => Some(count.map(attempts).transpose()?),
            None => None,
        },
        keep_done: read_settable(row)?.map(|keep| keep.map(span)),
        keep_done_max: row.optional_uint()?,
        retry: row.optional_row(|row| row.optional_row(read_retry))?,
        rate: row.optional_row(|row| row.optional_row(read_rate))?,
    })
}

fn read_settable(row: &mut RowReader<'_, '_>) -> RowResult<Option<Option<u64>>> {
    match row.value()? {
        Value::Nil => Ok(None),
        Value::Bool(false) => Ok(Some(None)),
        Value::Uint(value) => Ok(Some(Some(value))),
        _ => Err(RowError("a setting is a number, false or nil")),
    }
}

/// Microseconds beyond the range of a span are for ever.
fn span(micros: u64) -> Span {
    Span::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

pub(super) fn write_info(out: &mut Out, info: &TubeInfo) {
    RowWriter::begin(out)
        .tube(&info.name)
        .uint(info.number.into())
        .field(|out| write_options(out, &info.options))
        .list(&counts(&info.stats.tasks), |out, count| pack::uint(out, *count))
        .list(&calls(&info.stats.calls), |out, count| pack::uint(out, *count))
        .uint(info.takeable)
        .optional(info.next_wakeup, write_time)
        .optional(info.oldest_ready, write_time)
        .end();
}

pub(super) fn read_info(row: &mut RowReader<'_, '_>) -> RowResult<TubeInfo> {
    Ok(TubeInfo {
        name: row.tube()?,
        number: row.u32()?,
        options: row.row(read_options)?,
        stats: TubeStats { tasks: row.row(read_counts)?, calls: row.row(read_calls)? },
        takeable: row.uint()?,
        next_wakeup: row.optional_time()?,
        oldest_ready: row.optional_time()?,
    })
}

const fn counts(tasks: &Counts) -> [u64; 6] {
    [tasks.ready, tasks.taken, tasks.buried, tasks.delayed, tasks.done, tasks.kept]
}

fn read_counts(row: &mut RowReader<'_, '_>) -> RowResult<Counts> {
    Ok(Counts {
        ready: row.uint()?,
        taken: row.uint()?,
        buried: row.uint()?,
        delayed: row.uint()?,
        done: row.uint()?,
        // Absent in answers of earlier servers.
        kept: row.optional_uint()?.unwrap_or(0),
    })
}

const fn calls(calls: &Calls) -> [u64; 11] {
    [
        calls.ack,
        calls.bury,
        calls.delete,
        calls.kick,
        calls.put,
        calls.release,
        calls.take,
        calls.touch,
        calls.ttl,
        calls.ttr,
        calls.delay,
    ]
}

fn read_calls(row: &mut RowReader<'_, '_>) -> RowResult<Calls> {
    Ok(Calls {
        ack: row.uint()?,
        bury: row.uint()?,
        delete: row.uint()?,
        kick: row.uint()?,
        put: row.uint()?,
        release: row.uint()?,
        take: row.uint()?,
        touch: row.uint()?,
        ttl: row.uint()?,
        ttr: row.uint()?,
        delay: row.uint()?,
    })
}

//! Reads and writes the retry policies, rate limits and buckets of tubes.

use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};
use taskyard_core::{Bucket, RateLimit, RetryPolicy, Span, Timestamp, TubeRecord};

use super::super::codec::{RowChecksum, RowError};

/// Number of columns between the number of the tube and the checksum.
const NUMBERS: usize = 10;
/// Number of columns of a row.
pub(super) const COLUMNS: usize = NUMBERS + 2;

/// The retry policy, the rate limit and the bucket of a tube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct TubePace {
    retry: Option<RetryPolicy>,
    rate: Option<RateLimit>,
    pub bucket: Option<Bucket>,
}

impl TubePace {
    /// The pace of a tube; `None` if it has neither a policy nor a limit.
    pub fn of(record: &TubeRecord) -> Option<TubePace> {
        let (retry, rate) = (record.options.retry.as_deref(), record.options.rate.as_deref());
        if retry.is_none() && rate.is_none() {
            return None;
        }
        let bucket = record.bucket.filter(|_| rate.is_some());
        Some(TubePace { retry: retry.copied(), rate: rate.copied(), bucket })
    }

    /// Adds the pace to a tube.
    pub fn add_to(self, record: &mut TubeRecord) {
        record.options.retry = self.retry.map(Box::new);
        record.options.rate = self.rate.map(Box::new);
        record.bucket = self.bucket;
    }

    fn numbers(&self) -> [Option<i64>; NUMBERS] {
        let (retry, rate, bucket) = (self.retry, self.rate, self.bucket);
        [
            retry.map(|retry| retry.delay.as_micros()),
            retry.map(|retry| retry.factor_permille.into()),
            retry.map(|retry| retry.delay_max.as_micros()),
            retry.map(|retry| retry.jitter_permille.into()),
            retry.map(|retry| retry.retry_lost.into()),
            rate.map(|rate| rate.count.into()),
            rate.map(|rate| rate.per.as_micros()),
            rate.map(|rate| rate.burst.into()),
            bucket.map(|bucket| bucket.level as i64),
            bucket.map(|bucket| bucket.at.as_micros()),
        ]
    }

    /// The pace with these numbers, if there can be such a one.
    fn from_numbers(numbers: [Option<i64>; NUMBERS]) -> Option<TubePace> {
        let small = |number: Option<i64>| u32::try_from(number?).ok();
        let span = |number: Option<i64>| number.map(Span::from_micros);
        let [delay, factor, delay_max, jitter, lost, count, per, burst, level, at] = numbers;
        let retry = || {
            Some(RetryPolicy {
                delay: span(delay)?,
                factor_permille: small(factor)?,
                delay_max: span(delay_max)?,
                jitter_permille: small(jitter)?,
                retry_lost: lost? != 0,
            })
        };
        let rate =
            || Some(RateLimit { count: small(count)?, per: span(per)?, burst: small(burst)? });
        let bucket = || Some(Bucket { level: level? as u64, at: Timestamp::from_micros(at?) });
        let pace = TubePace { retry: retry(), rate: rate(), bucket: bucket() };
        let valid = pace.retry.is_none_or(|retry| retry.check().is_ok())
            && pace.rate.is_none_or(|rate| rate.check().is_ok());
        (valid && pace.numbers() == numbers).then_some(pace)
    }
}

/// Writes a row.
pub(super) fn write(db: &Connection, number: u32, pace: &TubePace) -> rusqlite::Result<usize> {
    let sql = "INSERT OR REPLACE INTO tube_pace VALUES (?,?,?,?,?,?,?,?,?,?,?,?)";
    let numbers = pace.numbers();
    let values = [Some(i64::from(number))].into_iter().chain(numbers);
    let values = values.chain([Some(sum(number, &numbers))]);
    db.prepare_cached(sql)?.execute(params_from_iter(values))
}

/// Reads the row of a tube, if there is one.
pub(super) fn read(db: &Connection, number: u32) -> Result<Option<TubePace>, RowError> {
    let mut statement = db.prepare_cached("SELECT * FROM tube_pace WHERE number = ?")?;
    let found = statement.query_row([number], |row| Ok(read_row(row))).optional()?;
    Ok(found.transpose()?.map(|(_, pace)| pace))
}

/// Decodes a row and verifies it.
pub(super) fn read_row(row: &Row<'_>) -> Result<(u32, TubePace), RowError> {
    let number: u32 = row.get(0)?;
    let mut numbers = [None; NUMBERS];
    for (column, value) in numbers.iter_mut().enumerate() {
        *value = row.get(column + 1)?;
    }
    let intact = row.get::<_, i64>(COLUMNS - 1)? == sum(number, &numbers);
    let pace = if intact { TubePace::from_numbers(numbers) } else { None };
    let what = || format!("tube number {number}: its retry policy or rate limit is damaged");
    Ok((number, pace.ok_or_else(|| RowError::Damaged(what()))?))
}

fn sum(number: u32, numbers: &[Option<i64>; NUMBERS]) -> i64 {
    numbers.iter().copied().fold(RowChecksum::new(number.into()), RowChecksum::optional).finish()
}

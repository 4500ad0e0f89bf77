//! The rule of a schedule: a cron expression in a time zone, or an interval; and what a schedule
//! does when it is due.
//!
//! Cron expressions follow local time: a time in the missing hour of spring runs at the first moment
//! after it, a time in the repeated hour of autumn at its first occurrence, and what runs every hour
//! runs in both. Intervals have the same length at all times of the year. Without a `start` their
//! times are counted from 1970, so that a rule alone determines its times.

use std::fmt;
use std::sync::Arc;

use super::civil::{SharedZone, Utc, Zones};
use super::cron::Cron;
use super::interval::Interval;
use super::repeat::next_on_grid;
use crate::limits::{SCHEDULE_EVERY_SECS_MIN, SCHEDULE_PUTS_MAX, SCHEDULE_TIMING_BYTES_MAX};
use crate::stored_schedule::{CatchUp, StoredSchedule};
use crate::time::{Span, Timestamp};

/// A time that is at most this late does not count as missed: servers are restarted.
const LATE_MAX: i64 = 60_000_000;

/// The rule of a schedule, as a user writes it.
///
/// The text of a stored schedule is `cron ZONE EXPRESSION` or `every SECONDS [start SECONDS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimingRule {
    /// The times of a cron expression.
    Cron {
        /// The expression.
        cron: Arc<str>,
        /// The name of its time zone.
        zone: Arc<str>,
    },
    /// Times at the same distance.
    Every {
        /// The distance.
        every: Span,
        /// The first time; without it, 1970.
        start: Option<Timestamp>,
    },
}

/// Why a rule is refused, with the field of a schedule that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{field}' is refused: {why}")]
pub struct TimingError {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: String,
}

/// A checked rule.
#[derive(Clone)]
pub struct Timing {
    kind: TimingKind,
}

#[derive(Clone)]
enum TimingKind {
    Cron(Cron, SharedZone),
    Every { step: Span, start: Timestamp },
}

/// What a schedule does when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Firing {
    /// Its next time.
    pub next: Option<Timestamp>,
    /// How many tasks it adds.
    pub puts: usize,
    /// How many times are skipped.
    pub skipped: u64,
    /// How late its latest task is.
    pub late: Span,
}

impl TimingRule {
    /// Reads the text of a stored schedule.
    pub fn read(text: &str) -> Result<Self, TimingError> {
        let unreadable = || error("timing", format!("'{text}' is not the rule of a schedule"));
        let (kind, rest) = text.split_once(' ').ok_or_else(unreadable)?;
        match kind {
            "cron" => {
                let (zone, cron) = rest.split_once(' ').ok_or_else(unreadable)?;
                Ok(TimingRule::Cron { cron: cron.into(), zone: zone.into() })
            }
            "every" => {
                let (every, start) = match rest.split_once(" start ") {
                    Some((every, start)) => (every, Some(read_micros(start))),
                    None => (rest, None),
                };
                let every = Span::from_micros(read_micros(every).ok_or_else(unreadable)?);
                let start = start.map(|start| start.ok_or_else(unreadable)).transpose()?;
                Ok(TimingRule::Every { every, start: start.map(Timestamp::from_micros) })
            }
            _ => Err(unreadable()),
        }
    }

    /// Checks the rule.
    pub fn check(&self, zones: &dyn Zones) -> Result<Timing, TimingError> {
        let kind = match self {
            TimingRule::Cron { cron, zone } => {
                let parsed = Cron::parse(cron).map_err(|why| error("cron", why.to_string()))?;
                if parsed.next(Timestamp::EPOCH, &Utc).is_none() {
                    let why = format!("there is no time that '{cron}' describes");
                    return Err(error("cron", why));
                }
                let known = zones.find(zone).filter(|_| !zone.contains(' '));
                let unknown = || error("zone", format!("there is no time zone '{zone}'"));
                TimingKind::Cron(parsed, known.ok_or_else(unknown)?)
            }
            TimingRule::Every { every, start } => {
                if *every < Span::from_secs(SCHEDULE_EVERY_SECS_MIN) || *every == Span::FOREVER {
                    let why = format!("an interval has at least {SCHEDULE_EVERY_SECS_MIN} s");
                    return Err(error("every", why));
                }
                let start = start.unwrap_or(Timestamp::EPOCH);
                if start < Timestamp::EPOCH || start == Timestamp::NEVER {
                    return Err(error("start", "not a moment after 1970".into()));
                }
                TimingKind::Every { step: *every, start }
            }
        };
        let length = self.to_string().len();
        if length > SCHEDULE_TIMING_BYTES_MAX {
            let limit = SCHEDULE_TIMING_BYTES_MAX;
            let why = format!("the rule has {length} bytes, the limit is {limit}");
            return Err(error("cron", why));
        }
        Ok(Timing { kind })
    }
}

impl fmt::Display for TimingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimingRule::Cron { cron, zone } => write!(f, "cron {zone} {}", cron.trim()),
            TimingRule::Every { every, start } => {
                write!(f, "every {}", seconds(every.as_micros()))?;
                match start {
                    Some(start) => write!(f, " start {}", seconds(start.as_micros())),
                    None => Ok(()),
                }
            }
        }
    }
}

impl Timing {
    /// Reads and checks the text of a stored schedule.
    pub fn read(text: &str, zones: &dyn Zones) -> Result<Self, TimingError> {
        TimingRule::read(text)?.check(zones)
    }

    /// The first time after this moment.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.kind {
            TimingKind::Cron(cron, zone) => cron.next(after, &**zone),
            TimingKind::Every { start, .. } if *start > after => Some(*start),
            TimingKind::Every { step, start } => {
                let step = Interval::from_micros(step.as_micros());
                let next = next_on_grid(*start, after, step, &Utc);
                Some(next).filter(|next| *next > after && *next < Timestamp::NEVER)
            }
        }
    }

    /// The first time after `now` of a schedule that ends with `until`.
    pub fn first(&self, until: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        self.next(now).filter(|next| until.is_none_or(|until| *next <= until))
    }

    /// The times after this moment, in order.
    pub fn times(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(self.next(after), |at| self.next(*at))
    }

    /// How many times are after `after` and not after `through`.
    fn count(&self, after: Timestamp, through: Timestamp) -> u64 {
        match &self.kind {
            TimingKind::Cron(cron, zone) => cron.count(after, through, &**zone),
            TimingKind::Every { step, .. } => match self.next(after) {
                Some(first) if first <= through => {
                    let length = through.as_micros() - first.as_micros();
                    length.unsigned_abs() / step.as_micros().unsigned_abs() + 1
                }
                _ => 0,
            },
        }
    }

    /// What a schedule with this rule does at the moment `now` of wall time, when its time
    /// `expected` is due.
    pub fn fire(&self, schedule: &StoredSchedule, expected: Timestamp, now: Timestamp) -> Firing {
        // The clock of the store may be ahead of the caller's.
        let now = now.max(expected);
        let until = schedule.until.unwrap_or(Timestamp::NEVER);
        let through = now.min(until);
        let due = if expected <= through { 1 + self.count(expected, through) } else { 0 };
        let first_recent = self.first_recent(expected, through, now);
        let recent = first_recent.map_or(0, |first| 1 + self.count(first, through));
        let puts = match schedule.catch_up {
            CatchUp::None => recent,
            CatchUp::Last => recent.max(due.min(1)),
            CatchUp::All => due,
        };
        let puts = puts.min(SCHEDULE_PUTS_MAX as u64);
        let next = self.first(schedule.until, now);
        let late = now.since(first_recent.unwrap_or(expected));
        Firing { next, puts: puts as usize, skipped: due - puts, late }
    }

    /// The first of the times that are due that does not count as missed.
    fn first_recent(
        &self,
        expected: Timestamp,
        through: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let floor = now.moved(-LATE_MAX);
        let time = if expected >= floor { Some(expected) } else { self.next(floor.moved(-1)) };
        time.filter(|time| *time <= through)
    }
}

impl fmt::Debug for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            TimingKind::Cron(cron, _) => cron.fmt(f),
            TimingKind::Every { step, start } => write!(f, "every {step:?} from {start:?}"),
        }
    }
}

fn error(field: &'static str, why: String) -> TimingError {
    TimingError { field, why }
}

/// Microseconds as a decimal number of seconds without needless digits.
fn seconds(micros: i64) -> String {
    let (whole, rest) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let text = format!("{whole}.{rest:06}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Reads what [`seconds`] writes.
fn read_micros(text: &str) -> Option<i64> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || rest.len() > 6 || !is_digits(whole) || !is_digits(rest) {
        return None;
    }
    let micros: i64 = format!("{rest:0<6}").parse().ok()?;
    whole.parse::<i64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)
}

#[cfg(test)]
mod tests;

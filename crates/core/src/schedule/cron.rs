//! Cron expressions, in local time.
//!
//! Five fields (minute, hour, day of month, month, day of week) or six with the second first; `*`, lists, ranges,
//! steps, names of months and days, and `@hourly` and its kind. Where both days are given, either is enough.
//!
//! When clocks are set forward, what falls into the missing hour runs once, at its end. When they are set back,
//! what has a fixed hour runs once, the first time; what runs every hour runs in both.

use super::civil::{Civil, DAY, Date, HOUR, Moments, Zone, civil_of, moments_of};
use crate::time::Timestamp;

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
/// How many days are looked at before a time is taken for one that never comes; a leap day is at most eight
/// years away.
const DAYS_MAX: i64 = 366 * 9;
/// The longest time whose runs are counted, in microseconds: a century.
const COUNTED_MAX: i64 = 36_525 * DAY;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A parsed cron expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether a day must be right by both of its fields, because one of them says nothing.
    both_days: bool,
}

/// Why a text is not a cron expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    /// There are not five or six fields.
    #[error("a cron expression has five fields (minute hour day month weekday) or six, not {0}")]
    Fields(usize),
    /// An unknown name after `@`.
    #[error("'{0}' is none of @yearly, @monthly, @weekly, @daily and @hourly")]
    Name(String),
    /// An invalid field.
    #[error("'{text}' is no {field} of a cron expression ({low}-{high})")]
    Field {
        /// The text.
        text: String,
        /// Which field it is.
        field: &'static str,
        /// The smallest allowed value.
        low: u32,
        /// The largest allowed value.
        high: u32,
    },
}

/// The allowed values of a field.
struct Field {
    name: &'static str,
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const FIELDS: [Field; 6] = [
    Field { name: "second", low: 0, high: 59, names: &[] },
    Field { name: "minute", low: 0, high: 59, names: &[] },
    Field { name: "hour", low: 0, high: 23, names: &[] },
    Field { name: "day of the month", low: 1, high: 31, names: &[] },
    Field { name: "month", low: 1, high: 12, names: &MONTHS },
    Field { name: "day of the week", low: 0, high: 7, names: &WEEKDAYS },
];

impl Cron {
    /// Reads an expression.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        let text = text.trim();
        let long = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            _ if text.starts_with('@') => return Err(CronError::Name(text.into())),
            _ => text,
        };
        let mut words: Vec<&str> = long.split_whitespace().collect();
        match words.len() {
            5 => words.insert(0, "0"),
            6 => {}
            count => return Err(CronError::Fields(count)),
        }
        let mut sets = [0; 6];
        for ((set, word), field) in sets.iter_mut().zip(&words).zip(&FIELDS) {
            *set = field.set(word)?;
        }
        let [seconds, minutes, hours, days, months, weekdays] = sets;
        // Sunday has two numbers.
        let weekdays = (weekdays | weekdays >> 7) & 0x7f;
        let both_days = [words[3], words[5]].iter().any(|word| word.starts_with(['*', '?']));
        Ok(Cron { seconds, minutes, hours, days, months, weekdays, both_days })
    }

    /// The first time after `now`, if there is one.
    pub fn next(&self, now: Timestamp, zone: &dyn Zone) -> Option<Timestamp> {
        let shown = civil_of(now, zone);
        // Around a change of the clocks, times that were already shown may come again.
        let set =
            zone.offset_micros(now.moved(-3 * HOUR)) != zone.offset_micros(now.moved(3 * HOUR));
        let mut from = if set { Civil(shown.0.saturating_sub(3 * HOUR)) } else { shown };
        let mut best: Option<Timestamp> = None;
        while let Some(civil) = self.next_shown(from) {
            let moments = moments_of(civil, zone);
            if best.is_some_and(|best| moments.first() >= best) {
                break;
            }
            let found = self.moments(moments).into_iter().flatten().filter(|at| *at > now).min();
            best = best.into_iter().chain(found).min();
            from = Civil(civil.0 + SECOND);
        }
        best
    }

    /// How many times are after `after` and not after `through`.
    pub fn count(&self, after: Timestamp, through: Timestamp, zone: &dyn Zone) -> u64 {
        let (mut from, to) = (after.moved(1).as_micros(), through.moved(1).as_micros());
        let to = to.min(from.saturating_add(COUNTED_MAX));
        let mut count = 0;
        while from < to {
            let moment = Timestamp::from_micros(from);
            let offset = zone.offset_micros(moment);
            let day = civil_of(moment, zone).day_number();
            let midnight = day.saturating_mul(DAY).saturating_sub(offset);
            let end = midnight.saturating_add(DAY).min(to);
            let same = |at: i64| zone.offset_micros(Timestamp::from_micros(at)) == offset;
            if same(midnight.saturating_sub(DAY)) && same(midnight.saturating_add(2 * DAY)) {
                // No clock is set near this day, so it need not be walked.
                let times = self.count_before(end - midnight) - self.count_before(from - midnight);
                count += if self.has_day(day) { times } else { 0 };
                from = end;
                continue;
            }
            let next = self.next(Timestamp::from_micros(from - 1), zone);
            let Some(next) = next.filter(|next| next.as_micros() < end) else {
                from = end;
                continue;
            };
            count += 1;
            from = next.as_micros() + 1;
        }
        count
    }

    /// How many times of a day are before this one, as clocks show it.
    fn count_before(&self, of_day: i64) -> u64 {
        let all = |set: u64| u64::from(set.count_ones());
        let below = |set: u64, bit: i64| all(set & ((1 << bit) - 1));
        // A time within a second comes after its beginning.
        let seconds = of_day.saturating_add(SECOND - 1).div_euclid(SECOND);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let of_minute = below(self.seconds, second);
        let of_hour = below(self.minutes, minute) * all(self.seconds)
            + if has(self.minutes, minute) { of_minute } else { 0 };
        below(self.hours, hour) * all(self.minutes) * all(self.seconds)
            + if has(self.hours, hour) { of_hour } else { 0 }
    }

    /// Those of the moments at which it runs.
    fn moments(&self, moments: Moments) -> [Option<Timestamp>; 2] {
        match moments {
            Moments::Twice(first, second) if self.hours == FIELDS[2].all() => {
                [Some(first), Some(second)]
            }
            moments => [Some(moments.first()), None],
        }
    }

    /// The first time at or after this one that fits, as clocks show it.
    fn next_shown(&self, from: Civil) -> Option<Civil> {
        // Up to the next whole second.
        let from = from.0.saturating_add(SECOND - 1).div_euclid(SECOND).saturating_mul(SECOND);
        let first_day = Civil(from).day_number();
        for day in first_day..first_day.saturating_add(DAYS_MAX) {
            if !self.has_day(day) {
                continue;
            }
            let least = if day == first_day { Civil(from).of_day() } else { 0 };
            if let Some(of_day) = self.next_of_day(least) {
                return Some(Civil(day.saturating_mul(DAY).saturating_add(of_day)));
            }
        }
        None
    }

    fn has_day(&self, day_number: i64) -> bool {
        let date = Date::of(day_number);
        // The first day of 1970 was a Thursday.
        let weekday = (day_number + 4).rem_euclid(7);
        let (by_date, by_week) = (has(self.days, date.day), has(self.weekdays, weekday));
        let day = if self.both_days { by_date && by_week } else { by_date || by_week };
        has(self.months, date.month) && day
    }

    fn next_of_day(&self, least: i64) -> Option<i64> {
        let (hour, minute, second) = (least / HOUR, least / MINUTE % 60, least / SECOND % 60);
        for h in bits(self.hours, hour) {
            let minute = if h == hour { minute } else { 0 };
            for m in bits(self.minutes, minute) {
                let second = if (h, m) == (hour, minute) { second } else { 0 };
                if let Some(s) = bits(self.seconds, second).next() {
                    return Some(h * HOUR + m * MINUTE + s * SECOND);
                }
            }
        }
        None
    }
}

fn has(set: u64, bit: i64) -> bool {
    set >> bit & 1 == 1
}

/// The members of a set from `least` on.
fn bits(set: u64, least: i64) -> impl Iterator<Item = i64> {
    (least..64).filter(move |bit| has(set, *bit))
}

impl Field {
    fn all(&self) -> u64 {
        (self.low..=self.high).fold(0, |set, bit| set | 1 << bit)
    }

    fn set(&self, word: &str) -> Result<u64, CronError> {
        let parts = word.split(',').map(|part| self.part(part));
        let set = parts.sum::<Option<SetOf>>().map(|set| set.0).filter(|set| *set != 0);
        set.ok_or_else(|| CronError::Field {
            text: word.into(),
            field: self.name,
            low: self.low,
            high: self.high,
        })
    }

    /// One part of a list: `*`, `5`, `5-10`, each with a step.
    fn part(&self, part: &str) -> Option<SetOf> {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, number(step).filter(|step| *step > 0)?),
            None => (part, 1),
        };
        let (low, high) = match range.split_once('-') {
            _ if range == "*" || range == "?" => (self.low, self.high),
            Some((low, high)) => (self.value(low)?, self.value(high)?),
            // A single value with a step goes on to the end.
            None if part.contains('/') => (self.value(range)?, self.high),
            None => (self.value(range)?, self.value(range)?),
        };
        (low <= high).then_some(())?;
        Some(SetOf((low..=high).step_by(step as usize).fold(0, |set, bit| set | 1 << bit)))
    }

    fn value(&self, text: &str) -> Option<u32> {
        let named = self.names.iter().position(|name| text.eq_ignore_ascii_case(name));
        let value = match named {
            Some(place) => place as u32 + self.low,
            None => number(text)?,
        };
        (self.low..=self.high).contains(&value).then_some(value)
    }
}

fn number(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Sets add up to their union.
struct SetOf(u64);

impl std::iter::Sum for SetOf {
    fn sum<I: Iterator<Item = SetOf>>(sets: I) -> Self {
        SetOf(sets.fold(0, |all, set| all | set.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::civil::Utc;
    use super::super::civil::test_zone::{BACK, FORWARD, Summer};
    use super::*;

    fn cron(text: &str) -> Cron {
        Cron::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn moment(year: i64, month: i64, day: i64, hour: i64, minute: i64) -> Timestamp {
        let days = Date { year, month, day }.day_number();
        Timestamp::from_micros(days * DAY + hour * HOUR + minute * MINUTE)
    }

    #[test]
    fn the_usual_expressions() {
        // 2026-11-15 is a Sunday.
        let now = moment(2026, 11, 15, 8, 40);
        for (text, (month, day, hour, minute)) in [
            ("* * * * *", (11, 15, 8, 41)),
            ("*/15 * * * *", (11, 15, 8, 45)),
            ("5/20 * * * *", (11, 15, 8, 45)),
            ("0 3 * * *", (11, 16, 3, 0)),
            ("@daily", (11, 16, 0, 0)),
            ("@hourly", (11, 15, 9, 0)),
            ("@monthly", (12, 1, 0, 0)),
            ("30 9 * * mon-fri", (11, 16, 9, 30)),
            ("0 12 * * 7", (11, 15, 12, 0)),
            ("0 0 13 * fri", (11, 20, 0, 0)),
            ("0 0 31 * *", (12, 31, 0, 0)),
            ("0,30 8-10 * NOV Sun", (11, 15, 9, 0)),
            ("0 0 1-7/3 12 ?", (12, 1, 0, 0)),
        ] {
            let next = cron(text).next(now, &Utc);
            assert_eq!(next, Some(moment(2026, month, day, hour, minute)), "{text}");
        }
        assert_eq!(cron("0 0 29 2 *").next(now, &Utc), Some(moment(2028, 2, 29, 0, 0)));
        assert_eq!(cron("0 0 30 2 *").next(now, &Utc), None);
        let second = Timestamp::from_micros(now.as_micros() + 7 * SECOND);
        assert_eq!(cron("7 * * * * *").next(now, &Utc), Some(second));
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for text in ["", "* * * *", "* * * * * * *", "@never", "60 * * * *", "* 24 * * *"] {
            assert!(Cron::parse(text).is_err(), "{text:?}");
        }
        for text in ["* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *", "*/0 * * * *"] {
            assert!(Cron::parse(text).is_err(), "{text:?}");
        }
        for text in ["a * * * *", "1, * * * *", "- * * * *", "1-2-3 * * * *", "+1 * * * *"] {
            assert!(Cron::parse(text).is_err(), "{text:?}");
        }
        let said = Cron::parse("61 * * * *").unwrap_err().to_string();
        assert_eq!(said, "'61' is no minute of a cron expression (0-59)");
    }

    fn runs(text: &str, from: i64, to: i64) -> Vec<i64> {
        let (cron, mut now) = (cron(text), Timestamp::from_micros(from));
        let next = || {
            now = cron.next(now, &Summer).filter(|next| next.as_micros() < to)?;
            Some((now.as_micros() - from) / MINUTE)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn the_missing_hour_runs_once_at_its_end() {
        let (from, to) = (FORWARD - HOUR, FORWARD + 2 * HOUR);
        assert_eq!(runs("30 2 * * *", from, to), [60]);
        assert_eq!(runs("0,20,40 2 * * *", from, to), [60]);
        assert_eq!(runs("*/30 * * * *", from, to), [30, 60, 90, 120, 150]);
    }

    #[test]
    fn the_repeated_hour_runs_once_unless_every_hour_does() {
        let (from, to) = (BACK - 2 * HOUR, BACK + 2 * HOUR);
        assert_eq!(runs("30 2 * * *", from, to), [90]);
        assert_eq!(runs("30 1-4 * * *", from, to), [30, 90, 210]);
        assert_eq!(runs("30 * * * *", from, to), [30, 90, 150, 210]);
    }

    // Only times after the one that was shown were looked at before the clocks were set back: after 2:30
    // came the second 2:30, and the second 2:00 was left out.
    #[test]
    fn every_time_of_the_repeated_hour_runs_in_both() {
        let (from, to) = (BACK - 2 * HOUR, BACK + 2 * HOUR);
        assert_eq!(runs("*/30 * * * *", from, to), [30, 60, 90, 120, 150, 180, 210]);
        assert_eq!(runs("5,7 * * * *", BACK - HOUR, BACK + HOUR), [5, 7, 65, 67]);
    }

    #[test]
    fn runs_only_go_forward_and_fit() {
        let mut random = fastrand::Rng::with_seed(11);
        let texts = ["*/7 * * * *", "10 1-3 * * *", "*/20 2 * * *", "0 */5 * * sun", "1 2 3 * *"];
        for text in texts {
            let cron = cron(text);
            for _ in 0..500 {
                let now = Timestamp::from_micros(random.i64(FORWARD - 30 * DAY..BACK + 30 * DAY));
                let next = cron.next(now, &Summer).expect("it comes again");
                assert!(next > now);
                let shown = civil_of(next, &Summer);
                let fits = cron.next_shown(shown) == Some(shown);
                assert!(fits || next.as_micros() == FORWARD, "{text} after {now:?}: {next:?}");
            }
        }
    }
}

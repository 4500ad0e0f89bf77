//! Cron expressions, in local time.
//!
//! Five fields (minute, hour, day of month, month, day of week) or six with the second first; `*`, lists, ranges,
//! steps, names of months and days, and `@hourly` and its kind. Where both days are given, either is enough.
//!
//! When clocks are set forward, what falls into the missing hour runs once, at its end. When they are set back,
//! what has a fixed hour runs once, the first time; what runs every hour runs in both.

use super::civil::{Civil, DAY, Date, HOUR, Zone, change_between};
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

/// At most a day in which clocks are not set, in microseconds.
struct Stretch {
    from: i64,
    to: i64,
    /// How far local time is ahead.
    offset: i64,
    /// The local time at its beginning.
    shown_from: i64,
    /// If clocks were set forward at its beginning, the first local time that they left out.
    left_out_from: i64,
    /// If clocks were set back within the day before, the local time that they showed last.
    shown_before: i64,
}

impl Stretch {
    /// The stretch from `from` until the next change of the clocks, at most until `to`.
    fn new(from: i64, to: i64, zone: &dyn Zone) -> Self {
        let offset_at = |at: i64| zone.offset_micros(Timestamp::from_micros(at));
        let offset = offset_at(from);
        let shown_from = from.saturating_add(offset);
        let (early, late) = (from.saturating_sub(DAY), from.saturating_add(DAY).min(to));
        let before = offset_at(early);
        let changed =
            if before == offset { early } else { change_between(early, from, before, zone) };
        let last_shown = changed.saturating_add(before);
        let is_beginning = changed == from && before < offset;
        let to =
            if offset_at(late) == offset { late } else { change_between(from, late, offset, zone) };
        Stretch {
            from,
            to,
            offset,
            shown_from,
            left_out_from: if is_beginning { last_shown } else { shown_from },
            shown_before: if before > offset { last_shown } else { shown_from },
        }
    }

    /// The local time at its end, if clocks are not set then.
    fn shown_to(&self) -> i64 {
        self.to.saturating_add(self.offset)
    }
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
        let mut from = now.moved(1).as_micros();
        let to = from.saturating_add(2 * DAYS_MAX * DAY);
        while from < to {
            let stretch = Stretch::new(from, to, zone);
            if let Some(first) = self.first_in(&stretch) {
                return Some(first);
            }
            // Days without a time are passed over, unless clocks are set soon and show times again.
            let shown = self.next_shown(Civil(stretch.shown_from))?.0;
            let is_whole = stretch.to - stretch.from == DAY;
            let near = shown.saturating_sub(stretch.offset).saturating_sub(2 * DAY);
            from = if is_whole { stretch.to.max(near) } else { stretch.to };
        }
        None
    }

    /// How many times are after `after` and not after `through`.
    pub fn count(&self, after: Timestamp, through: Timestamp, zone: &dyn Zone) -> u64 {
        let (mut from, to) = (after.moved(1).as_micros(), through.moved(1).as_micros());
        let to = to.min(from.saturating_add(COUNTED_MAX));
        let mut count = 0;
        while from < to {
            let stretch = Stretch::new(from, to, zone);
            let new_from = self.new_from(&stretch);
            let at_change = self.runs_at_change(&stretch)
                && self.next_shown(Civil(new_from)) != Some(Civil(stretch.shown_from));
            count += self.count_shown(new_from, stretch.shown_to()) + u64::from(at_change);
            from = stretch.to;
        }
        count
    }

    /// The first time in a stretch.
    fn first_in(&self, stretch: &Stretch) -> Option<Timestamp> {
        if self.runs_at_change(stretch) {
            return Some(Timestamp::from_micros(stretch.from));
        }
        let shown = self.next_shown(Civil(self.new_from(stretch)))?.0;
        let is_within = shown < stretch.shown_to();
        is_within.then(|| Timestamp::from_micros(shown.saturating_sub(stretch.offset)))
    }

    /// Whether it runs at the beginning of a stretch because the clocks left out one of its times.
    fn runs_at_change(&self, stretch: &Stretch) -> bool {
        let Stretch { left_out_from, shown_from, .. } = *stretch;
        let is_left_out = |shown: Civil| shown.0 < shown_from;
        left_out_from < shown_from && self.next_shown(Civil(left_out_from)).is_some_and(is_left_out)
    }

    /// From which local time on a stretch has times of its own: what clocks show again counts only
    /// for what runs every hour.
    fn new_from(&self, stretch: &Stretch) -> i64 {
        let every_hour = self.hours == FIELDS[2].all();
        if every_hour { stretch.shown_from } else { stretch.shown_from.max(stretch.shown_before) }
    }

    /// How many times clocks show from `from` until before `to`.
    fn count_shown(&self, from: i64, to: i64) -> u64 {
        if from >= to {
            return 0;
        }
        let days = Civil(from).day_number()..=Civil(to).day_number();
        let of_day = |day: i64| {
            let midnight = day.saturating_mul(DAY);
            let before =
                |civil: i64| self.count_before(civil.saturating_sub(midnight).clamp(0, DAY));
            before(to) - before(from)
        };
        days.filter(|day| self.has_day(*day)).map(of_day).sum()
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
    use std::cell::Cell;

    use super::super::civil::test_zone::{BACK, FORWARD, Summer};
    use super::super::civil::{Utc, civil_of};
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

    /// Counts how often it is asked.
    struct CountedZone(Cell<u64>);

    impl Zone for CountedZone {
        fn offset_micros(&self, at: Timestamp) -> i64 {
            self.0.set(self.0.get() + 1);
            Summer.offset_micros(at)
        }
    }

    // Within three hours of a change of the clocks each time was searched from three hours earlier: after a stop of
    // a server in that night, what runs every second was counted in some hundred million steps.
    #[test]
    fn times_around_a_change_cost_as_much_as_others() {
        let (every_second, zone) = (cron("* * * * * *"), CountedZone(Cell::new(0)));
        for (change, hours) in [(FORWARD, 48), (BACK, 48)] {
            let (from, to) = (change - DAY, change + DAY);
            let [after, through] = [from, to].map(Timestamp::from_micros);
            zone.0.set(0);
            assert_eq!(every_second.count(after, through, &zone), hours * 3600);
            assert!(zone.0.get() < 200, "{} steps", zone.0.get());
            zone.0.set(0);
            let mut now = Timestamp::from_micros(change - HOUR);
            for _ in 0..7_200 {
                let next = every_second.next(now, &zone).expect("the next second");
                assert_eq!(next, now.moved(SECOND));
                now = next;
            }
            assert!(zone.0.get() < 7_200 * 100, "{} steps", zone.0.get());
        }
    }

    #[test]
    fn what_clocks_show_again_at_midnight_is_found() {
        /// A zone whose clocks are set back from midnight to 23:00.
        struct Midnight;
        impl Zone for Midnight {
            fn offset_micros(&self, at: Timestamp) -> i64 {
                if at.as_micros() < 10 * DAY { 0 } else { -HOUR }
            }
        }
        // 1970-01-10.
        let hourly = cron("30 * 10 1 *");
        let at = |minutes: i64| Timestamp::from_micros(10 * DAY + minutes * MINUTE);
        assert_eq!(hourly.next(at(-15), &Midnight), Some(at(30)));
        assert_eq!(cron("30 23 10 1 *").next(at(-45), &Midnight), Some(at(-30)));
        let year = Some(at(365 * 24 * 60 + 30));
        assert_eq!(cron("30 23 10 1 *").next(at(-15), &Midnight), year);
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

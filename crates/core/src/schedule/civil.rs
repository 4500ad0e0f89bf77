//! Calendar arithmetic and local time.

use std::sync::Arc;

use crate::time::Timestamp;

/// Microseconds of a day.
pub(super) const DAY: i64 = 24 * HOUR;
/// Microseconds of an hour.
pub(super) const HOUR: i64 = 3_600_000_000;

/// A time zone: the offset of local time from UTC.
pub trait Zone {
    /// Microseconds to be added to UTC at this moment.
    fn offset_micros(&self, at: Timestamp) -> i64;
}

/// A zone that threads share.
pub type SharedZone = Arc<dyn Zone + Send + Sync>;

/// Finds zones by name.
pub trait Zones {
    /// The zone of this name, if there is one.
    fn find(&self, name: &str) -> Option<SharedZone>;
}

/// The zone without an offset.
#[derive(Clone, Copy, Debug)]
pub struct Utc;

impl Zone for Utc {
    fn offset_micros(&self, _: Timestamp) -> i64 {
        0
    }
}

/// A local time: microseconds since local 1970-01-01 00:00.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Civil(pub i64);

/// The moments at which local clocks show a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moments {
    /// The usual case.
    Once(Timestamp),
    /// The hour that is repeated when clocks are set back.
    Twice(Timestamp, Timestamp),
    /// The hour that is left out when clocks are set forward.
    Never {
        /// The first moment after the gap.
        end: Timestamp,
        /// As if clocks had not been set forward.
        unmoved: Timestamp,
    },
}

impl Moments {
    /// The first of them, or the end of the gap.
    pub fn first(self) -> Timestamp {
        match self {
            Moments::Once(at) | Moments::Twice(at, _) | Moments::Never { end: at, .. } => at,
        }
    }

    /// The moment that PostgreSQL means by such a time.
    pub(super) fn as_postgres(self) -> Timestamp {
        match self {
            Moments::Once(at) | Moments::Twice(_, at) | Moments::Never { unmoved: at, .. } => at,
        }
    }
}

/// The local time at a moment.
pub(super) fn civil_of(at: Timestamp, zone: &dyn Zone) -> Civil {
    Civil(at.as_micros().saturating_add(zone.offset_micros(at)))
}

/// The moments of this local time.
pub fn moments_of(civil: Civil, zone: &dyn Zone) -> Moments {
    let at = |offset: i64| Timestamp::from_micros(civil.0.saturating_sub(offset));
    let before = zone.offset_micros(Timestamp::from_micros(civil.0.saturating_sub(DAY)));
    let after = zone.offset_micros(Timestamp::from_micros(civil.0.saturating_add(DAY)));
    let fits = |offset: i64| zone.offset_micros(at(offset)) == offset;
    match (fits(before), fits(after)) {
        (true, true) if before == after => Moments::Once(at(before)),
        (true, true) => Moments::Twice(at(before).min(at(after)), at(before).max(at(after))),
        (true, false) => Moments::Once(at(before)),
        (false, true) => Moments::Once(at(after)),
        (false, false) => {
            let unmoved = at(before);
            let late = unmoved.as_micros();
            let end = change_between(late.saturating_sub(DAY), late, before, zone);
            Moments::Never { end: Timestamp::from_micros(end), unmoved }
        }
    }
}

/// When clocks were first not `before` ahead any more, after `early` and not after `late`.
pub(super) fn change_between(early: i64, late: i64, before: i64, zone: &dyn Zone) -> i64 {
    let (mut early, mut late) = (early, late);
    while late - early > 1 {
        let middle = early + (late - early) / 2;
        if zone.offset_micros(Timestamp::from_micros(middle)) == before {
            early = middle;
        } else {
            late = middle;
        }
    }
    late
}

/// A date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Date {
    pub year: i64,
    /// From 1.
    pub month: i64,
    /// From 1.
    pub day: i64,
}

impl Civil {
    /// Its day, counted from the beginning of 1970.
    pub(super) fn day_number(self) -> i64 {
        self.0.div_euclid(DAY)
    }

    /// Microseconds since midnight.
    pub(super) fn of_day(self) -> i64 {
        self.0.rem_euclid(DAY)
    }

    /// `months` months later, on the last day of the month where it has no such day.
    pub(super) fn add_months(self, months: i64) -> Self {
        let date = Date::of(self.day_number());
        let all = (date.year * 12 + date.month - 1).saturating_add(months);
        let (year, month) = (all.div_euclid(12), all.rem_euclid(12) + 1);
        let day = date.day.min(month_days(year, month));
        let days = Date { year, month, day }.day_number();
        Civil(days.saturating_mul(DAY).saturating_add(self.of_day()))
    }
}

impl Date {
    /// The date of a day that is counted from the beginning of 1970.
    pub fn of(day_number: i64) -> Self {
        // Years begin in March here, so that the leap day is the last one.
        let shifted = day_number + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year + era * 400 + i64::from(month <= 2);
        Date { year, month, day }
    }

    /// Its day, counted from the beginning of 1970.
    pub fn day_number(self) -> i64 {
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let era = year.div_euclid(400);
        let of_era = year.rem_euclid(400);
        let month = if self.month > 2 { self.month - 3 } else { self.month + 9 };
        let of_year = (153 * month + 2) / 5 + self.day - 1;
        let day = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
        era.saturating_mul(146_097).saturating_add(day - 719_468)
    }
}

/// How many days a month has.
pub(super) fn month_days(year: i64, month: i64) -> i64 {
    let leap = year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A zone whose clocks are an hour ahead from April to October, for tests.
#[cfg(test)]
pub(super) mod test_zone {
    use super::*;

    pub struct Summer;

    /// 2026-03-29 and 2026-10-25, both at 01:00 UTC.
    pub const FORWARD: i64 = 1_774_746_000_000_000;
    pub const BACK: i64 = 1_792_890_000_000_000;

    impl Zone for Summer {
        fn offset_micros(&self, at: Timestamp) -> i64 {
            if (FORWARD..BACK).contains(&at.as_micros()) { 2 * HOUR } else { HOUR }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::test_zone::{BACK, FORWARD, Summer};
    use super::*;

    #[test]
    fn days_and_dates_are_each_others_inverse() {
        for day in (-800_000..800_000).step_by(7) {
            let date = Date::of(day);
            assert_eq!(date.day_number(), day);
            assert!((1..=month_days(date.year, date.month)).contains(&date.day), "{date:?}");
        }
        assert_eq!(Date::of(0), Date { year: 1970, month: 1, day: 1 });
        assert_eq!(Date::of(11_016), Date { year: 2000, month: 2, day: 29 });
    }

    #[test]
    fn a_time_is_found_where_the_clock_shows_it() {
        for moment in (FORWARD - 3 * DAY..FORWARD + 3 * DAY).step_by(37 * 60_000_000) {
            let at = Timestamp::from_micros(moment);
            assert_eq!(moments_of(civil_of(at, &Summer), &Summer), Moments::Once(at));
        }
    }

    #[test]
    fn the_missing_hour_ends_when_clocks_are_set() {
        let half_past_two = Civil(FORWARD + HOUR + HOUR / 2);
        let (end, unmoved) = (FORWARD, FORWARD + HOUR / 2);
        let (end, unmoved) = (Timestamp::from_micros(end), Timestamp::from_micros(unmoved));
        assert_eq!(moments_of(half_past_two, &Summer), Moments::Never { end, unmoved });
    }

    #[test]
    fn the_repeated_hour_is_there_twice() {
        let half_past_two = Civil(BACK + HOUR + HOUR / 2);
        let first = Timestamp::from_micros(BACK - HOUR / 2);
        let second = Timestamp::from_micros(BACK + HOUR / 2);
        assert_eq!(moments_of(half_past_two, &Summer), Moments::Twice(first, second));
    }
}

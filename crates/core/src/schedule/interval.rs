//! Intervals as in PostgreSQL: a month is not thirty days, a day not always 24 hours.

use super::civil::{Civil, DAY, Zone, civil_of, moments_of};
use crate::time::{Span, Timestamp};

/// An interval as in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Interval {
    /// Whole months.
    pub months: i32,
    /// Whole days.
    pub days: i32,
    /// The rest.
    pub micros: i64,
}

impl Interval {
    /// Zero.
    pub const ZERO: Interval = Interval { months: 0, days: 0, micros: 0 };

    /// A length that is the same everywhere and at any time.
    pub const fn from_micros(micros: i64) -> Self {
        Interval { months: 0, days: 0, micros }
    }

    /// How PostgreSQL compares lengths: a month as thirty days, a day as 24 hours.
    pub fn approximate_micros(self) -> i128 {
        let days = i128::from(self.months) * 30 + i128::from(self.days);
        days * i128::from(DAY) + i128::from(self.micros)
    }

    /// Whether time passes at all.
    pub fn is_positive(self) -> bool {
        self.approximate_micros() > 0
    }

    /// The length as a span, a month as thirty days.
    pub fn span(self) -> Span {
        let micros = self.approximate_micros().clamp(0, i128::from(i64::MAX));
        Span::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    /// The moment that much later, by the calendar of a zone: months, then days, then the rest.
    pub fn after(self, from: Timestamp, zone: &dyn Zone) -> Timestamp {
        if from == Timestamp::NEVER {
            return from;
        }
        let mut at = from;
        if self.months != 0 {
            let civil = civil_of(at, zone).add_months(self.months.into());
            at = moments_of(civil, zone).as_postgres();
        }
        if self.days != 0 {
            let days = i64::from(self.days).saturating_mul(DAY);
            let civil = Civil(civil_of(at, zone).0.saturating_add(days));
            at = moments_of(civil, zone).as_postgres();
        }
        Timestamp::from_micros(at.as_micros().saturating_add(self.micros))
    }

    /// So many of it in a row. What is too long to say is cut.
    pub fn times(self, count: i64) -> Self {
        let cut = |part: i32| {
            let part = i64::from(part).saturating_mul(count);
            part.clamp(i32::MIN.into(), i32::MAX.into()) as i32
        };
        let micros = self.micros.saturating_mul(count);
        Interval { months: cut(self.months), days: cut(self.days), micros }
    }
}

#[cfg(test)]
mod tests {
    use super::super::civil::test_zone::{FORWARD, Summer};
    use super::super::civil::{Date, HOUR, Utc};
    use super::*;

    fn date(year: i64, month: i64, day: i64) -> Timestamp {
        Timestamp::from_micros(Date { year, month, day }.day_number() * DAY)
    }

    #[test]
    fn a_month_ends_where_the_month_ends() {
        let month = Interval { months: 1, ..Interval::ZERO };
        assert_eq!(month.after(date(2024, 1, 31), &Utc), date(2024, 2, 29));
        assert_eq!(month.after(date(2024, 2, 29), &Utc), date(2024, 3, 29));
        assert_eq!(month.times(-3).after(date(2024, 1, 31), &Utc), date(2023, 10, 31));
    }

    #[test]
    fn a_day_may_have_23_hours() {
        let eve = Timestamp::from_micros(FORWARD - 5 * HOUR);
        let day = Interval { days: 1, ..Interval::ZERO };
        assert_eq!(day.after(eve, &Summer), Timestamp::from_micros(FORWARD + 18 * HOUR));
        let hours = Interval::from_micros(DAY);
        assert_eq!(hours.after(eve, &Summer), Timestamp::from_micros(FORWARD + 19 * HOUR));
    }

    #[test]
    fn the_longest_is_cut() {
        let long = Interval { months: i32::MAX, days: i32::MAX, micros: i64::MAX };
        assert_eq!(long.span(), Span::FOREVER);
        assert_eq!(long.times(i64::MAX), long);
        // It must not overflow; where it ends does not matter.
        let _ = long.after(date(2024, 1, 1), &Utc);
    }
}

//! Points in time and durations, in whole microseconds.

use std::ops::Add;
use std::time::Duration;

/// A point in time: microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// A duration that is never negative and never more than [`Span::FOREVER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(i64);

impl Timestamp {
    /// A moment that never comes: no deadline.
    pub const NEVER: Timestamp = Timestamp(i64::MAX);
    /// The Unix epoch.
    pub const EPOCH: Timestamp = Timestamp(0);

    /// The moment `micros` microseconds after the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Timestamp(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The moment `seconds` after the epoch; `None` for a number that is not finite or before the
    /// epoch. Moments beyond the representable are `NEVER`.
    pub fn from_secs_f64(seconds: f64) -> Option<Self> {
        if !seconds.is_finite() || seconds < 0.0 {
            return None;
        }
        Some(Timestamp((seconds * 1e6).round() as i64))
    }

    /// Seconds since the epoch.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The moment `micros` microseconds later, or earlier for a negative number. `NEVER` stays.
    pub const fn moved(self, micros: i64) -> Self {
        if self.0 == Timestamp::NEVER.0 { self } else { Timestamp(self.0.saturating_add(micros)) }
    }

    /// How long from `earlier` until here; zero when this is not later.
    pub fn since(self, earlier: Timestamp) -> Span {
        Span(self.0.saturating_sub(earlier.0).clamp(0, Span::FOREVER.0))
    }
}

/// A moment moved by `FOREVER` or past the representable is `NEVER`.
impl Add<Span> for Timestamp {
    type Output = Timestamp;

    fn add(self, span: Span) -> Timestamp {
        if span == Span::FOREVER {
            return Timestamp::NEVER;
        }
        Timestamp(self.0.saturating_add(span.0))
    }
}

impl Span {
    /// Zero duration.
    pub const ZERO: Span = Span(0);
    /// A hundred years of 365 days: the maximum of a duration, which means "no limit".
    pub const FOREVER: Span = Span(100 * 365 * 24 * 3600 * 1_000_000);

    /// A span of `micros` microseconds, cut to what a span can hold.
    pub const fn from_micros(micros: i64) -> Self {
        if micros < 0 {
            Span::ZERO
        } else if micros > Span::FOREVER.0 {
            Span::FOREVER
        } else {
            Span(micros)
        }
    }

    /// A span of whole seconds, cut to `FOREVER`.
    pub const fn from_secs(seconds: u64) -> Self {
        if seconds > (Span::FOREVER.0 / 1_000_000) as u64 {
            return Span::FOREVER;
        }
        Span(seconds as i64 * 1_000_000)
    }

    /// A span of seconds: negative counts as zero, too long as `FOREVER`; `None` for NaN.
    pub fn from_secs_f64(seconds: f64) -> Option<Self> {
        if seconds.is_nan() {
            return None;
        }
        Some(Span::from_micros((seconds * 1e6).round() as i64))
    }

    /// Microseconds.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Whether the duration is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

/// The sum, cut to `FOREVER`.
impl Add for Span {
    type Output = Span;

    fn add(self, other: Span) -> Span {
        Span::from_micros(self.0.saturating_add(other.0))
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Span::from_micros(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Duration::from_micros(span.0.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_longer_than_a_century_is_forever() {
        assert_eq!(Span::from_secs_f64(1.5768e16), Some(Span::FOREVER));
        assert_eq!(Span::from_secs_f64(f64::INFINITY), Some(Span::FOREVER));
        assert_eq!(Timestamp::from_micros(5) + Span::FOREVER, Timestamp::NEVER);
    }

    #[test]
    fn negative_is_zero_and_nan_is_nothing() {
        assert_eq!(Span::from_secs_f64(-1.0), Some(Span::ZERO));
        assert_eq!(Span::from_secs_f64(f64::NAN), None);
        assert_eq!(Timestamp::from_secs_f64(f64::NAN), None);
    }
}

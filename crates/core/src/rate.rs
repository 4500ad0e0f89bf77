//! The rate limit of a tube: a token bucket in exact integer arithmetic.
//!
//! A delivery needs one token. `count` tokens are added in the time `per`, evenly, up to `burst`. A
//! new bucket is full. The bucket stores its level at a moment; the level counts in units of
//! 1/`per` token, `per` in microseconds. So each microsecond adds `count` units, a token costs `per`
//! units and a full bucket has `burst · per` units, less than 2^53. Every store computes it so:
//!
//! - refill at `now`: if `now` is before `at`, only `at = now`. Otherwise with
//!   `missing = burst · per − level` (at least 0): if `now − at ≥ ceil(missing / count)`, the bucket
//!   is full; if not, `level += (now − at) · count`. Then `at = now`.
//! - tokens: `floor(level / per)`. A take delivers at most so many tasks, and each costs `per`. A
//!   take that delivers nothing stores nothing, unless `now` is before `at`.
//! - the next token, if there is none: `at + ceil((per − level) / count)` after a refill.
//! - a changed limit: after a refill by the old limit, the whole tokens stay, at most the new
//!   `burst`: `level = min(floor(level / old per), new burst) · new per`. The same limit again
//!   changes nothing. A limit where there was none begins with a full bucket.
//!
//! A delivery that is released, failed or lost gives no token back. Lists of the queue and its
//! `ready` count ignore the limit.

use crate::error::{Error, Result};
use crate::limits::{RATE_BURST_MAX, RATE_COUNT_MAX, RATE_PER_SECS_MAX};
use crate::time::{Span, Timestamp};

/// How many deliveries a tube allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// How many tokens are added in the time `per`: 1 to 1,000,000.
    pub count: u32,
    /// The time in which they are added: 1 ms to 1 day.
    pub per: Span,
    /// The most tokens that can be saved: 1 to 100,000.
    pub burst: u32,
}

/// The state of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The level, in units of 1/`per` token.
    pub level: u64,
    /// The moment at which the bucket had this level.
    pub at: Timestamp,
}

impl Bucket {
    /// Moves its moment, between wall time and the machine's time.
    pub fn moved(self, by: i64) -> Self {
        Bucket { at: self.at.moved(by), ..self }
    }
}

impl RateLimit {
    /// Refuses values out of bounds.
    pub fn check(&self) -> Result<()> {
        let refuse = |why: String| Err(Error::Invalid(why));
        if !(1..=RATE_COUNT_MAX).contains(&self.count) {
            return refuse(format!("rate.count must be between 1 and {RATE_COUNT_MAX}"));
        }
        if self.per < Span::from_micros(1_000) || self.per > Span::from_secs(RATE_PER_SECS_MAX) {
            return refuse(format!("rate.per must be between 0.001 s and {RATE_PER_SECS_MAX} s"));
        }
        if !(1..=RATE_BURST_MAX).contains(&self.burst) {
            return refuse(format!("rate.burst must be between 1 and {RATE_BURST_MAX}"));
        }
        Ok(())
    }

    /// The bucket at `now`; one that was never used is full.
    pub fn refilled(&self, bucket: Option<Bucket>, now: Timestamp) -> Bucket {
        let full = self.cost() * u64::from(self.burst);
        let Some(Bucket { level, at }) = bucket else { return Bucket { level: full, at: now } };
        if now < at {
            return Bucket { level: level.min(full), at: now };
        }
        let (missing, count) = (full.saturating_sub(level), u64::from(self.count));
        let elapsed = now.as_micros().saturating_sub(at.as_micros()).unsigned_abs();
        let is_full = elapsed >= missing.div_ceil(count);
        Bucket { level: if is_full { full } else { level + elapsed * count }, at: now }
    }

    /// How many tokens a refilled bucket has.
    pub fn tokens(&self, bucket: Bucket) -> u64 {
        bucket.level / self.cost()
    }

    /// When a refilled bucket has its next token; `None` if it has one.
    pub fn next_token(&self, bucket: Bucket) -> Option<Timestamp> {
        let missing = self.cost().checked_sub(bucket.level).filter(|missing| *missing > 0)?;
        Some(bucket.at.moved(missing.div_ceil(u64::from(self.count)) as i64))
    }

    /// A refilled bucket after so many deliveries.
    pub fn spent(&self, bucket: Bucket, deliveries: u64) -> Bucket {
        let level = bucket.level.saturating_sub(deliveries.saturating_mul(self.cost()));
        Bucket { level, ..bucket }
    }

    /// The bucket of this limit when it replaces another one, whose bucket was refilled.
    pub fn replacing(&self, old: &RateLimit, bucket: Bucket) -> Bucket {
        let tokens = old.tokens(bucket).min(u64::from(self.burst));
        Bucket { level: tokens * self.cost(), ..bucket }
    }

    /// The units of one token.
    fn cost(&self) -> u64 {
        self.per.as_micros().unsigned_abs().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: RateLimit = RateLimit { count: 3, per: Span::from_secs(1), burst: 5 };

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(1_000_000 + micros)
    }

    #[test]
    fn tokens_are_added_evenly_and_exactly() {
        let full = RATE.refilled(None, at(0));
        assert_eq!((RATE.tokens(full), RATE.next_token(full)), (5, None));
        let empty = RATE.spent(full, 5);
        assert_eq!((RATE.tokens(empty), RATE.next_token(empty)), (0, Some(at(333_334))));
        for (moment, tokens) in
            [(333_333, 0), (333_334, 1), (666_666, 1), (666_667, 2), (1_000_000, 3)]
        {
            assert_eq!(RATE.tokens(RATE.refilled(Some(empty), at(moment))), tokens, "{moment}");
        }
        // No fraction is lost: many small refills add what a large one does.
        let mut small = empty;
        for moment in 1..=1_000 {
            small = RATE.refilled(Some(small), at(moment * 1_000));
        }
        assert_eq!(small, RATE.refilled(Some(empty), at(1_000_000)));
        let later = RATE.refilled(Some(empty), Timestamp::NEVER);
        assert_eq!(RATE.tokens(later), 5);
    }

    #[test]
    fn an_earlier_moment_adds_nothing() {
        let one = RATE.spent(RATE.refilled(None, at(0)), 4);
        let earlier = RATE.refilled(Some(one), at(-500_000));
        assert_eq!((earlier.level, earlier.at), (one.level, at(-500_000)));
    }

    #[test]
    fn the_largest_bucket_is_exact_in_a_double() {
        let per = Span::from_secs(RATE_PER_SECS_MAX);
        let rate = RateLimit { count: RATE_COUNT_MAX, per, burst: RATE_BURST_MAX };
        assert_eq!(rate.check(), Ok(()));
        let full = rate.refilled(None, at(0));
        assert!(full.level < 1 << 53);
        let empty = rate.spent(full, u64::MAX);
        assert_eq!(rate.refilled(Some(empty), Timestamp::NEVER).level, full.level);
    }

    #[test]
    fn a_changed_limit_keeps_whole_tokens() {
        let bucket = RATE.refilled(Some(RATE.spent(RATE.refilled(None, at(0)), 2)), at(100_000));
        let other = RateLimit { count: 1, per: Span::from_secs(60), burst: 2 };
        let changed = other.replacing(&RATE, bucket);
        assert_eq!((other.tokens(changed), changed.at), (2, at(100_000)));
        let more = RateLimit { burst: 50, ..other };
        assert_eq!(more.tokens(more.replacing(&RATE, bucket)), 3);
    }

    #[test]
    fn values_out_of_bounds_are_refused() {
        let day = Span::from_secs(RATE_PER_SECS_MAX);
        let bad = [
            RateLimit { count: 0, ..RATE },
            RateLimit { count: RATE_COUNT_MAX + 1, ..RATE },
            RateLimit { per: Span::from_micros(999), ..RATE },
            RateLimit { per: day + Span::from_micros(1), ..RATE },
            RateLimit { burst: 0, ..RATE },
            RateLimit { burst: RATE_BURST_MAX + 1, ..RATE },
        ];
        for rate in bad {
            assert!(matches!(rate.check(), Err(Error::Invalid(_))), "{rate:?}");
        }
        assert_eq!(RATE.check(), Ok(()));
    }
}

//! The retry policy of a tube: the delay before the next attempt after a failed delivery.
//!
//! After attempt n (from 1) the delay in microseconds is
//! `trunc(min(delay_max, delay · factor^(n−1)) · (1 + jitter · u))`. Every store computes it in
//! exactly this way, in IEEE 754 double precision:
//!
//! 1. `value = delay`; then n−1 times, but at most [`RETRY_GROWTH_MAX`] times and only while
//!    `value < delay_max`: `value = value * (factor_permille / 1000.0)`. No power function is used,
//!    because libraries round it differently.
//! 2. `value = min(value, delay_max)`.
//! 3. `value = value * (1.0 + (jitter_permille / 1000.0) * u)`, cut to whole microseconds. So a
//!    delay may exceed `delay_max` by the jitter.
//!
//! `u` comes from the random number of the command and the id of the task ([`draw`]): with
//! `M = 67108859`, `x = (seed + id) mod M`, then twice `x = ((x·x mod M)·x + 12345) mod M`, and
//! `u = 2·x / (M − 1) − 1`. All products are less than 2^53, so doubles represent them exactly.
//!
//! A failed delivery carries the delay for a tube without a policy (`default_delay`), so that a
//! policy that is removed while it is on its way never buries the task. It is used without jitter,
//! as is an explicit delay, which replaces the policy's. Tubes of a kind without times have no delay:
//! the task is ready at once. Releases, ended sessions and
//! restarts are not failures and do not use the policy; expired leases use it if `retry_lost` is
//! set, counted from the tick that finds them.

use crate::error::{Error, Result};
use crate::limits::{
    RETRY_DELAY_SECS_MAX, RETRY_FACTOR_PERMILLE_MAX, RETRY_GROWTH_MAX, RETRY_JITTER_PERMILLE_MAX,
};
use crate::task::TaskId;
use crate::time::Span;

/// The modulus of [`draw`]: a prime whose square is less than 2^53.
const MODULUS: u64 = 67_108_859;
const INCREMENT: u64 = 12_345;

/// How long a task waits before its next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The delay after the first failed attempt, at most 30 days.
    pub delay: Span,
    /// The factor from one delay to the next, in thousandths: 1,000 to 100,000.
    pub factor_permille: u32,
    /// The longest delay before the jitter, at least `delay` and at most 30 days.
    pub delay_max: Span,
    /// How much a delay may be shortened or extended at random, in thousandths: 0 to 1,000.
    pub jitter_permille: u32,
    /// Whether an expired lease waits as a failed delivery does, instead of being ready at once.
    pub retry_lost: bool,
}

impl RetryPolicy {
    /// The policy named `default`: 5 s, doubled up to 1 h, a fifth more or less.
    pub const DEFAULT: RetryPolicy = RetryPolicy {
        delay: Span::from_secs(5),
        factor_permille: 2_000,
        delay_max: Span::from_secs(3_600),
        jitter_permille: 200,
        retry_lost: false,
    };

    /// Refuses values out of bounds.
    pub fn check(&self) -> Result<()> {
        let most = Span::from_secs(RETRY_DELAY_SECS_MAX);
        let refuse = |why: String| Err(Error::Invalid(why));
        if self.delay > self.delay_max || self.delay_max > most {
            return refuse(format!(
                "retry.delay must not exceed retry.delay_max, which is at most {RETRY_DELAY_SECS_MAX} s"
            ));
        }
        if !(1_000..=RETRY_FACTOR_PERMILLE_MAX).contains(&self.factor_permille) {
            let most = RETRY_FACTOR_PERMILLE_MAX / 1_000;
            return refuse(format!("retry.factor must be between 1 and {most}"));
        }
        if self.jitter_permille > RETRY_JITTER_PERMILLE_MAX {
            return refuse("retry.jitter must be between 0 and 1".into());
        }
        Ok(())
    }

    /// The delay of this task after its failed attempt of this number, from 1.
    pub fn delay_after(&self, attempt: u32, seed: u32, id: TaskId) -> Span {
        let most = self.delay_max.as_micros() as f64;
        let factor = f64::from(self.factor_permille) / 1000.0;
        let mut value = self.delay.as_micros() as f64;
        for _ in 0..attempt.saturating_sub(1).min(RETRY_GROWTH_MAX) {
            if value >= most {
                break;
            }
            value *= factor;
        }
        value = value.min(most);
        let jitter = f64::from(self.jitter_permille) / 1000.0;
        Span::from_micros((value * (1.0 + jitter * draw(seed, id))) as i64)
    }
}

/// A number from −1 to 1 for this task, from the random number of a command.
pub fn draw(seed: u32, id: TaskId) -> f64 {
    let mut x = (u64::from(seed) + id.0) % MODULUS;
    for _ in 0..2 {
        x = ((x * x % MODULUS) * x + INCREMENT) % MODULUS;
    }
    (2 * x) as f64 / (MODULUS - 1) as f64 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(policy: &RetryPolicy, attempts: &[u32]) -> Vec<i64> {
        let delay = |attempt: &u32| policy.delay_after(*attempt, 7, TaskId(3)).as_micros();
        attempts.iter().map(delay).collect()
    }

    #[test]
    fn delays_grow_up_to_the_longest() {
        let policy = RetryPolicy { jitter_permille: 0, ..RetryPolicy::DEFAULT };
        let second = 1_000_000;
        let expected = [5, 10, 20, 2_560, 3_600, 3_600].map(|seconds| seconds * second);
        assert_eq!(delays(&policy, &[1, 2, 3, 10, 11, u32::MAX]), expected);
        let constant = RetryPolicy { factor_permille: 1_000, ..policy };
        assert_eq!(delays(&constant, &[1, 2, u32::MAX]), [5 * second; 3]);
        let none = RetryPolicy { delay: Span::ZERO, ..policy };
        assert_eq!(delays(&none, &[1, 2, 99]), [0; 3]);
    }

    /// Other stores repeat the calculation: these numbers must never change.
    #[test]
    fn the_calculation_is_fixed() {
        let of = |attempt, seed, id| {
            RetryPolicy::DEFAULT.delay_after(attempt, seed, TaskId(id)).as_micros()
        };
        let found =
            [of(1, 0, 0), of(1, 0, 1), of(2, 1, 0), of(5, u32::MAX, 12), of(30, 9, 1 << 48)];
        assert_eq!(found, [5_079_522, 4_706_161, 9_412_323, 77_679_524, 3_548_601_038]);
    }

    #[test]
    fn draws_are_spread_evenly() {
        let mut counts = [0; 10];
        for id in 0..10_000 {
            let u = draw(41, TaskId(id));
            assert!((-1.0..=1.0).contains(&u), "{u}");
            counts[(((u + 1.0) * 5.0) as usize).min(9)] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }

    #[test]
    fn values_out_of_bounds_are_refused() {
        let good = RetryPolicy::DEFAULT;
        assert_eq!(good.check(), Ok(()));
        let month = Span::from_secs(RETRY_DELAY_SECS_MAX);
        assert_eq!(RetryPolicy { delay: month, delay_max: month, ..good }.check(), Ok(()));
        let bad = [
            RetryPolicy { delay: Span::from_secs(3_601), ..good },
            RetryPolicy { delay_max: month + Span::from_micros(1), ..good },
            RetryPolicy { factor_permille: 999, ..good },
            RetryPolicy { factor_permille: RETRY_FACTOR_PERMILLE_MAX + 1, ..good },
            RetryPolicy { jitter_permille: 1_001, ..good },
        ];
        for policy in bad {
            assert!(matches!(policy.check(), Err(Error::Invalid(_))), "{policy:?}");
        }
    }
}

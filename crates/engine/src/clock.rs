//! What time it is.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use taskyard_core::{Span, Timestamp};

/// Tells the engine the time and how long it may sleep.
pub trait Clock: Send + Sync + 'static {
    /// The time now. It never goes backwards.
    fn now(&self) -> Timestamp;

    /// How long a thread may sleep without missing `until`: nothing once that moment is here, `None`
    /// when only a wake-up can bring it.
    fn sleep_max(&self, until: Timestamp) -> Option<Duration>;

    /// Asks to be woken whenever time moves in any other way than by passing.
    fn watch(&self, waker: Waker);
}

/// The clock of the machine.
///
/// It follows the wall clock forwards. When the wall clock is set back, it neither follows nor stands
/// still: it goes on from where it was, so that what is due becomes due.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
    /// What to add to the time since `started`; only grows.
    offset_micros: AtomicI64,
}

/// A sleeping thread does not see that the wall clock was moved, so it looks again this often.
const SLEEP_MAX: Duration = Duration::from_secs(60);

impl SystemClock {
    /// The clock of the machine.
    pub fn new() -> Self {
        SystemClock { started: Instant::now(), offset_micros: AtomicI64::new(i64::MIN) }
    }

    /// What the clock shows when the wall shows `wall_micros` and `passed_micros` passed since start.
    fn reading(&self, wall_micros: i64, passed_micros: i64) -> Timestamp {
        let offset = wall_micros.saturating_sub(passed_micros);
        let before = self.offset_micros.fetch_max(offset, Ordering::Relaxed);
        Timestamp::from_micros(passed_micros.saturating_add(before.max(offset)))
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // A wall clock before 1970 is broken; the epoch is the best guess then.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.reading(micros(wall), micros(self.started.elapsed()))
    }

    fn sleep_max(&self, until: Timestamp) -> Option<Duration> {
        Some(Duration::from(until.since(self.now())).min(SLEEP_MAX))
    }

    fn watch(&self, _waker: Waker) {}
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A clock that only moves by hand, for tests.
#[derive(Debug)]
pub struct HandClock {
    now_micros: AtomicI64,
    watchers: Mutex<Vec<Waker>>,
}

impl HandClock {
    /// A clock that stands at `start`.
    pub fn new(start: Timestamp) -> Self {
        HandClock {
            now_micros: AtomicI64::new(start.as_micros()),
            watchers: Mutex::new(Vec::new()),
        }
    }

    /// Moves time on by `span` and wakes whoever sleeps by this clock.
    pub fn advance(&self, span: Span) {
        self.now_micros.fetch_add(span.as_micros(), Ordering::SeqCst);
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        for watcher in watchers.iter() {
            watcher.wake_by_ref();
        }
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now_micros.load(Ordering::SeqCst))
    }

    fn sleep_max(&self, until: Timestamp) -> Option<Duration> {
        (until <= self.now()).then_some(Duration::ZERO)
    }

    fn watch(&self, waker: Waker) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_set_back_does_not_stop_time() {
        let clock = SystemClock::new();
        assert_eq!(clock.reading(1_000, 0), Timestamp::from_micros(1_000));
        assert_eq!(clock.reading(400, 10), Timestamp::from_micros(1_010));
        assert_eq!(clock.reading(500, 110), Timestamp::from_micros(1_110));
    }

    #[test]
    fn a_wall_clock_set_forward_is_followed() {
        let clock = SystemClock::new();
        assert_eq!(clock.reading(1_000, 0), Timestamp::from_micros(1_000));
        assert_eq!(clock.reading(9_000, 10), Timestamp::from_micros(9_000));
    }

    #[test]
    fn a_hand_clock_lets_nobody_sleep_past_a_moment_that_is_here() {
        let clock = HandClock::new(Timestamp::EPOCH);
        let later = Timestamp::from_micros(5);
        assert_eq!(clock.sleep_max(later), None);
        clock.advance(Span::from_micros(5));
        assert_eq!(clock.sleep_max(later), Some(Duration::ZERO));
    }
}

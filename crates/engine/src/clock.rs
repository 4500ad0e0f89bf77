//! The clocks that the engine can use: the machine's, and a manual one for tests.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use taskyard_core::{Span, Timestamp};

/// Tells the time and limits how long the engine may sleep.
pub trait Clock: Send + Sync + 'static {
    /// The current time. Monotonic and even: unaffected by changes of the wall clock.
    fn now(&self) -> Timestamp;

    /// How far the wall clock is ahead of `now`, in microseconds; changes when the wall clock is
    /// set.
    fn wall_ahead(&self) -> i64 {
        0
    }

    /// How long a thread may sleep without missing `until`: zero once that moment is reached,
    /// `None` when only a wake-up can bring it.
    fn sleep_max(&self, until: Timestamp) -> Option<Duration>;

    /// Registers a waker that is called whenever time changes other than by passing.
    fn watch(&self, waker: Waker);
}

/// The clock of the machine.
///
/// It shows the wall clock at its creation plus the time passed since, by the monotonic clock of
/// the machine. The monotonic clock stops while the machine is suspended, which then looks like a
/// wall clock that was set forward.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
    start_micros: i64,
    /// How far the wall clock is ahead.
    ahead_micros: AtomicI64,
    /// The elapsed time at which the wall clock is read again.
    look_at_micros: AtomicI64,
}

/// A sleeping thread does not notice that the wall clock was set, so it checks this often.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The wall clock is read at most this often.
const LOOK_EVERY_MICROS: i64 = 1_000_000;
/// Smaller differences between the two clocks do not count as a step of the wall clock.
const STEP_MIN_MICROS: i64 = 100_000;
/// If reading both clocks takes longer, the readings are not compared: the thread may have been
/// suspended in between.
const READING_MAX: Duration = Duration::from_millis(1);
/// The number of attempts to read both clocks.
const READINGS: usize = 5;

impl SystemClock {
    /// Starts the clock.
    pub fn new() -> Self {
        SystemClock {
            started: Instant::now(),
            start_micros: since_epoch(SystemTime::now()),
            ahead_micros: AtomicI64::new(0),
            look_at_micros: AtomicI64::new(LOOK_EVERY_MICROS),
        }
    }

    /// How far the wall clock is ahead now; `None` when that could not be read precisely enough.
    fn look(&self) -> Option<i64> {
        (0..READINGS).find_map(|_| {
            let before = self.started.elapsed();
            let wall = since_epoch(SystemTime::now());
            let close = self.started.elapsed().saturating_sub(before) < READING_MAX;
            let now = self.start_micros.saturating_add(micros(before));
            close.then(|| wall.saturating_sub(now))
        })
    }

    /// Adopts a new distance to the wall clock; a small change is not a step.
    fn follow(&self, found: i64) -> i64 {
        let ahead = self.ahead_micros.load(Ordering::Relaxed);
        if found.abs_diff(ahead) < STEP_MIN_MICROS.unsigned_abs() {
            return ahead;
        }
        self.ahead_micros.store(found, Ordering::Relaxed);
        found
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let passed = micros(self.started.elapsed());
        Timestamp::from_micros(self.start_micros.saturating_add(passed))
    }

    fn wall_ahead(&self) -> i64 {
        let passed = micros(self.started.elapsed());
        if passed < self.look_at_micros.load(Ordering::Relaxed) {
            return self.ahead_micros.load(Ordering::Relaxed);
        }
        let next = passed.saturating_add(LOOK_EVERY_MICROS);
        self.look_at_micros.store(next, Ordering::Relaxed);
        match self.look() {
            Some(found) => self.follow(found),
            None => self.ahead_micros.load(Ordering::Relaxed),
        }
    }

    fn sleep_max(&self, until: Timestamp) -> Option<Duration> {
        Some(Duration::from(until.since(self.now())).min(SLEEP_MAX))
    }

    fn watch(&self, _waker: Waker) {}
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Microseconds since 1970; negative for a wall clock that was never set.
fn since_epoch(wall: SystemTime) -> i64 {
    match wall.duration_since(UNIX_EPOCH) {
        Ok(since) => micros(since),
        Err(before) => micros(before.duration()).saturating_neg(),
    }
}

/// A clock that moves only when a test advances it.
#[derive(Debug)]
pub struct ManualClock {
    now_micros: AtomicI64,
    ahead_micros: AtomicI64,
    watchers: Mutex<Vec<Waker>>,
}

impl ManualClock {
    /// A clock that shows `start`.
    pub fn new(start: Timestamp) -> Self {
        ManualClock {
            now_micros: AtomicI64::new(start.as_micros()),
            ahead_micros: AtomicI64::new(0),
            watchers: Mutex::new(Vec::new()),
        }
    }

    /// Advances time by `span` and wakes all sleepers.
    pub fn advance(&self, span: Span) {
        self.now_micros.fetch_add(span.as_micros(), Ordering::SeqCst);
        self.wake();
    }

    /// Sets the wall clock forward or back by `span`; no time passes.
    pub fn set_wall(&self, span: Span, forward: bool) {
        let by = if forward { span.as_micros() } else { -span.as_micros() };
        self.ahead_micros.fetch_add(by, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        for watcher in watchers.iter() {
            watcher.wake_by_ref();
        }
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now_micros.load(Ordering::SeqCst))
    }

    fn wall_ahead(&self) -> i64 {
        self.ahead_micros.load(Ordering::SeqCst)
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

    /// Time followed the wall clock when that was set forward, which ended every lease and wait;
    /// when it was set back, time stayed ahead until a restart.
    #[test]
    fn a_wall_clock_that_is_set_does_not_move_time() {
        let clock = SystemClock::new();
        let hour = 3_600_000_000;
        for ahead in [hour, -hour, 0] {
            let before = clock.now();
            assert_eq!(clock.follow(ahead), ahead);
            assert_eq!(clock.ahead_micros.load(Ordering::Relaxed), ahead);
            assert!(clock.now().since(before) < Span::from_secs(3_000));
        }
        assert_eq!(
            clock.follow(STEP_MIN_MICROS - 1),
            0,
            "a small difference between readings is not a step"
        );
    }

    #[test]
    fn a_wall_clock_may_show_a_time_before_1970() {
        let before = UNIX_EPOCH - Duration::from_secs(5);
        assert_eq!(since_epoch(before), -5_000_000);
        assert_eq!(since_epoch(UNIX_EPOCH + Duration::from_secs(5)), 5_000_000);
    }

    #[test]
    fn a_manual_clock_allows_no_sleep_past_a_moment_that_is_reached() {
        let clock = ManualClock::new(Timestamp::EPOCH);
        let later = Timestamp::from_micros(5);
        assert_eq!(clock.sleep_max(later), None);
        clock.advance(Span::from_micros(5));
        assert_eq!(clock.sleep_max(later), Some(Duration::ZERO));
    }
}

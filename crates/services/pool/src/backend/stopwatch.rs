//! Measures the run time of a program from its start, without the time in which the pool itself was paused.

use std::time::Duration;

use tokio::time::Instant;

/// How often the time is checked.
const TICK: Duration = Duration::from_millis(500);
/// A check later than this means that the whole process was paused, not that it was busy.
const TICK_LATE_MAX: Duration = Duration::from_secs(1);
/// How long a sandbox may take to start its program; then it is given up.
const START_MAX: Duration = Duration::from_secs(30);

/// Measures one run of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopwatch {
    made: Instant,
    started: Option<Instant>,
    /// When the next check is due.
    next: Instant,
    /// How long the pool was paused.
    paused: Duration,
}

impl Stopwatch {
    /// For a program that has not started.
    pub fn new(now: Instant) -> Self {
        Stopwatch { made: now, started: None, next: now + TICK, paused: Duration::ZERO }
    }

    /// The program has started.
    pub fn start(&mut self, now: Instant) {
        if self.started.is_none() {
            self.started = Some(now);
            self.paused = Duration::ZERO;
        }
    }

    pub fn has_started(&self) -> bool {
        self.started.is_some()
    }

    /// When the next check is due.
    pub fn next_tick(&self) -> Instant {
        self.next
    }

    /// Checks the time. Returns for how long the pool was paused since the last check.
    pub fn tick(&mut self, now: Instant) -> Duration {
        let late = now.saturating_duration_since(self.next);
        self.next = now + TICK;
        if late <= TICK_LATE_MAX {
            return Duration::ZERO;
        }
        self.paused += late;
        late
    }

    /// When a program with this limit has to end; `None` before it has started, unless the limit is zero.
    pub fn end(&self, limit: Option<Duration>) -> Option<Instant> {
        match (self.started, limit?) {
            (Some(started), limit) => Some(started + limit + self.paused),
            (None, limit) if limit.is_zero() => Some(self.made),
            (None, _) => None,
        }
    }

    /// When a program that has not started is given up.
    pub fn start_end(&self) -> Option<Instant> {
        self.started.is_none().then(|| self.made + START_MAX + self.paused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Option<Duration> = Some(Duration::from_secs(2));

    fn after(origin: Instant, millis: u64) -> Instant {
        origin + Duration::from_millis(millis)
    }

    // The time counted from the request to the sandbox: the program had up to 85 ms less than its client had asked
    // for.
    #[test]
    fn time_counts_from_the_start_of_the_program() {
        let origin = Instant::now();
        let mut watch = Stopwatch::new(origin);
        assert_eq!(watch.end(LIMIT), None);
        assert_eq!(watch.end(Some(Duration::ZERO)), Some(origin), "it may not run at all");
        assert_eq!(watch.start_end(), Some(origin + START_MAX));
        watch.start(after(origin, 85));
        watch.start(after(origin, 90));
        assert_eq!(watch.end(LIMIT), Some(after(origin, 2_085)));
        assert_eq!((watch.end(None), watch.start_end()), (None, None));
    }

    // A backend that was paused for six seconds stopped a program with a limit of two seconds after one second.
    #[test]
    fn time_in_which_the_pool_was_paused_does_not_count() {
        let origin = Instant::now();
        let mut watch = Stopwatch::new(origin);
        watch.start(origin);
        assert_eq!(watch.tick(after(origin, 400)), Duration::ZERO);
        assert_eq!(watch.tick(after(origin, 1_900)), Duration::ZERO, "only busy");
        assert_eq!(watch.end(LIMIT), Some(after(origin, 2_000)));
        // The check was due after 2.4 seconds.
        assert_eq!(watch.tick(after(origin, 8_400)), Duration::from_secs(6));
        assert_eq!(watch.end(LIMIT), Some(after(origin, 8_000)));
        assert_eq!(watch.next_tick(), after(origin, 8_900));
    }
}

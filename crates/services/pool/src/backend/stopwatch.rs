//! The time of a program: it counts from the program's start, and not while the pool itself stood still.

use std::time::Duration;

use tokio::time::Instant;

/// How often the time is looked at.
const TICK: Duration = Duration::from_millis(500);
/// A look that is later than this shows that the whole process stood still, not that it was busy.
const LATE_MAX: Duration = Duration::from_secs(1);
/// How long a sandbox may take until its program begins; then it is given up.
const START_MAX: Duration = Duration::from_secs(30);

/// Measures one run of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopwatch {
    made: Instant,
    begun: Option<Instant>,
    /// When it should be looked at next.
    next: Instant,
    /// How long the pool stood still.
    stood: Duration,
}

impl Stopwatch {
    /// One for a program that has not begun.
    pub fn new(now: Instant) -> Self {
        Stopwatch { made: now, begun: None, next: now + TICK, stood: Duration::ZERO }
    }

    /// The program has begun.
    pub fn begin(&mut self, now: Instant) {
        if self.begun.is_none() {
            self.begun = Some(now);
            self.stood = Duration::ZERO;
        }
    }

    pub fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// When it is to be looked at next.
    pub fn next_look(&self) -> Instant {
        self.next
    }

    /// Looks at the time. Answers for how long the pool has stood still since the last look.
    pub fn look(&mut self, now: Instant) -> Duration {
        let late = now.saturating_duration_since(self.next);
        self.next = now + TICK;
        if late <= LATE_MAX {
            return Duration::ZERO;
        }
        self.stood += late;
        late
    }

    /// When a program that may run so long has to end; nothing before it has begun, unless it may not run at all.
    pub fn end(&self, limit: Option<Duration>) -> Option<Instant> {
        match (self.begun, limit?) {
            (Some(begun), limit) => Some(begun + limit + self.stood),
            (None, limit) if limit.is_zero() => Some(self.made),
            (None, _) => None,
        }
    }

    /// When a program that has not begun is given up.
    pub fn start_end(&self) -> Option<Instant> {
        self.begun.is_none().then(|| self.made + START_MAX + self.stood)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Option<Duration> = Some(Duration::from_secs(2));

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    // The time counted from the moment when the sandbox was asked to run the program: that had up to 85 ms less than
    // its client had asked for.
    #[test]
    fn time_counts_from_the_start_of_the_program() {
        let start = Instant::now();
        let mut watch = Stopwatch::new(start);
        assert_eq!(watch.end(LIMIT), None);
        assert_eq!(watch.end(Some(Duration::ZERO)), Some(start), "it may not run at all");
        assert_eq!(watch.start_end(), Some(start + START_MAX));
        watch.begin(after(start, 85));
        watch.begin(after(start, 90));
        assert_eq!(watch.end(LIMIT), Some(after(start, 2_085)));
        assert_eq!((watch.end(None), watch.start_end()), (None, None));
    }

    // A backend that was stopped for six seconds ended a program with two seconds that had run for one of them.
    #[test]
    fn time_in_which_the_pool_stood_still_does_not_count() {
        let start = Instant::now();
        let mut watch = Stopwatch::new(start);
        watch.begin(start);
        assert_eq!(watch.look(after(start, 400)), Duration::ZERO);
        assert_eq!(watch.look(after(start, 1_900)), Duration::ZERO, "only busy");
        assert_eq!(watch.end(LIMIT), Some(after(start, 2_000)));
        // It was to be looked at after 2.4 seconds.
        assert_eq!(watch.look(after(start, 8_400)), Duration::from_secs(6));
        assert_eq!(watch.end(LIMIT), Some(after(start, 8_000)));
        assert_eq!(watch.next_look(), after(start, 8_900));
    }
}

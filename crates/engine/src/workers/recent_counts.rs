//! Counts what happened in the last minute, in intervals of five seconds.

use taskyard_core::Timestamp;

/// The length of an interval, in microseconds.
const INTERVAL_MICROS: i64 = 5_000_000;
/// The number of intervals: together a minute.
const INTERVALS: usize = 12;

/// The number of events in each interval of the last minute.
#[derive(Debug, Default)]
pub(super) struct RecentCounts {
    counts: [u32; INTERVALS],
    /// The number of the current interval since the epoch.
    current: i64,
}

impl RecentCounts {
    /// Counts an event.
    pub fn count(&mut self, now: Timestamp) {
        self.advance(now);
        let count = &mut self.counts[place(self.current)];
        *count = count.saturating_add(1);
    }

    /// The number of events in the last minute.
    pub fn total(&mut self, now: Timestamp) -> u64 {
        self.advance(now);
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// Begins the interval of this moment; time does not go backwards.
    fn advance(&mut self, now: Timestamp) {
        let number = now.as_micros().div_euclid(INTERVAL_MICROS);
        if number <= self.current {
            return;
        }
        if number - self.current >= INTERVALS as i64 {
            self.counts = [0; INTERVALS];
        } else {
            (self.current + 1..=number).for_each(|begun| self.counts[place(begun)] = 0);
        }
        self.current = number;
    }
}

fn place(number: i64) -> usize {
    number.rem_euclid(INTERVALS as i64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn events_of_the_last_minute_are_counted() {
        let mut counts = RecentCounts::default();
        assert_eq!(counts.total(at(1_000)), 0);
        for second in [1_000, 1_001, 1_007, 1_030] {
            counts.count(at(second));
        }
        assert_eq!(counts.total(at(1_054)), 4);
        assert_eq!(counts.total(at(1_060)), 2);
        assert_eq!(counts.total(at(1_065)), 1);
        counts.count(at(1_065));
        assert_eq!(counts.total(at(9_000)), 0);
        counts.count(at(8_000));
        assert_eq!(counts.total(at(9_000)), 1, "a moment of the past counts as now");
    }
}

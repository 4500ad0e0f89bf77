//! Counts how many tasks of a tube ran at once, over time: the number of its consumers while tasks waited.
//!
//! While a task waits, every consumer is busy, so their number is that of the running tasks. The trace is divided into
//! intervals whose length doubles as it grows.

use crate::figures::WaitCurve;
use crate::tasks::RunSamples;

/// The most intervals.
const INTERVALS_MAX: usize = 512;
/// The length of the first ones, in microseconds.
const FIRST_WIDTH: u64 = 1_000;
/// A task that starts within this time did not wait for a consumer, in microseconds.
const WAITED_MIN: u64 = 1_000;

/// The most free consumers that are remembered.
const FREE_MAX: usize = 1 << 16;
/// A consumer that needs this many times as long as usual was away.
const AWAY_FACTOR: i64 = 10;
/// Intervals are at least this many times as long as a consumer needs between two deliveries, so that all are seen at work.
const TURNAROUNDS_MIN: u64 = 20;

/// The number of tasks at once over time.
#[derive(Clone, Debug)]
pub struct ConsumerCount {
    intervals: Vec<Interval>,
    width: u64,
    running: u32,
    most: u32,
    /// The interval up to which waiting is marked.
    marked: u64,
    waits: WaitCurve,
    /// When deliveries ended whose consumer did not begin another one, the latest last.
    free: Vec<u64>,
    /// How long consumers needed from the end of a delivery to the next one while tasks waited.
    turnarounds: RunSamples,
}

#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    /// The most tasks at once.
    most: u32,
    /// Whether tasks waited.
    has_waiting: bool,
}

impl Default for ConsumerCount {
    fn default() -> Self {
        ConsumerCount {
            intervals: Vec::new(),
            width: FIRST_WIDTH,
            running: 0,
            most: 0,
            marked: 0,
            waits: WaitCurve::default(),
            free: Vec::new(),
            turnarounds: RunSamples::default(),
        }
    }
}

impl ConsumerCount {
    /// The most tasks at once.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// The waits of the deliveries by the time of their start.
    pub(crate) fn waits(&self) -> &WaitCurve {
        &self.waits
    }

    /// The mean time that a consumer needs from the end of a delivery to the next one while tasks wait, in microseconds. Consumers
    /// that were away do not count.
    pub fn turnaround(&self) -> u64 {
        let mut samples = self.turnarounds.runs().to_vec();
        samples.sort_unstable();
        let Some(median) = samples.get(samples.len() / 2).copied() else { return 0 };
        samples.retain(|sample| *sample <= median.saturating_mul(AWAY_FACTOR));
        (samples.iter().sum::<i64>() / samples.len().max(1) as i64).unsigned_abs()
    }

    /// The rules of the tube change: it may have been paused.
    pub(crate) fn forget_free(&mut self) {
        self.free.clear();
    }

    /// A delivery begins after a wait.
    pub(crate) fn begin(&mut self, at: u64, wait: u64) {
        if let Some(free) =
            self.free.pop().map(|free| at.saturating_sub(free)).filter(|free| *free <= wait)
        {
            self.turnarounds.add(free as i64);
        }
        self.running += 1;
        self.most = self.most.max(self.running);
        self.update(at);
        self.waits.add(at, wait);
        if wait >= WAITED_MIN {
            self.mark_waiting(at.saturating_sub(wait), at);
        }
    }

    /// A delivery ends.
    pub(crate) fn end(&mut self, at: u64) {
        self.update(at);
        self.running = self.running.saturating_sub(1);
        self.update(at);
        if self.free.len() < FREE_MAX {
            self.free.push(at);
        }
    }

    /// A task waited from one moment to another.
    pub(crate) fn mark_waiting(&mut self, from: u64, until: u64) {
        self.interval(until);
        let (first, last) = ((from / self.width).max(self.marked), until / self.width);
        for number in first..=last {
            if let Some(interval) = self.intervals.get_mut(number as usize) {
                interval.has_waiting = true;
            }
        }
        self.marked = self.marked.max(last);
    }

    fn update(&mut self, at: u64) {
        let running = self.running;
        let interval = self.interval(at);
        interval.most = interval.most.max(running);
    }

    /// The interval of a moment. Those before it that are new had the same number of running tasks.
    fn interval(&mut self, at: u64) -> &mut Interval {
        while at / self.width >= INTERVALS_MAX as u64 {
            self.halve();
        }
        let number = (at / self.width) as usize;
        if self.intervals.len() <= number {
            let most = self.intervals.last().map_or(0, |_| self.running);
            self.intervals.resize(number + 1, Interval { most, has_waiting: false });
        }
        &mut self.intervals[number]
    }

    /// Joins each two intervals.
    fn halve(&mut self) {
        let joined = self.intervals.chunks(2).map(|pair| Interval {
            most: pair.iter().map(|interval| interval.most).max().unwrap_or(0),
            has_waiting: pair.iter().any(|interval| interval.has_waiting),
        });
        self.intervals = joined.collect();
        self.width *= 2;
        self.marked /= 2;
    }

    /// The number of consumers over time: when it becomes how many. While no task waits, all that were ever seen count; after
    /// the end of the trace, as many as at its end.
    pub(crate) fn over_time(&self, end: u64) -> Vec<(u64, u32)> {
        let shortest = self.turnaround().saturating_mul(TURNAROUNDS_MIN);
        if self.width < shortest && self.intervals.len() > 1 {
            let mut longer = self.clone();
            longer.halve();
            return longer.over_time(end);
        }
        let mut changes: Vec<(u64, u32)> = Vec::new();
        let count = |interval: &Interval| {
            if interval.has_waiting { interval.most } else { self.most }
        };
        for (number, interval) in self.intervals.iter().enumerate() {
            let consumers = count(interval);
            if changes.last().is_none_or(|latest| latest.1 != consumers) {
                changes.push((number as u64 * self.width, consumers));
            }
        }
        let mut busy = self.intervals.iter().rev().filter(|interval| interval.has_waiting);
        let last = busy.find_map(|interval| (interval.most > 0).then_some(interval.most));
        let after = (self.intervals.len() as u64 * self.width).max(end + 1);
        changes.push((after, last.unwrap_or(self.most)));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn consumers_are_counted_while_tasks_wait() {
        let mut count = ConsumerCount::default();
        // Four at once for 100 s, with a queue; then two.
        for second in 0..200 {
            let consumers = if second < 100 { 4 } else { 2 };
            for _ in 0..consumers {
                count.begin(second * SECOND, 5 * SECOND);
            }
            for _ in 0..consumers {
                count.end((second + 1) * SECOND - 1);
            }
        }
        assert_eq!(count.most(), 4);
        let changes = count.over_time(200 * SECOND);
        let at = |second: u64| {
            let before = changes.iter().rev().find(|change| change.0 <= second * SECOND);
            before.unwrap().1
        };
        assert_eq!([at(1), at(50), at(99), at(102), at(150), at(500)], [4, 4, 4, 2, 2, 2]);
        assert!(count.intervals.len() <= INTERVALS_MAX);
    }

    #[test]
    fn without_waiting_tasks_all_consumers_count() {
        let mut count = ConsumerCount::default();
        for second in 0..100 {
            let consumers = if second == 0 { 3 } else { 1 };
            (0..consumers).for_each(|_| count.begin(second * SECOND, 0));
            (0..consumers).for_each(|_| count.end(second * SECOND + 10));
        }
        assert!(count.over_time(100 * SECOND).iter().all(|change| change.1 == 3));
    }
}

//! Figures of waits: percentiles, and how the waits changed over time.

/// Figures of the waits of a tube, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitFigures {
    /// How many deliveries.
    pub count: u64,
    /// Half waited no longer.
    pub p50: u64,
    /// Nine of ten waited no longer.
    pub p90: u64,
    /// 99 of 100 waited no longer.
    pub p99: u64,
    /// The longest wait.
    pub max: u64,
}

impl WaitFigures {
    /// The exact figures of these waits, whose order changes.
    pub fn of(waits: &mut [u64]) -> Self {
        let mut nth = |permille: usize| match waits.len() {
            0 => 0,
            count => {
                let rank = (count * permille).div_ceil(1_000).max(1) - 1;
                *waits.select_nth_unstable(rank).1
            }
        };
        let (p50, p90, p99, max) = (nth(500), nth(900), nth(990), nth(1_000));
        WaitFigures { count: waits.len() as u64, p50, p90, p99, max }
    }
}

/// The most intervals of a curve.
const INTERVALS_MAX: usize = 256;
/// The length of the first ones in microseconds, as a power of two.
const FIRST_SHIFT: u32 = 10;

/// The mean wait over time, in intervals whose length doubles as the time grows.
#[derive(Clone, Debug)]
pub struct WaitCurve {
    /// The sum of the waits that began to run in the interval, and their number.
    intervals: Vec<(u64, u64)>,
    /// The length of an interval in microseconds, as a power of two.
    shift: u32,
}

impl Default for WaitCurve {
    fn default() -> Self {
        WaitCurve { intervals: Vec::new(), shift: FIRST_SHIFT }
    }
}

impl WaitCurve {
    /// Adds the wait of a task that starts.
    pub fn add(&mut self, at: u64, wait: u64) {
        while at >> self.shift >= INTERVALS_MAX as u64 {
            let join = |pair: &[(u64, u64)]| {
                pair.iter().fold((0, 0), |sum: (u64, u64), part| {
                    (sum.0.saturating_add(part.0), sum.1 + part.1)
                })
            };
            self.intervals = self.intervals.chunks(2).map(join).collect();
            self.shift += 1;
        }
        let number = (at >> self.shift) as usize;
        if self.intervals.len() <= number {
            self.intervals.resize(number + 1, (0, 0));
        }
        let (sum, count) = &mut self.intervals[number];
        (*sum, *count) = (sum.saturating_add(wait), *count + 1);
    }

    /// The mean wait in each of `count` equal parts of the time up to `end`; `None` where no task started.
    pub fn means(&self, end: u64, count: usize) -> Vec<Option<u64>> {
        let mut sums = vec![(0_u64, 0_u64); count];
        for (number, (sum, waits)) in self.intervals.iter().enumerate() {
            let middle = ((number as u64) << self.shift) + (1 << self.shift) / 2;
            let place = (u128::from(middle) * count as u128 / u128::from(end.max(1))) as usize;
            if let Some(part) = sums.get_mut(place.min(count.saturating_sub(1))) {
                *part = (part.0.saturating_add(*sum), part.1 + waits);
            }
        }
        sums.into_iter().map(|(sum, waits)| sum.checked_div(waits)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact() {
        assert_eq!(WaitFigures::of(&mut []), WaitFigures::default());
        let mut waits: Vec<u64> = (1..=1_000).rev().collect();
        let expected = WaitFigures { count: 1_000, p50: 500, p90: 900, p99: 990, max: 1_000 };
        assert_eq!(WaitFigures::of(&mut waits), expected);
        let one = WaitFigures { count: 1, p50: 7, p90: 7, p99: 7, max: 7 };
        assert_eq!(WaitFigures::of(&mut [7]), one);
    }

    #[test]
    fn a_curve_is_bounded_and_shows_means() {
        let mut curve = WaitCurve::default();
        for second in 0..1_000 {
            curve.add(second * 1_000_000, if second < 500 { 10 } else { 30 });
        }
        assert!(curve.intervals.len() <= INTERVALS_MAX);
        let means = curve.means(1_000_000_000, 4);
        assert_eq!((means[0], means[3]), (Some(10), Some(30)));
        assert_eq!(WaitCurve::default().means(10, 2), [None, None]);
    }
}

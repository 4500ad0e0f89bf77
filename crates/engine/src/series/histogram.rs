//! Histograms of durations with fixed buckets: an exact count for each bucket, percentiles with an
//! error of at most 5 %.
//!
//! A decade has 35 buckets: ten steps of 0.1 from 1 to 2, fifteen of 0.2 up to 5, ten of 0.5 up to
//! 10. So every 1, 2 and 5 is a bound, which the histograms for Prometheus share, and no bucket is
//! wider than a tenth of its lower bound.

use taskyard_core::Span;

/// Durations up to this many microseconds share the first bucket and are shown as zero.
const SMALLEST_MICROS: u64 = 10;
/// The number of decades, from 10 µs to about 11.6 days.
const DECADES: usize = 11;
const DECADE_BUCKETS: usize = 35;
/// The number of buckets; the first is for durations below the decades, the last for those above.
pub(super) const BUCKETS: usize = DECADES * DECADE_BUCKETS + 2;

/// The first bound in [`Latency`] is 1 ms.
const FIRST_SHARED_DECADE: usize = 2;
/// The last decade of bounds in [`Latency`] ends at 100,000 s.
const SHARED_DECADES: usize = 8;
/// The number of bounds in [`Latency`].
const BOUNDS: usize = SHARED_DECADES * 3 + 1;

/// The percentiles of one interval, in the order of [`QUANTILES`]; `None` without any duration.
pub type Percentiles = Option<[Span; 3]>;

/// The percentiles that a series shows.
const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

/// The number of a bucket as a point of a ring stores it.
pub(super) type BucketNumber = u16;
/// Stands for a percentile of no durations.
pub(super) const NO_BUCKET: BucketNumber = BucketNumber::MAX;

/// Counts durations by bucket.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: [u32; BUCKETS],
    total: u32,
    sum_micros: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS], total: 0, sum_micros: 0 }
    }
}

impl Histogram {
    /// Counts a duration.
    pub fn record(&mut self, span: Span) {
        let micros = span.as_micros().unsigned_abs();
        let count = &mut self.counts[bucket_of(micros)];
        *count = count.saturating_add(1);
        self.total = self.total.saturating_add(1);
        self.sum_micros = self.sum_micros.saturating_add(micros);
    }

    /// Passes the duration and the count of each bucket that is not empty.
    pub fn for_each(&self, mut pass: impl FnMut(Span, u32)) {
        if self.total == 0 {
            return;
        }
        for (number, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if let Some(span) = representative(number as BucketNumber) {
                pass(span, *count);
            }
        }
    }

    /// Adds the counts of another one.
    pub fn add(&mut self, other: &Histogram) {
        if other.total == 0 {
            return;
        }
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.saturating_add(*more);
        }
        self.total = self.total.saturating_add(other.total);
        self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
    }

    /// Removes all counts.
    pub fn clear(&mut self) {
        if self.total > 0 {
            *self = Histogram::default();
        }
    }

    /// The buckets of the percentiles.
    pub fn percentiles(&self) -> [BucketNumber; 3] {
        let mut found = [NO_BUCKET; 3];
        if self.total == 0 {
            return found;
        }
        let ranks = QUANTILES.map(|quantile| (quantile * f64::from(self.total)).ceil() as u64);
        let (mut below, mut next) = (0, 0);
        for (number, count) in self.counts.iter().enumerate() {
            below += u64::from(*count);
            while next < ranks.len() && below >= ranks[next].max(1) {
                found[next] = number as BucketNumber;
                next += 1;
            }
        }
        found
    }
}

/// The bucket of a duration. A bound belongs to the bucket below it.
fn bucket_of(micros: u64) -> usize {
    if micros <= SMALLEST_MICROS {
        return 0;
    }
    let below = micros - 1;
    let decade = below.ilog10() as usize - 1;
    if decade >= DECADES {
        return BUCKETS - 1;
    }
    // The first two digits, from 10 to 99.
    let digits = (below / 10_u64.pow(decade as u32)) as usize;
    let step = match digits {
        0..20 => digits - 10,
        20..50 => 10 + (digits - 20) / 2,
        _ => 25 + (digits - 50) / 5,
    };
    1 + decade * DECADE_BUCKETS + step
}

/// The lower bound of a bucket after the first, in microseconds.
fn lower_bound(number: usize) -> u64 {
    let (decade, step) = ((number - 1) / DECADE_BUCKETS, (number - 1) % DECADE_BUCKETS);
    let digits = match step {
        0..10 => 10 + step,
        10..25 => 20 + (step - 10) * 2,
        _ => 50 + (step - 25) * 5,
    };
    digits as u64 * 10_u64.pow(decade as u32)
}

/// The duration that stands for a bucket: the one with the least relative error at both bounds.
fn representative(number: BucketNumber) -> Option<Span> {
    let number = usize::from(number);
    let micros = match number {
        0 => 0.0,
        _ if number >= BUCKETS => return None,
        _ if number == BUCKETS - 1 => lower_bound(number) as f64,
        _ => {
            let (low, high) = (lower_bound(number) as f64, lower_bound(number + 1) as f64);
            2.0 * low * high / (low + high)
        }
    };
    Some(Span::from_micros(micros.round() as i64))
}

/// The durations that stand for the buckets of percentiles.
pub(super) fn shown(buckets: [BucketNumber; 3]) -> Percentiles {
    let [Some(p50), Some(p90), Some(p99)] = buckets.map(representative) else { return None };
    Some([p50, p90, p99])
}

/// Durations since the series of a tube began, by the bounds that Prometheus gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The number of durations above the previous bound and up to this one; the last is above all
    /// bounds.
    counts: [u64; BOUNDS + 1],
    sum_micros: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Latency { counts: [0; BOUNDS + 1], sum_micros: 0 }
    }
}

impl Latency {
    /// Adds the durations of an interval.
    pub(super) fn add_histogram(&mut self, histogram: &Histogram) {
        if histogram.total == 0 {
            return;
        }
        for (number, count) in histogram.counts.iter().enumerate() {
            self.counts[shared_bucket(number)] += u64::from(*count);
        }
        self.sum_micros = self.sum_micros.saturating_add(histogram.sum_micros);
    }

    /// Adds those of another tube.
    pub fn add(&mut self, other: &Latency) {
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            *sum += more;
        }
        self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all durations.
    pub fn sum_seconds(&self) -> f64 {
        self.sum_micros as f64 / 1e6
    }

    /// Each bound with the number of durations up to it.
    pub fn cumulative(&self) -> impl Iterator<Item = (Span, u64)> {
        let mut below = 0;
        self.counts[..BOUNDS].iter().enumerate().map(move |(number, count)| {
            below += count;
            let (decade, step) = (number / 3, number % 3);
            let micros = [1, 2, 5][step] * 1_000 * 10_i64.pow(decade as u32);
            (Span::from_micros(micros), below)
        })
    }
}

/// The bucket of [`Latency`] that contains a bucket of a histogram.
fn shared_bucket(number: usize) -> usize {
    let first = 1 + FIRST_SHARED_DECADE * DECADE_BUCKETS;
    if number < first {
        return 0;
    }
    let (decade, step) = ((number - first) / DECADE_BUCKETS, (number - first) % DECADE_BUCKETS);
    let third = match step {
        0..10 => 0,
        10..25 => 1,
        _ => 2,
    };
    (1 + decade * 3 + third).min(BOUNDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Span {
        Span::from_micros(micros as i64)
    }

    /// Numbers of all magnitudes.
    fn numbers(seed: u64) -> impl Iterator<Item = u64> {
        let mut random = fastrand::Rng::with_seed(seed);
        // Spans end at 2^51 microseconds.
        std::iter::repeat_with(move || random.u64(..) >> random.u32(14..64))
    }

    #[test]
    fn buckets_are_adjacent_and_contain_their_upper_bound() {
        for number in 1..BUCKETS - 1 {
            let (low, high) = (lower_bound(number), lower_bound(number + 1));
            assert!(low < high, "{number}");
            assert_eq!(bucket_of(low), number - 1);
            assert_eq!((bucket_of(low + 1), bucket_of(high)), (number, number));
        }
        assert_eq!((bucket_of(0), bucket_of(SMALLEST_MICROS)), (0, 0));
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn every_duration_in_range_is_shown_with_at_most_five_percent_error() {
        let most = lower_bound(BUCKETS - 1);
        for value in numbers(7).filter(|value| (11..=most).contains(value)).take(100_000) {
            let number = bucket_of(value) as BucketNumber;
            let shown = representative(number).unwrap().as_micros() as f64;
            // Half a microsecond is lost by rounding.
            let error = (shown - value as f64).abs() - 0.5;
            assert!(error <= 0.05 * value as f64, "{value} is shown as {shown}");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_durations() {
        for seed in 0..200 {
            let count = 1 + seed as usize * 7 % 500;
            let in_range = numbers(seed).filter(|value| (1_000..1_000_000_000).contains(value));
            let mut values: Vec<u64> = in_range.take(count).collect();
            let mut histogram = Histogram::default();
            values.iter().for_each(|value| histogram.record(micros(*value)));
            values.sort_unstable();
            let found = shown(histogram.percentiles()).unwrap();
            for (quantile, found) in QUANTILES.into_iter().zip(found) {
                let rank = ((quantile * count as f64).ceil() as usize).max(1);
                let exact = values[rank - 1] as f64;
                let error = (found.as_micros() as f64 - exact).abs() - 0.5;
                assert!(error <= 0.05 * exact, "seed {seed}: {found:?} instead of {exact}");
            }
        }
    }

    #[test]
    fn percentiles_of_no_durations_are_absent() {
        let mut histogram = Histogram::default();
        assert_eq!(shown(histogram.percentiles()), None);
        histogram.record(Span::ZERO);
        assert_eq!(shown(histogram.percentiles()), Some([Span::ZERO; 3]));
        histogram.clear();
        assert_eq!(shown(histogram.percentiles()), None);
    }

    #[test]
    fn sums_of_histograms_are_histograms_of_all_durations() {
        let (mut all, mut sum) = (Histogram::default(), Histogram::default());
        for seed in 0..10 {
            let mut one = Histogram::default();
            for value in numbers(seed).take(100) {
                all.record(micros(value));
                one.record(micros(value));
            }
            sum.add(&one);
        }
        assert_eq!(
            (sum.counts, sum.total, sum.sum_micros),
            (all.counts, all.total, all.sum_micros)
        );
    }

    #[test]
    fn prometheus_gets_exact_counts_up_to_each_bound() {
        let values: Vec<u64> = numbers(3).take(10_000).collect();
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.record(micros(*value)));
        // A bound itself is included.
        histogram.record(Span::from_secs(5));
        let mut latency = Latency::default();
        latency.add_histogram(&histogram);
        let mut bounds = 0;
        for (bound, count) in latency.cumulative() {
            let up_to = |value: &&u64| **value <= bound.as_micros() as u64;
            let five = usize::from(bound >= Span::from_secs(5));
            assert_eq!(count as usize, values.iter().filter(up_to).count() + five, "{bound:?}");
            bounds += 1;
        }
        assert_eq!((bounds, latency.count()), (BOUNDS, 10_001));
        let seconds: Vec<f64> =
            latency.cumulative().map(|(bound, _)| bound.as_secs_f64()).collect();
        assert_eq!((seconds[0], seconds[1], seconds[2], seconds[24]), (0.001, 0.002, 0.005, 1e5));
    }
}

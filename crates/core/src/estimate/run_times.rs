//! Keeps how long deliveries of a tube lasted recently: a histogram whose old entries lose weight.

/// The first bucket ends here, in seconds.
const SMALLEST: f64 = 10e-6;
/// Each bucket is larger than the one before by this factor.
const FACTOR: f64 = 1.2;
/// The number of buckets; the last one begins after about 14 days.
const BUCKETS: usize = 140;

/// Recent run times with weights.
#[derive(Clone, Debug)]
pub struct RunTimes {
    weights: Box<[f32; BUCKETS]>,
    total: f64,
    sum: f64,
    squares: f64,
}

impl Default for RunTimes {
    fn default() -> Self {
        RunTimes { weights: Box::new([0.0; BUCKETS]), total: 0.0, sum: 0.0, squares: 0.0 }
    }
}

impl RunTimes {
    /// The bytes that it uses outside of its own size.
    pub const BYTES: usize = BUCKETS * size_of::<f32>();

    /// Adds run times of this many seconds.
    pub fn add(&mut self, seconds: f64, count: f64) {
        self.weights[bucket_of(seconds)] += count as f32;
        self.total += count;
        self.sum += count * seconds;
        self.squares += count * seconds * seconds;
    }

    /// Reduces the weight of all that was added.
    pub fn fade(&mut self, factor: f64) {
        if self.total == 0.0 {
            return;
        }
        self.weights.iter_mut().for_each(|weight| *weight *= factor as f32);
        self.total *= factor;
        self.sum *= factor;
        self.squares *= factor;
        if self.total < 1e-6 {
            *self = RunTimes::default();
        }
    }

    /// The weight of all run times.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// The mean in seconds; `None` without run times.
    pub fn mean(&self) -> Option<f64> {
        (self.total > 0.0).then(|| (self.sum / self.total).max(SMALLEST / 2.0))
    }

    /// The square of the coefficient of variation.
    pub fn variation(&self) -> f64 {
        let Some(mean) = self.mean() else { return 1.0 };
        (self.squares / self.total / (mean * mean) - 1.0).max(0.0)
    }

    /// The times that parts of the run times do not exceed, the parts evenly from none to all; `None` without run times.
    /// The mean stays.
    pub fn quantiles<const COUNT: usize>(&self) -> Option<[f32; COUNT]> {
        let mean = self.mean()?;
        let mut quantiles = [0.0_f32; COUNT];
        let sum: f64 = self.weights.iter().map(|weight| f64::from(*weight)).sum();
        let mut buckets = self.weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0);
        let (mut bucket, mut before) = (buckets.next()?, 0.0);
        for (number, quantile) in quantiles.iter_mut().enumerate() {
            let part = sum * number as f64 / (COUNT - 1) as f64;
            while part > before + f64::from(*bucket.1)
                && let Some(next) = buckets.next()
            {
                before += f64::from(*bucket.1);
                bucket = next;
            }
            let (low, high) = bounds(bucket.0);
            let within = ((part - before) / f64::from(*bucket.1)).clamp(0.0, 1.0);
            *quantile = (low + (high - low) * within) as f32;
        }
        let middles = quantiles.windows(2).map(|pair| f64::from(pair[0] + pair[1]) / 2.0);
        let scale = (mean * (COUNT - 1) as f64 / middles.sum::<f64>()) as f32;
        quantiles.iter_mut().for_each(|quantile| *quantile *= scale);
        Some(quantiles)
    }

    /// The part of run times at each of so many points of time, `step` seconds apart from 0. A time between two points is
    /// divided among them so that the mean stays. What is longer is left out.
    pub fn at_points(&self, step: f64, points: usize) -> Vec<f64> {
        /// Parts of a bucket.
        const PARTS: usize = 4;
        let mut parts = vec![0.0; points];
        for (number, weight) in self.weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0)
        {
            let (low, high) = bounds(number);
            let part = f64::from(*weight) / self.total / PARTS as f64;
            for place in 0..PARTS {
                let time = low + (high - low) * (place as f64 + 0.5) / PARTS as f64;
                let (point, rest) = ((time / step).floor(), (time / step).fract());
                for (point, part) in [(point, part * (1.0 - rest)), (point + 1.0, part * rest)] {
                    if (point as usize) < points {
                        parts[point as usize] += part;
                    }
                }
            }
        }
        parts
    }
}

fn bucket_of(seconds: f64) -> usize {
    if seconds <= SMALLEST {
        return 0;
    }
    (((seconds / SMALLEST).ln() / FACTOR.ln()).ceil() as usize).min(BUCKETS - 1)
}

/// The bounds of a bucket in seconds.
fn bounds(number: usize) -> (f64, f64) {
    let bound = |number: usize| SMALLEST * FACTOR.powi(number as i32);
    (if number == 0 { 0.0 } else { bound(number - 1) }, bound(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_contains_its_durations() {
        for seconds in [0.0, 1e-5, 2e-5, 0.001, 0.5, 1.0, 77.0, 86_400.0] {
            let (low, high) = bounds(bucket_of(seconds));
            assert!((low..=high).contains(&seconds), "{seconds} in {low}..{high}");
        }
        assert_eq!(bucket_of(1e12), BUCKETS - 1);
    }

    #[test]
    fn mean_and_variation_are_those_of_what_was_added() {
        let mut runs = RunTimes::default();
        assert_eq!((runs.mean(), runs.variation()), (None, 1.0));
        runs.add(1.0, 1.0);
        runs.add(3.0, 1.0);
        assert_eq!((runs.mean(), runs.variation()), (Some(2.0), 0.25));
        runs.fade(0.5);
        assert_eq!((runs.mean(), runs.total()), (Some(2.0), 1.0));
        runs.fade(1e-9);
        assert_eq!(runs.mean(), None);
    }

    #[test]
    fn quantiles_grow_and_keep_the_mean() {
        let mut runs = RunTimes::default();
        assert_eq!(runs.quantiles::<5>(), None);
        runs.add(1.0, 3.0);
        runs.add(9.0, 1.0);
        let quantiles = runs.quantiles::<129>().expect("there are run times");
        assert!(quantiles.is_sorted(), "{quantiles:?}");
        let mean = quantiles.iter().sum::<f32>() / 129.0;
        assert!((mean - 3.0).abs() < 0.1, "{mean}");
        assert!((0.8..1.2).contains(&quantiles[48]) && (7.0..11.0).contains(&quantiles[112]));
    }

    #[test]
    fn points_have_all_that_is_not_longer() {
        let mut runs = RunTimes::default();
        runs.add(1.0, 3.0);
        runs.add(100.0, 1.0);
        let parts = runs.at_points(0.3, 16);
        assert!((parts.iter().sum::<f64>() - 0.75).abs() < 1e-6, "{parts:?}");
        let mean = |step: f64| {
            let mut runs = RunTimes::default();
            runs.add(1.0, 2.0);
            let parts = runs.at_points(step, 16);
            parts.iter().enumerate().map(|(point, part)| point as f64 * part * step).sum::<f64>()
        };
        assert!((mean(0.3) - 1.0).abs() < 0.1 && (mean(7.0) - mean(0.3)).abs() < 0.01);
    }
}

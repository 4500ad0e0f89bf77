//! Computes when the k-th task leaves a queue with several consumers.
//!
//! Each consumer that is busy is a renewal process: the rest of its current run, then whole runs one after
//! another. With few tasks ahead the distribution of all departures is computed by convolution of the run times;
//! with many it is nearly normal.

use super::run_times::RunTimes;

/// Up to this many departures are computed by convolution.
pub const CONVOLVED_MAX: usize = 64;
/// Steps of time in a convolution.
const STEPS: usize = 128;

/// The quantiles of a time in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantiles {
    /// Half of the times are shorter.
    pub p50: f64,
    /// Nine of ten times are shorter.
    pub p90: f64,
}

/// The 0.9 quantile of the normal distribution.
const NORMAL_P90: f64 = 1.2816;

/// The usual relative error of a measured rate.
const RATE_ERROR: f64 = 0.05;

/// When `count` tasks have left `consumers` busy consumers, which together finish `rate` tasks per second.
pub fn departure(count: u64, consumers: f64, rate: f64, runs: &RunTimes) -> Quantiles {
    let mean = count as f64 / rate;
    if count as usize <= CONVOLVED_MAX
        && let Some(quantiles) = convolved(count as usize, consumers, mean, runs)
    {
        return quantiles;
    }
    let deviation = (runs.variation() * count as f64).sqrt() / rate + RATE_ERROR * mean;
    Quantiles { p50: mean, p90: mean + NORMAL_P90 * deviation }
}

/// By convolution. `None` if there are no run times.
fn convolved(count: usize, consumers: f64, mean: f64, runs: &RunTimes) -> Option<Quantiles> {
    let run_mean = runs.mean()?;
    let consumers = consumers.round().max(1.0);
    // The pace is that of the measured departures: consumers also need time between two tasks.
    let pace = mean * consumers / (count as f64 * run_mean);
    // A time within which the departure is nearly certain.
    let deviation = (runs.variation().max(1.0) / count as f64).sqrt() * mean;
    let step = (mean + 4.0 * deviation) / STEPS as f64;
    let part = runs.at_points(step / pace, STEPS);
    let one = OneConsumer::new(&part, run_mean * pace / step, count);
    let quantile = |probability: f64| {
        let has_left = |time: usize| one.all_left(time, count, consumers as u32) >= probability;
        let (mut low, mut high) = (0, STEPS);
        while low < high {
            let middle = usize::midpoint(low, high);
            if has_left(middle) { high = middle } else { low = middle + 1 }
        }
        low as f64 * step
    };
    Some(Quantiles { p50: quantile(0.5), p90: quantile(0.9) })
}

/// How many tasks leave one consumer.
struct OneConsumer {
    /// For each number from 1, and each step of time, the probability that so many tasks have left.
    left: Vec<Vec<f64>>,
}

impl OneConsumer {
    /// With the parts of run times in each step; the mean is in steps.
    fn new(part: &[f64], mean: f64, most: usize) -> Self {
        let (mut density, mut left) = (rest_of_run(part, mean), Vec::new());
        while left.len() < most {
            let mut sum = 0.0;
            let cumulative: Vec<f64> = density
                .iter()
                .map(|part| {
                    sum += part;
                    sum
                })
                .collect();
            left.push(cumulative);
            if sum < 1e-5 {
                break;
            }
            density = convolution(&density, part, part.len());
        }
        OneConsumer { left }
    }

    /// The probability that `count` tasks have left `consumers` like this one.
    fn all_left(&self, time: usize, count: usize, consumers: u32) -> f64 {
        let Some(at_least) = self.left.iter().map(|left| left.get(time).copied()).collect() else {
            return 1.0;
        };
        let at_least: Vec<f64> = at_least;
        let mut before = 1.0;
        let mut exactly: Vec<f64> = at_least
            .iter()
            .map(|next| {
                let exactly = before - next;
                before = *next;
                exactly
            })
            .collect();
        exactly.push(before);
        let fewer = power(exactly, consumers, count);
        1.0 - fewer.iter().take(count).sum::<f64>()
    }
}

/// The distribution of the sum of so many numbers with the same distribution, below `length`.
fn power(mut base: Vec<f64>, mut exponent: u32, length: usize) -> Vec<f64> {
    let mut result = vec![1.0];
    while exponent > 0 {
        if exponent % 2 == 1 {
            result = convolution(&result, &base, length);
        }
        exponent /= 2;
        if exponent > 0 {
            base = convolution(&base, &base, length);
        }
    }
    result
}

/// The distribution of the sum of two numbers, below `length`.
fn convolution(a: &[f64], b: &[f64], length: usize) -> Vec<f64> {
    let mut sum = vec![0.0; length.min(a.len() + b.len() - 1)];
    for (at, a) in a.iter().enumerate().take(sum.len()).filter(|(_, a)| **a > 1e-12) {
        for (sum, b) in sum[at..].iter_mut().zip(b) {
            *sum += a * b;
        }
    }
    sum
}

/// The distribution of the rest of a run that is met at a random moment; the mean is in steps.
fn rest_of_run(part: &[f64], mean: f64) -> Vec<f64> {
    // A run of n steps has its rest at each of n points with the same probability; half of one at the ends.
    let mut longer = 1.0;
    let mut rest: Vec<f64> = Vec::with_capacity(part.len());
    for part in part {
        let before = longer;
        longer -= part;
        rest.push(((before + longer) / 2.0 / mean).max(0.0));
    }
    // Of run times that are much shorter than a step nothing is left.
    let sum: f64 = rest.iter().sum();
    if sum > 1.0 {
        rest.iter_mut().for_each(|part| *part /= sum);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of the departure in a simulation, sorted.
    fn simulated(
        count: u64,
        consumers: usize,
        run: impl Fn(&mut fastrand::Rng) -> f64,
    ) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(9);
        let mut times: Vec<f64> = (0..1_000)
            .map(|_| {
                // Long before the moment at which the wait begins.
                let begin = 30.0;
                let mut departures = Vec::new();
                for _ in 0..consumers {
                    let mut at = random.f64();
                    while at < begin + 120.0 {
                        at += run(&mut random);
                        departures.push(at);
                    }
                }
                departures.retain(|at| *at >= begin);
                departures.sort_by(f64::total_cmp);
                departures[count as usize - 1] - begin
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times
    }

    fn check(count: u64, consumers: usize, run: impl Fn(&mut fastrand::Rng) -> f64) {
        let (mut runs, mut random) = (RunTimes::default(), fastrand::Rng::with_seed(3));
        for _ in 0..5_000 {
            runs.add(run(&mut random), 1.0);
        }
        let rate = consumers as f64 / runs.mean().unwrap();
        let found = departure(count, consumers as f64, rate, &runs);
        let times = simulated(count, consumers, run);
        for (quantile, found) in [(0.5, found.p50), (0.9, found.p90)] {
            let exact = times[(times.len() as f64 * quantile) as usize];
            let error = (found - exact).abs() / exact;
            assert!(error < 0.15, "{count} of {consumers}: p{quantile} {found} not {exact}");
        }
    }

    #[test]
    fn the_quantiles_are_those_of_a_simulation() {
        let exponential = |random: &mut fastrand::Rng| -random.f64().max(1e-9).ln();
        let even = |random: &mut fastrand::Rng| 0.9 + 0.2 * random.f64();
        let two = |random: &mut fastrand::Rng| if random.u8(0..10) == 0 { 5.0 } else { 0.5 };
        for (count, consumers) in [(1, 1), (5, 1), (64, 1), (3, 4), (64, 20), (150, 8)] {
            check(count, consumers, exponential);
            check(count, consumers, two);
            // The first departure of even runs is spread over a whole run.
            check(count, consumers, even);
        }
    }
}

//! The figures of one workload: how many estimates held, and how wrong they were.

use taskyard_core::estimate::{Basis, Calibrated, Estimate, Held};

/// The comparisons of a workload.
#[derive(Default)]
pub struct EstimateFigures {
    counts: Calibrated,
    /// Relative errors of p50 for tasks that had to wait.
    errors: Vec<f64>,
}

/// A shorter wait is not compared with p50: the task started at once.
const WAITED_MIN: f64 = 0.01;

impl EstimateFigures {
    pub fn add(&mut self, held: Held, shown: &Estimate, real: f64) {
        // A consumer waited for the task, so it started at once: nothing was estimated.
        if shown.basis == Basis::IdleConsumer {
            return;
        }
        self.counts.add(held);
        if real >= WAITED_MIN {
            self.errors.push((shown.p50.as_secs_f64() - real).abs() / real);
        }
    }

    pub fn len(&self) -> usize {
        self.counts.total() as usize
    }

    /// Percent of tasks that started within p50.
    pub fn within_p50(&self) -> f64 {
        100.0 * self.counts.p50 as f64 / self.counts.total() as f64
    }

    /// Percent of tasks that started within p90.
    pub fn within_p90(&self) -> f64 {
        100.0 * (self.counts.p50 + self.counts.p90) as f64 / self.counts.total() as f64
    }

    /// The median of the relative errors of p50, in percent, and how many tasks had to wait.
    pub fn median_error(&mut self) -> (f64, usize) {
        if self.errors.is_empty() {
            return (0.0, 0);
        }
        let middle = self.errors.len() / 2;
        let (_, median, _) = self.errors.select_nth_unstable_by(middle, f64::total_cmp);
        (100.0 * *median, self.errors.len())
    }
}

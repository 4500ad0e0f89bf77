//! Measures the cost of each queue of a worker, for the manager.

use std::time::Duration;

/// The weight of one batch in the moving average.
const WEIGHT: f64 = 0.2;

/// The cost of one queue to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LoadAverage {
    seconds_per_task: Option<f64>,
    errors: u64,
}

/// The report of a worker on one of its queues.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueReport {
    /// The queue's number in the contract.
    pub queue_num: u32,
    /// The moving average of the time per task; `None` before the first batch.
    pub seconds_per_task: Option<f64>,
    /// Tasks and batches that failed since the worker started.
    pub errors: u64,
    /// Processors that work on it now.
    pub busy: usize,
}

impl LoadAverage {
    /// Adds a batch of `tasks` tasks that took this long.
    pub fn add(&mut self, took: Duration, tasks: usize, errors: usize) {
        let seconds = took.as_secs_f64() / tasks.max(1) as f64;
        let before = self.seconds_per_task.unwrap_or(seconds);
        self.seconds_per_task = Some(before + (seconds - before) * WEIGHT);
        self.errors += errors as u64;
    }

    pub fn report(&self, queue_num: u32, busy: usize) -> QueueReport {
        let LoadAverage { seconds_per_task, errors } = *self;
        QueueReport { queue_num, seconds_per_task, errors, busy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_follows_slowly() {
        let mut load = LoadAverage::default();
        assert_eq!(load.report(1, 0).seconds_per_task, None);
        load.add(Duration::from_secs(10), 10, 0);
        load.add(Duration::from_secs(20), 10, 3);
        let report = load.report(1, 2);
        assert!((report.seconds_per_task.unwrap() - 1.2).abs() < 1e-9);
        assert_eq!((report.errors, report.busy), (3, 2));
    }
}

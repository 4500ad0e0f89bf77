//! What a worker tells a manager about itself.

use std::time::Duration;

/// How much one batch weighs in the average of all before it.
const WEIGHT: f64 = 0.2;

/// What one queue costs a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    seconds_per_task: Option<f64>,
    errors: u64,
}

/// What a worker tells about one of its queues.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueReport {
    /// The queue's number in the contract.
    pub queue_num: u32,
    /// A moving average; `None` before the first batch.
    pub seconds_per_task: Option<f64>,
    /// Tasks and batches that went wrong since the worker began.
    pub errors: u64,
    /// Processors that work on it now.
    pub busy: usize,
}

impl Load {
    /// A batch of so many tasks took this long.
    pub fn add(&mut self, took: Duration, tasks: usize, errors: usize) {
        let seconds = took.as_secs_f64() / tasks.max(1) as f64;
        let before = self.seconds_per_task.unwrap_or(seconds);
        self.seconds_per_task = Some(before + (seconds - before) * WEIGHT);
        self.errors += errors as u64;
    }

    pub fn report(&self, queue_num: u32, busy: usize) -> QueueReport {
        let Load { seconds_per_task, errors } = *self;
        QueueReport { queue_num, seconds_per_task, errors, busy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_follows_slowly() {
        let mut load = Load::default();
        assert_eq!(load.report(1, 0).seconds_per_task, None);
        load.add(Duration::from_secs(10), 10, 0);
        load.add(Duration::from_secs(20), 10, 3);
        let report = load.report(1, 2);
        assert!((report.seconds_per_task.unwrap() - 1.2).abs() < 1e-9);
        assert_eq!((report.errors, report.busy), (3, 2));
    }
}

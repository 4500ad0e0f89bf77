//! The common case of a handler: ack the tasks that succeeded, retry the others with growing delays.

use std::fmt::Display;
use std::time::Duration;

use taskyard_core::{Finish, Span};

use crate::stats::{HandlerResult, HandlerStats};
use crate::store::{Retry, Store};

/// The longest delay before another attempt.
const BACKOFF_MAX: Duration = Duration::from_secs(3600);

/// The delay before the next attempt: one second, doubled with each failed attempt, an hour at most.
pub fn backoff(attempts: u32) -> Duration {
    let seconds = 1u64.checked_shl(attempts).unwrap_or(u64::MAX);
    Duration::from_secs(seconds).min(BACKOFF_MAX)
}

/// Collects the outcome of each task of a batch and applies all of them in one request.
/// The example `mailer` has a handler that uses it.
pub struct BatchOutcome<'a> {
    store: &'a Store,
    began: taskyard_core::Timestamp,
    done: Vec<u64>,
    buried: Vec<u64>,
    retries: Vec<Retry>,
    given_back: Vec<u64>,
    stats: HandlerStats,
}

impl<'a> BatchOutcome<'a> {
    /// An empty outcome.
    pub fn new(store: &'a Store) -> Self {
        BatchOutcome {
            store,
            began: store.now(),
            done: Vec::new(),
            buried: Vec::new(),
            retries: Vec::new(),
            given_back: Vec::new(),
            stats: HandlerStats::default(),
        }
    }

    /// The task is done.
    pub fn done(&mut self, task_id: u64) {
        self.done.push(task_id);
        self.stats.processed += 1;
    }

    /// The task failed and is tried again after the [`backoff`] of its attempts.
    pub fn retry(&mut self, task_id: u64, attempts: u32, error: impl Display) {
        self.retries.push(Retry::after(self.store, task_id, backoff(attempts)));
        self.stats.retried += 1;
        self.failed(error);
    }

    /// The task failed for good: it is buried until it is kicked.
    pub fn bury(&mut self, task_id: u64, error: impl Display) {
        self.buried.push(task_id);
        self.failed(error);
    }

    /// The handler did not begin the task: it returns as if it had never been taken.
    pub fn give_back(&mut self, task_id: u64) {
        self.given_back.push(task_id);
    }

    fn failed(&mut self, error: impl Display) {
        self.stats.errors += 1;
        self.stats.last_error = Some(error.to_string());
    }

    /// Acks, retries, buries and gives back, and returns what a handler returns. If the queue is unavailable, the
    /// request is repeated until the lease of the batch ends.
    pub async fn commit(mut self) -> HandlerResult {
        let now = self.store.now();
        let release = |delay, counted| Finish::Release { delay, counted };
        let done = self.done.iter().map(|id| (*id, Finish::Ack));
        let retries = self
            .retries
            .iter()
            .map(|retry| (retry.task_id, release(retry.next_start_time.since(now), true)));
        let buried = self.buried.iter().map(|id| (*id, Finish::Bury));
        let given_back = self.given_back.iter().map(|id| (*id, release(Span::ZERO, false)));
        let finishes: Vec<_> = done.chain(retries).chain(buried).chain(given_back).collect();
        self.store.finish_with_retries(finishes).await?;
        self.stats.duration = self.store.now().since(self.began).into();
        Ok(self.stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_an_hour() {
        let seconds: Vec<_> =
            [0, 1, 5, 11, 12, 63, 64, u32::MAX].map(|n| backoff(n).as_secs()).into();
        assert_eq!(seconds, [1, 2, 32, 2048, 3600, 3600, 3600, 3600]);
    }
}

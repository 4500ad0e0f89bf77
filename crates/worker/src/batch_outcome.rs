//! The common case of a handler: ack the tasks that succeeded, retry the others with growing delays.

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use taskyard_core::limits::RESULT_BYTES_MAX;
use taskyard_core::{Finish, Span};
use taskyard_wire::fail_by_policy;

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
    /// With the ack of each.
    done: Vec<(u64, Finish)>,
    /// With the error of each.
    buried: Vec<(u64, String)>,
    /// With the error of each.
    retries: Vec<(Retry, String)>,
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
        self.done.push((task_id, Finish::Ack));
        self.stats.processed += 1;
    }

    /// The task is done, with a result that is kept if its tube keeps done tasks (`keep_done`). A result that cannot be
    /// encoded as MessagePack is left out.
    pub fn done_with(&mut self, task_id: u64, result: &impl Serialize) {
        let ack = match rmp_serde::to_vec_named(result) {
            Ok(result) if result.len() <= RESULT_BYTES_MAX => Finish::ack_with(&result),
            Ok(result) => {
                tracing::warn!(
                    task_id,
                    bytes = result.len(),
                    "the result of a task is too large and is left out"
                );
                Finish::Ack
            }
            Err(error) => {
                tracing::warn!(task_id, %error, "the result of a task cannot be encoded and is left out");
                Finish::Ack
            }
        };
        self.done.push((task_id, ack));
        self.stats.processed += 1;
    }

    /// The task failed and is tried again as the retry policy of its tube says, or after the [`backoff`] of its attempts
    /// if the tube has none.
    pub fn retry(&mut self, task_id: u64, attempts: u32, error: impl Display) {
        let error = error.to_string();
        let retry = Retry::after(self.store, task_id, backoff(attempts));
        self.retries.push((retry, error.clone()));
        self.stats.retried += 1;
        self.failed(error);
    }

    /// The task failed for good: it is buried until it is kicked.
    pub fn bury(&mut self, task_id: u64, error: impl Display) {
        let error = error.to_string();
        self.buried.push((task_id, error.clone()));
        self.failed(error);
    }

    /// The handler did not begin the task: it returns as if it had never been taken.
    pub fn give_back(&mut self, task_id: u64) {
        self.given_back.push(task_id);
    }

    fn failed(&mut self, error: String) {
        self.stats.errors += 1;
        self.stats.last_error = Some(error);
    }

    /// Acks, retries, buries and gives back, and returns what a handler returns. If the queue is unavailable, the
    /// request is repeated until the lease of the batch ends.
    pub async fn commit(mut self) -> HandlerResult {
        let now = self.store.now();
        let done = self.done.iter().cloned();
        let retries = self.retries.iter().map(|(retry, error)| {
            (retry.task_id, fail_by_policy(error, retry.next_start_time.since(now)))
        });
        let buried = self.buried.iter().map(|(id, error)| (*id, Finish::fail(error, None)));
        let release = || Finish::Release { delay: Span::ZERO, counted: false };
        let given_back = self.given_back.iter().map(|id| (*id, release()));
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

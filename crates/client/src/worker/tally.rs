//! The common case of a handler: ack what succeeded, retry the rest later and later.

use std::fmt::Display;
use std::time::Duration;

use taskyard_core::{Finish, Span};

use super::stats::{HandlerResult, HandlerStats};
use super::store::{Retry, Store};

/// The longest pause before another attempt.
const BACKOFF_MAX: Duration = Duration::from_secs(3600);

/// How long to wait before the next attempt: one second, doubled with each that failed, an hour at most.
pub fn backoff(attempts: u32) -> Duration {
    let seconds = 1u64.checked_shl(attempts).unwrap_or(u64::MAX);
    Duration::from_secs(seconds).min(BACKOFF_MAX)
}

/// Collects what became of each task of a batch and settles all of them in one go.
/// The example `mailer` is a handler with one.
pub struct Tally<'a> {
    store: &'a Store,
    began: taskyard_core::Timestamp,
    done: Vec<u64>,
    buried: Vec<u64>,
    retries: Vec<Retry>,
    unbegun: Vec<u64>,
    stats: HandlerStats,
}

impl<'a> Tally<'a> {
    /// Nothing has happened yet.
    pub fn new(store: &'a Store) -> Self {
        Tally {
            store,
            began: store.now(),
            done: Vec::new(),
            buried: Vec::new(),
            retries: Vec::new(),
            unbegun: Vec::new(),
            stats: HandlerStats::default(),
        }
    }

    /// This one is done.
    pub fn done(&mut self, task_id: u64) {
        self.done.push(task_id);
        self.stats.processed += 1;
    }

    /// This one failed and is tried again after the [`backoff`] of its attempts.
    pub fn retry(&mut self, task_id: u64, attempts: u32, error: impl Display) {
        self.retries.push(Retry::after(self.store, task_id, backoff(attempts)));
        self.stats.retried += 1;
        self.failed(error);
    }

    /// This one failed for good: it is put aside until somebody kicks it.
    pub fn bury(&mut self, task_id: u64, error: impl Display) {
        self.buried.push(task_id);
        self.failed(error);
    }

    /// This one was not begun: it goes back as if it had never been taken.
    pub fn give_back(&mut self, task_id: u64) {
        self.unbegun.push(task_id);
    }

    fn failed(&mut self, error: impl Display) {
        self.stats.errors += 1;
        self.stats.last_error = Some(error.to_string());
    }

    /// Acks, retries, buries and gives back, and answers what a handler answers. A queue that is away for a while is
    /// asked again until the batch is no longer the handler's.
    pub async fn settle(mut self) -> HandlerResult {
        let now = self.store.now();
        let release = |delay, counted| Finish::Release { delay, counted };
        let done = self.done.iter().map(|id| (*id, Finish::Ack));
        let retries = self
            .retries
            .iter()
            .map(|retry| (retry.task_id, release(retry.next_start_time.since(now), true)));
        let buried = self.buried.iter().map(|id| (*id, Finish::Bury));
        let unbegun = self.unbegun.iter().map(|id| (*id, release(Span::ZERO, false)));
        let finishes: Vec<_> = done.chain(retries).chain(buried).chain(unbegun).collect();
        self.store.settle(finishes).await?;
        self.stats.duration = self.store.now().since(self.began).into();
        Ok(self.stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_an_hour() {
        let seconds: Vec<_> =
            [0, 1, 5, 11, 12, 63, 64, u32::MAX].map(|n| backoff(n).as_secs()).into();
        assert_eq!(seconds, [1, 2, 32, 2048, 3600, 3600, 3600, 3600]);
    }
}

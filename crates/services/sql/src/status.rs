//! What a scheduler tells about itself.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What one scheduler tells about itself, counted while it runs.
#[derive(Debug, Default)]
pub struct Status {
    /// Tasks that were claimed.
    pub claimed: AtomicU64,
    /// Tasks that ended well.
    pub done: AtomicU64,
    /// Tasks that ended with an error.
    pub failed: AtomicU64,
    /// Tasks that were too late.
    pub expired: AtomicU64,
    /// Tasks that lost their session.
    pub lost: AtomicU64,
    /// Sessions that are open.
    pub sessions: AtomicU64,
    /// Tasks that run.
    pub running: AtomicU64,
    /// The limit that keeps tasks waiting; zero is none.
    pub limit: AtomicU64,
    /// Whether it is the one that runs the tasks of its table.
    pub leads: AtomicBool,
    /// Whether it is connected.
    pub connected: AtomicBool,
    /// When the next task is planned, in microseconds since 1970; zero is never.
    pub next_plan: AtomicI64,
    trouble: Mutex<Option<String>>,
}

impl Status {
    /// One more.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// What keeps it from its work; told once in the log.
    pub fn trouble(&self, table: &str, why: Option<String>) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *trouble != why {
            match &why {
                Some(why) => tracing::warn!(table, "{why}"),
                None => tracing::info!(table, "all is well"),
            }
            *trouble = why;
        }
    }

    /// What keeps it from its work, if anything does.
    pub fn why(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

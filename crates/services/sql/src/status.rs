//! The counters and the current problem of one scheduler.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The counters and the current problem of one scheduler.
#[derive(Debug, Default)]
pub struct SchedulerStatus {
    /// Tasks that were claimed.
    pub claimed: AtomicU64,
    /// Tasks that succeeded.
    pub done: AtomicU64,
    /// Tasks that ended with an error.
    pub failed: AtomicU64,
    /// Tasks that had expired when they were claimed.
    pub expired: AtomicU64,
    /// Tasks that lost their session.
    pub lost: AtomicU64,
    /// Open sessions.
    pub sessions: AtomicU64,
    /// Running tasks.
    pub running: AtomicU64,
    /// The limit that keeps tasks waiting; zero is none.
    pub limit: AtomicU64,
    /// Whether this scheduler leads: it runs the tasks of its table.
    pub leads: AtomicBool,
    /// Whether it is connected.
    pub connected: AtomicBool,
    /// When the next task is planned, in microseconds since 1970; zero is never.
    pub next_plan: AtomicI64,
    problem: Mutex<Option<String>>,
}

impl SchedulerStatus {
    /// Adds one to a counter.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets or clears the current problem; a change is logged.
    pub fn set_problem(&self, table: &str, new: Option<String>) {
        let mut problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        if *problem != new {
            match &new {
                Some(new) => tracing::warn!(table, "{new}"),
                None => tracing::info!(table, "the problem is solved"),
            }
            *problem = new;
        }
    }

    /// The current problem.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

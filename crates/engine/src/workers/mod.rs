//! The workers of this server: which names took tasks, from which tubes, when, and how many
//! deliveries they finished.
//!
//! The event loop notes the takes and finishes of a batch (`notes`) and applies the replies to the
//! registry (`registry`). A finish does not name its worker, so the registry remembers who holds
//! which task (`holders`). Memory is bounded, and nothing is stored on disk.

mod holders;
mod notes;
mod recent_counts;
mod registry;

use std::sync::Arc;

pub(crate) use notes::WorkerNotes;
pub(crate) use registry::WorkerRegistry;
use taskyard_core::{Span, Timestamp, TubeName};

/// Maximum number of workers; those that were not seen for longest are removed.
pub const WORKERS_MAX: usize = 10_000;
/// Maximum number of tubes of one worker; the one it used first is removed.
pub const WORKER_TUBES_MAX: usize = 32;
/// A worker that was not seen for this long is removed, unless it has running tasks.
pub const WORKER_KEPT: Span = Span::from_secs(3_600);
/// Maximum number of deliveries whose worker is remembered.
pub const WORKER_DELIVERIES_MAX: usize = 2 * holders::HALF_MAX;

/// A worker, as this server saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Its name.
    pub name: Arc<str>,
    /// The tubes from which it took, the latest ones.
    pub tubes: Vec<TubeName>,
    /// When it last took, finished or touched a task, in wall time; now while it waits for one.
    pub last_seen: Timestamp,
    /// Deliveries that it acknowledged.
    pub done: u64,
    /// Deliveries that it reported as failed.
    pub failed: u64,
    /// Of these, acknowledged in the last minute.
    pub done_last_minute: u64,
    /// Of these, failed in the last minute.
    pub failed_last_minute: u64,
}

//! The counts of a tube: its tasks by state, and its operations.

use serde::{Deserialize, Serialize};
use taskyard_core::{Calls, Counts};

/// The number of tasks in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskCounts {
    /// Can be taken.
    pub ready: u64,
    /// Delivered.
    pub taken: u64,
    /// Buried.
    pub buried: u64,
    /// Delayed.
    pub delayed: u64,
    /// Finished since the store was opened.
    pub done: u64,
    /// Done tasks that the tube keeps.
    #[serde(default)]
    pub kept: u64,
    /// All tasks of the tube, without done tasks.
    pub total: u64,
}

/// How often each operation took effect since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallCounts {
    /// Tasks finished by their holder.
    pub ack: u64,
    /// Tasks buried.
    pub bury: u64,
    /// Tasks deleted, by a request or by their ttl.
    pub delete: u64,
    /// Buried tasks brought back.
    pub kick: u64,
    /// Tasks put.
    pub put: u64,
    /// Tasks given back.
    pub release: u64,
    /// Deliveries.
    pub take: u64,
    /// Deliveries extended.
    pub touch: u64,
    /// Tasks removed by their ttl.
    pub ttl: u64,
    /// Deliveries whose time was over.
    pub ttr: u64,
    /// Delays that ended.
    pub delay: u64,
}

impl From<Counts> for TaskCounts {
    fn from(counts: Counts) -> Self {
        let total = counts.total();
        let Counts { ready, taken, buried, delayed, done, kept } = counts;
        TaskCounts { ready, taken, buried, delayed, done, kept, total }
    }
}

impl From<TaskCounts> for Counts {
    fn from(counts: TaskCounts) -> Self {
        let TaskCounts { ready, taken, buried, delayed, done, kept, total: _ } = counts;
        Counts { ready, taken, buried, delayed, done, kept }
    }
}

impl From<Calls> for CallCounts {
    fn from(calls: Calls) -> Self {
        let Calls { ack, bury, delete, kick, put, release, take, touch, ttl, ttr, delay } = calls;
        CallCounts { ack, bury, delete, kick, put, release, take, touch, ttl, ttr, delay }
    }
}

impl From<CallCounts> for Calls {
    fn from(calls: CallCounts) -> Self {
        let CallCounts { ack, bury, delete, kick, put, release, take, touch, ttl, ttr, delay } =
            calls;
        Calls { ack, bury, delete, kick, put, release, take, touch, ttl, ttr, delay }
    }
}

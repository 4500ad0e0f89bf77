//! The one answer to "why does it not run now?".

use std::fmt;

use crate::time::Timestamp;

/// Why a task does not run now. Tubes, semaphores and pools answer with this; SQL tasks have words of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It waits only for a consumer.
    WaitsForConsumer,
    /// It runs now.
    Running,
    /// Its time has not come.
    NotDue(Timestamp),
    /// Its tube is paused.
    TubePaused,
    /// Another task of its sub-queue runs.
    SubqueueBusy,
    /// The semaphore before its tube lets others go first.
    Semaphore,
    /// As many tasks of this class and longer ones run as may.
    LimitReached {
        /// The number of the class, from 0 for the shortest.
        class: u8,
    },
    /// No backend of its pool is alive.
    NoBackend,
    /// Its pool is paused.
    PoolPaused,
    /// Its client has as many tasks as it may.
    ClientLimit,
    /// Somebody buried it.
    Buried,
    /// Its attempts are used up.
    AttemptsUsedUp,
    /// Its time to live is over.
    Expired,
    /// It is finished.
    Finished,
}

impl Reason {
    /// The reason's name on every face of Taskyard.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::WaitsForConsumer => "waits_for_consumer",
            Reason::Running => "running",
            Reason::NotDue(_) => "not_due",
            Reason::TubePaused => "tube_paused",
            Reason::SubqueueBusy => "subqueue_busy",
            Reason::Semaphore => "semaphore",
            Reason::LimitReached { .. } => "limit_reached",
            Reason::NoBackend => "no_backend",
            Reason::PoolPaused => "pool_paused",
            Reason::ClientLimit => "client_limit",
            Reason::Buried => "buried",
            Reason::AttemptsUsedUp => "attempts_used_up",
            Reason::Expired => "expired",
            Reason::Finished => "finished",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::WaitsForConsumer => "waits for a consumer",
            Reason::Running => "runs now",
            Reason::NotDue(_) => "its time has not come",
            Reason::TubePaused => "the tube is paused",
            Reason::SubqueueBusy => "another task of its sub-queue runs",
            Reason::Semaphore => "the semaphore of its tube lets others go first",
            Reason::LimitReached { .. } => "as many tasks of its class run as may",
            Reason::NoBackend => "no backend is alive",
            Reason::PoolPaused => "the pool is paused",
            Reason::ClientLimit => "its client has as many tasks as it may",
            Reason::Buried => "buried; kick it to bring it back",
            Reason::AttemptsUsedUp => "its attempts are used up; kick it to try again",
            Reason::Expired => "its time to live is over",
            Reason::Finished => "finished",
        })
    }
}

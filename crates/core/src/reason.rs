//! The reasons why a task does not run now.

use std::fmt;

use crate::time::Timestamp;

/// Why a task does not run now. Tubes, semaphores and pools use this; SQL tasks have their own
/// texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It waits only for a consumer.
    WaitsForConsumer,
    /// It runs now.
    Running,
    /// It is not due yet.
    NotDue(Timestamp),
    /// Its tube is paused.
    TubePaused,
    /// The rate limit of its tube is reached; the next delivery is allowed at this moment.
    RateLimited(Timestamp),
    /// Another task of its sub-queue runs.
    SubqueueBusy,
    /// It waits for a grant of its tube's semaphore.
    Semaphore,
    /// The limit for tasks of this class and longer ones is reached.
    LimitReached {
        /// The number of the class, from 0 for the shortest.
        class: u8,
    },
    /// No backend of its pool is alive.
    NoBackend,
    /// Its pool is paused.
    PoolPaused,
    /// The task limit of its client is reached.
    ClientLimit,
    /// It was buried.
    Buried,
    /// Its attempts are used up.
    AttemptsUsedUp,
    /// Its time to live is over.
    Expired,
    /// It is finished.
    Finished,
}

impl Reason {
    /// The name of the reason in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::WaitsForConsumer => "waits_for_consumer",
            Reason::Running => "running",
            Reason::NotDue(_) => "not_due",
            Reason::TubePaused => "tube_paused",
            Reason::RateLimited(_) => "rate_limited",
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
            Reason::NotDue(_) => "not due yet",
            Reason::TubePaused => "the tube is paused",
            Reason::RateLimited(_) => "the rate limit of the tube is reached",
            Reason::SubqueueBusy => "another task of its sub-queue runs",
            Reason::Semaphore => "waits for a grant of the tube's semaphore",
            Reason::LimitReached { .. } => "class limit reached",
            Reason::NoBackend => "no backend is alive",
            Reason::PoolPaused => "the pool is paused",
            Reason::ClientLimit => "client limit reached",
            Reason::Buried => "buried; kick it to make it ready",
            Reason::AttemptsUsedUp => "its attempts are used up; kick it to try again",
            Reason::Expired => "its time to live is over",
            Reason::Finished => "finished",
        })
    }
}

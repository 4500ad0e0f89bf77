//! The errors of commands.

use crate::semaphore::SemaphoreKey;
use crate::session::SessionId;
use crate::stored_schedule::ScheduleName;
use crate::task::TaskId;
use crate::tube::TubeName;

/// The result of the core's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a command was refused. Each variant is a meaning that the caller can act on. A refused
/// command has changed nothing; only after [`Error::OutcomeUnknown`] it may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No tube of this name.
    #[error("tube '{0}' does not exist; create it first")]
    TubeNotFound(TubeName),
    /// A tube of this name already exists.
    #[error("tube '{0}' already exists")]
    TubeExists(TubeName),
    /// A tube of this name already exists, and a given option differs from it.
    #[error(
        "tube '{tube}' already exists with other options: {differs}; leave them out, or change it with `tube alter`"
    )]
    TubeDiffers {
        /// Its name.
        tube: TubeName,
        /// Which of the given options differ.
        differs: String,
    },
    /// The queue number belongs to another tube; the assignment is permanent.
    #[error(
        "queue number {num} belongs to tube '{tube}' for good; a number has one tube, a tube one number"
    )]
    QueueNumTaken {
        /// The tube with this number.
        tube: TubeName,
        /// The number of that tube.
        num: u32,
    },
    /// The tube cannot be dropped while its tasks are taken.
    #[error("tube '{0}' has taken tasks; finish or release them before dropping it")]
    TubeHasTaken(TubeName),
    /// The tube cannot be dropped while consumers wait on it.
    #[error("tube '{0}' has waiting consumers; stop them before dropping it")]
    TubeHasConsumers(TubeName),
    /// The tube is full.
    #[error(
        "tube '{tube}' is full (capacity {capacity}); take some tasks, raise its capacity, or put fewer at once"
    )]
    TubeFull {
        /// The full tube.
        tube: TubeName,
        /// Its capacity.
        capacity: u64,
    },
    /// The limit on the number of tubes is reached, in the store or of one user.
    #[error("the limit of {0} tubes is reached; drop some first")]
    TooManyTubes(usize),
    /// The tube has no semaphore, so its tasks have no semaphore priority.
    #[error(
        "tube '{0}' has no semaphore, so a task there cannot have a semaphore_priority; use pri"
    )]
    NoSemaphore(TubeName),
    /// No semaphore of this key.
    #[error("semaphore '{0}' does not exist; create it first")]
    SemaphoreNotFound(SemaphoreKey),
    /// A semaphore of this key already exists, with other options.
    #[error("semaphore '{key}' already exists{}", besides(differs))]
    SemaphoreExists {
        /// Its key.
        key: SemaphoreKey,
        /// Which of the given options differ; possibly none.
        differs: String,
    },
    /// The semaphore cannot be dropped while tasks hold its grants or wait for them.
    #[error(
        "tasks hold grants of semaphore '{0}' or wait for them; release them first, or drop it with force"
    )]
    SemaphoreInUse(SemaphoreKey),
    /// The semaphore cannot be dropped while it gates a tube.
    #[error("semaphore '{key}' gates tube '{tube}'; drop the tube first")]
    SemaphoreHasTube {
        /// The semaphore.
        key: SemaphoreKey,
        /// One of the tubes that it gates.
        tube: TubeName,
    },
    /// The limit on the number of semaphores is reached.
    #[error("the limit of {0} semaphores is reached; drop some first")]
    TooManySemaphores(usize),
    /// No schedule of this name.
    #[error("schedule '{0}' does not exist; create it first")]
    ScheduleNotFound(ScheduleName),
    /// A schedule of this name already exists.
    #[error("schedule '{0}' already exists")]
    ScheduleExists(ScheduleName),
    /// The limit on the number of schedules is reached.
    #[error("the limit of {0} schedules is reached; remove some first")]
    TooManySchedules(usize),
    /// The store does not have this feature.
    #[error("the {store} store has no {feature}; leave it out, or use another store")]
    MissingFeature {
        /// The name of the store.
        store: &'static str,
        /// The feature.
        feature: &'static str,
    },
    /// No task of this id in the tube.
    #[error("task {1} not found in tube '{0}'")]
    TaskNotFound(TubeName, TaskId),
    /// The tube's kind does not support this verb.
    #[error("a {kind} tube does not support {verb}")]
    Unsupported {
        /// The tube's kind.
        kind: &'static str,
        /// The verb.
        verb: &'static str,
    },
    /// The command is invalid.
    #[error("{0}")]
    Invalid(String),
    /// A part of the command exceeds its limit.
    #[error("{what} is {size}, the limit is {limit}; {advice}")]
    TooLarge {
        /// The part that is too large.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
        /// What to do about it.
        advice: &'static str,
    },
    /// No live session with this identity.
    #[error("session {0} is unknown or has expired")]
    SessionUnknown(SessionId),
    /// Too much is queued; nothing was done.
    #[error("overloaded: {0}; try again a little later")]
    Overloaded(&'static str),
    /// The store failed; nothing was done.
    #[error("the store failed: {0}")]
    Store(String),
    /// The store is unreachable; nothing was done.
    #[error("{0}")]
    StoreUnavailable(String),
    /// The connection to the store was lost between the command and its reply, or a write to the
    /// disk was not confirmed: the command may or may not have been executed.
    #[error("{0}")]
    OutcomeUnknown(String),
    /// The engine is stopping; nothing was done.
    #[error("the server is shutting down; try another server")]
    ShuttingDown,
}

fn besides(differs: &str) -> String {
    if differs.is_empty() {
        return String::new();
    }
    format!(" with other options: {differs}; change it with `set`")
}

impl Error {
    /// Whether the same command may succeed a little later.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Error::Overloaded(_)
                | Error::StoreUnavailable(_)
                | Error::OutcomeUnknown(_)
                | Error::ShuttingDown
        )
    }
}

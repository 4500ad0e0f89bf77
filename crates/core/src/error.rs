//! Why a command was refused.

use crate::semaphore::SemaphoreKey;
use crate::session::SessionId;
use crate::task::TaskId;
use crate::tube::TubeName;

/// What the core's operations return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a command was refused. Each variant is a meaning the caller can act on. A refused command has
/// changed nothing; only after [`Error::OutcomeUnknown`] it may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No tube of this name.
    #[error("tube '{0}' does not exist; create it first")]
    TubeNotFound(TubeName),
    /// A tube of this name is there already.
    #[error("tube '{0}' already exists")]
    TubeExists(TubeName),
    /// The number of a queue belongs to a tube, and the two stay together for good.
    #[error(
        "queue number {num} belongs to tube '{tube}' for good; a number has one tube, a tube one number"
    )]
    QueueNumTaken {
        /// Whose it is.
        tube: TubeName,
        /// The number that this tube has.
        num: u32,
    },
    /// The tube cannot be dropped while somebody holds its tasks.
    #[error("tube '{0}' has taken tasks; finish or release them before dropping it")]
    TubeHasTaken(TubeName),
    /// The tube cannot be dropped while consumers wait on it.
    #[error("tube '{0}' has waiting consumers; stop them before dropping it")]
    TubeHasConsumers(TubeName),
    /// The tube has as many tasks as it may have.
    #[error(
        "tube '{tube}' has no room for that (capacity {capacity}); take some, raise its capacity, or put fewer at once"
    )]
    TubeFull {
        /// The tube that is full.
        tube: TubeName,
        /// How many tasks it may have.
        capacity: u64,
    },
    /// There are as many tubes as there may be, in the store or of one user.
    #[error("the limit of {0} tubes is reached; drop some first")]
    TooManyTubes(usize),
    /// The tube has no semaphore to which a task could be important.
    #[error(
        "tube '{0}' has no semaphore, so a task there cannot have a semaphore_priority; use pri"
    )]
    NoSemaphore(TubeName),
    /// No semaphore of this key.
    #[error("semaphore '{0}' does not exist; create it first")]
    SemaphoreNotFound(SemaphoreKey),
    /// A semaphore of this key is there already, and not as it was wanted.
    #[error("semaphore '{key}' already exists{}", besides(differs))]
    SemaphoreExists {
        /// Its key.
        key: SemaphoreKey,
        /// Which of the named options differ; perhaps none.
        differs: String,
    },
    /// The semaphore cannot be dropped while tasks hold its grants or wait for them.
    #[error(
        "tasks hold grants of semaphore '{0}' or wait for them; release them first, or drop it with force"
    )]
    SemaphoreInUse(SemaphoreKey),
    /// The semaphore cannot be dropped while it is before a tube.
    #[error("semaphore '{key}' is before tube '{tube}'; drop the tube first")]
    SemaphoreHasTube {
        /// The semaphore.
        key: SemaphoreKey,
        /// One of the tubes behind it.
        tube: TubeName,
    },
    /// The store has as many semaphores as it may have.
    #[error("the store has {0} semaphores, the most it may have; drop some first")]
    TooManySemaphores(usize),
    /// No task of this id in the tube.
    #[error("task {1} not found in tube '{0}'")]
    TaskNotFound(TubeName, TaskId),
    /// The tube's kind does not have this verb.
    #[error("a {kind} tube does not support {verb}")]
    Unsupported {
        /// The tube's kind.
        kind: &'static str,
        /// What was asked.
        verb: &'static str,
    },
    /// Something in the command itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Something in the command is larger than its limit.
    #[error("{what} is {size}, the limit is {limit}; {advice}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        size: usize,
        /// How large it may be.
        limit: usize,
        /// What to do about it.
        advice: &'static str,
    },
    /// No live session of this identity.
    #[error("session {0} is unknown or has expired")]
    SessionUnknown(SessionId),
    /// Too much is waiting; nothing was done.
    #[error("overloaded: {0}; try again a little later")]
    Overloaded(&'static str),
    /// The store could not do it; nothing was done.
    #[error("the store failed: {0}")]
    Store(String),
    /// The store cannot be reached for now; nothing was done.
    #[error("{0}")]
    StoreAway(String),
    /// The store was lost after it was asked and before it answered: it was done or it was not.
    #[error("{0}")]
    OutcomeUnknown(String),
    /// The engine is stopping; nothing was done.
    #[error("the server is shutting down; try again on the next one")]
    ShuttingDown,
}

fn besides(differs: &str) -> String {
    if differs.is_empty() {
        return String::new();
    }
    format!(" with other options: {differs}; change it with `set`")
}

impl Error {
    /// Whether the same may go well a little later, when who was asked is back or less busy.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Error::Overloaded(_)
                | Error::StoreAway(_)
                | Error::OutcomeUnknown(_)
                | Error::ShuttingDown
        )
    }
}

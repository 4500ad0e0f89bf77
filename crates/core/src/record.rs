//! A task as it is stored: what must survive a crash, and nothing else.

use std::sync::Arc;

use crate::failure::Failures;
use crate::finished::Finished;
use crate::key::HeldKey;
use crate::semaphore::Priority;
use crate::task::{Body, TaskId};
use crate::time::{Span, Timestamp};

/// A task, as it is stored. A delivery is not stored: after a crash the task is ready again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its id in the tube.
    pub id: TaskId,
    /// Its stored state.
    pub state: StoredState,
    /// Priority: a smaller number is delivered first.
    pub pri: u64,
    /// When it was put.
    pub created: Timestamp,
    /// When it expires if it is not taken.
    pub expires: Timestamp,
    /// How long a delivery may last.
    pub ttr: Span,
    /// Earlier deliveries that ended without ack or bury.
    pub attempts: u32,
    /// When it had become ready for the latest of them.
    pub previous_start: Option<Timestamp>,
    /// Its sub-queue, in tubes that have them.
    pub subqueue: Option<Arc<str>>,
    /// Its priority in the semaphore of its tube, if its put gave one.
    pub semaphore_priority: Option<Priority>,
    /// After how many failed deliveries it is buried, if its put said so.
    pub attempts_max: Option<u32>,
    /// Its latest failures.
    pub failures: Option<Failures>,
    /// How it ended, if it is done.
    pub finished: Option<Finished>,
    /// Its unique key. A change shows it only for a done task; see [`Changes::keys`](crate::Changes::keys).
    pub key: Option<Arc<HeldKey>>,
    /// How large its body is, as [`Body::bytes`] counts.
    pub body_bytes: u32,
    /// Payload and meta; `None` when they are on disk only.
    pub body: Option<Body>,
}

/// The states that are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredState {
    /// Can be taken, since this moment.
    Ready(Timestamp),
    /// Delayed until this moment.
    Delayed(Timestamp),
    /// Delayed until this moment of wall time, which its put named; its expiry is wall time too.
    Scheduled(Timestamp),
    /// Buried by a command.
    Buried,
    /// Buried because its attempts are used up.
    DeadLetter,
    /// Done, and kept.
    Done,
}

/// The change of one task on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Insert(Record),
    /// Anything but its body changed.
    Update(Record),
    /// Its body changed too: a put replaced it.
    Replace(Record),
    /// It is removed.
    Remove(TaskId),
    /// It was added and removed within the batch: only its id is used up.
    Passed(TaskId),
}

impl Change {
    /// The task.
    pub fn id(&self) -> TaskId {
        match self {
            Change::Insert(record) | Change::Update(record) | Change::Replace(record) => record.id,
            Change::Remove(id) | Change::Passed(id) => *id,
        }
    }

    /// Whether it is a new done task with a key.
    pub(crate) fn is_keyed_done(&self) -> bool {
        matches!(self, Change::Insert(record) if record.key.is_some())
    }
}

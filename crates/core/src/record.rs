//! A task as it is written down: what must survive a crash, and nothing else.

use std::sync::Arc;

use crate::semaphore::Priority;
use crate::task::{Body, TaskId};
use crate::time::{Span, Timestamp};

/// A task as it is written down. That it is taken is not: after a crash it is ready again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number in the tube.
    pub id: TaskId,
    /// Where it stands.
    pub standing: StoredState,
    /// Smaller goes first.
    pub pri: u64,
    /// When it was put.
    pub created: Timestamp,
    /// When it dies if nobody takes it.
    pub expires: Timestamp,
    /// How long a delivery may last.
    pub ttr: Span,
    /// Earlier deliveries that ended without ack or bury.
    pub attempts: u32,
    /// When it had become ready for the latest of them.
    pub previous_start: Option<Timestamp>,
    /// Its sub-queue, in tubes that have them.
    pub subqueue: Option<Arc<str>>,
    /// How important it is to the semaphore before its tube, if its put said so.
    pub semaphore_priority: Option<Priority>,
    /// How large its body is, as [`Body::bytes`] counts.
    pub body_bytes: u32,
    /// What it carries; `None` when that is on disk only.
    pub body: Option<Body>,
}

/// The states that are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredState {
    /// May be taken, since this moment.
    Ready(Timestamp),
    /// Waits for this moment.
    Delayed(Timestamp),
    /// Waits for this moment of wall time, which its put named; when it dies is wall time too.
    Scheduled(Timestamp),
    /// Put aside by somebody.
    Buried,
    /// Put aside because its attempts are used up.
    DeadLetter,
}

/// What a batch changed about one task on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Insert(Record),
    /// Something but its body changed.
    Update(Record),
    /// It is gone.
    Remove(TaskId),
    /// It came and went within the batch: only its id is used up.
    Passed(TaskId),
}

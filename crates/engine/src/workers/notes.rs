//! Notes what the registry of workers must know about the commands of a batch when their replies
//! arrive: the store gets the commands themselves.

use std::ops::Range;
use std::sync::Arc;

use taskyard_core::TubeName;

use super::holders::TaskKey;
use super::registry::WorkerNumber;
use crate::series::Ending;

/// The notes of one batch.
#[derive(Debug, Default)]
pub(crate) struct WorkerNotes {
    /// Takes by named workers and finishes, each with the place of its reply, in order.
    pub(super) commands: Vec<(usize, WorkerNote)>,
    /// The items of all finishes, in order.
    pub(super) finishes: Vec<NotedDelivery>,
}

/// One command.
#[derive(Debug)]
pub(super) enum WorkerNote {
    Take(NotedWorker, TubeName),
    /// With the places of its items in the notes.
    Finish(Range<usize>),
}

/// A worker, by its number if it has one.
#[derive(Debug)]
pub(super) enum NotedWorker {
    Known(WorkerNumber),
    New(Arc<str>),
}

/// One item of a finish.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotedDelivery {
    pub task: TaskKey,
    /// `None` if the delivery goes on.
    pub ending: Option<Ending>,
    /// Whether the caller proved that it holds the task; otherwise it may be an operator.
    pub is_holder: bool,
}

impl WorkerNotes {
    /// Removes all notes.
    pub(super) fn clear(&mut self) {
        self.commands.clear();
        self.finishes.clear();
    }
}

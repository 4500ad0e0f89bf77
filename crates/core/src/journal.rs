//! What a batch touched: enough to write the change down, and to undo it.

use crate::machine::tubes::Tube;
use crate::record::Change;
use crate::semaphore::SemaphoreChanges;
use crate::session::{Session, SessionId};
use crate::stats::TubeStats;
use crate::task::TaskId;
use crate::tasks::{Loose, Tasks};
use crate::time::Span;
use crate::tube::{TubeName, TubeOptions};

/// One thing a batch touched, as it was before. Nearly all are tasks, so their size is what counts and
/// nothing is boxed for them.
#[derive(Debug)]
pub(crate) enum Entry {
    /// A task, at its first touch in the batch; `None` when it is new.
    Task { tube: u32, id: TaskId, before: Option<Loose> },
    /// The numbers of a tube, at its first touch in the batch.
    Stats { tube: u32, before: TubeStats },
    /// The options of a tube.
    Options { tube: u32, before: TubeOptions },
    /// The name and the queue's number of a tube.
    Named { tube: u32, before: Box<(TubeName, Option<u32>)> },
    /// A tube was made.
    Created { tube: u32 },
    /// A tube was dropped.
    Dropped { tube: u32, before: Box<Tube> },
    /// All tasks of a tube were removed.
    Truncated { tube: u32, before: Box<Tasks> },
    /// A session, before each change.
    Session { id: SessionId, before: Option<Session> },
    /// The time sessions keep their tasks.
    SessionTtr { before: Span },
}

/// The entries of the batch under way. Off until [`crate::Machine::begin`].
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub on: bool,
    /// The number of the batch; slots and tubes noted in it carry this number.
    pub batch: u32,
    pub entries: Vec<Entry>,
}

impl Journal {
    pub fn push(&mut self, entry: impl FnOnce() -> Entry) {
        if self.on {
            self.entries.push(entry());
        }
    }
}

/// What a batch changed that must be written down, in an order that can be applied as it stands:
/// first tubes that lost all tasks, then tubes, then tasks.
#[derive(Debug, Default)]
pub struct Changes {
    /// Tubes whose tasks of before are all gone.
    pub cleared: Vec<u32>,
    /// Tubes as they are now; `None` is gone.
    pub tubes: Vec<(u32, Option<TubeRecord>)>,
    /// Changed tasks with the numbers of their tubes, each at most once.
    pub tasks: Vec<(u32, Change)>,
    /// Semaphores, who stands there, and events.
    pub semaphores: SemaphoreChanges,
}

/// A tube as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TubeRecord {
    /// Its name.
    pub name: TubeName,
    /// What it does.
    pub options: TubeOptions,
    /// The id its next task gets.
    pub next_id: u64,
}

//! Records what a batch changed: enough to store the changes, and to undo them.

use crate::done::DoneTask;
use crate::key::{EndedKey, KeyRecord};
use crate::machine::tubes::Tube;
use crate::rate::Bucket;
use crate::record::Change;
use crate::semaphore::SemaphoreChanges;
use crate::session::{Session, SessionId};
use crate::stats::TubeStats;
use crate::stored_schedule::{ScheduleName, StoredSchedule};
use crate::task::TaskId;
use crate::tasks::{DetachedTask, Tasks};
use crate::time::Span;
use crate::tube::{TubeName, TubeOptions};

/// One change, with the previous value. Nearly all are tasks, so their size matters and nothing is
/// boxed for them.
#[derive(Debug)]
pub(crate) enum Entry {
    /// A task, at its first change in the batch; `None` when it is new.
    Task { tube: u32, id: TaskId, before: Option<DetachedTask> },
    /// A done task was removed that an earlier batch had added.
    DoneRemoved { tube: u32, before: Box<DoneTask> },
    /// The key of an ended task was added (`None` before) or forgotten.
    EndedKey { tube: u32, id: TaskId, before: Option<Box<EndedKey>> },
    /// The statistics of a tube, at their first change in the batch.
    Stats { tube: u32, before: TubeStats },
    /// The options of a tube.
    Options { tube: u32, before: TubeOptions },
    /// The name and the queue number of a tube.
    Named { tube: u32, before: Box<(TubeName, Option<u32>)> },
    /// The bucket of a tube with a rate limit, before each change.
    Bucket { tube: u32, before: Option<Bucket> },
    /// A schedule, before each change.
    Schedule { name: ScheduleName, before: Option<Box<StoredSchedule>> },
    /// A tube was created.
    Created { tube: u32 },
    /// A tube was dropped.
    Dropped { tube: u32, before: Box<Tube> },
    /// All tasks of a tube were removed.
    Truncated { tube: u32, before: Box<Tasks> },
    /// A session, before each change.
    Session { id: SessionId, before: Option<Session> },
    /// How long sessions keep their tasks.
    SessionTtr { before: Span },
}

/// The entries of the current batch. Off until [`crate::Machine::begin`].
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub on: bool,
    /// The number of the batch; slots and tubes recorded in it carry this number.
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

/// The changes of a batch to be stored, in an order in which they can be applied: first tubes that
/// lost all tasks, then tubes, then tasks.
#[derive(Debug, Default)]
pub struct Changes {
    /// Tubes whose previous tasks are all removed.
    pub cleared: Vec<u32>,
    /// Tubes as they are now; `None` is removed.
    pub tubes: Vec<(u32, Option<TubeRecord>)>,
    /// Changed tasks with the numbers of their tubes, each at most once.
    pub tasks: Vec<(u32, Change)>,
    /// Changed keys with the numbers of their tubes and the tasks that have or had them, each at most once.
    /// A cleared tube has lost all of them.
    pub keys: Vec<(u32, TaskId, KeyChange)>,
    /// The buckets of tubes that are otherwise unchanged.
    pub buckets: Vec<(u32, Bucket)>,
    /// Changed schedules as they are now, each once; `None` is removed.
    pub schedules: Vec<(ScheduleName, Option<StoredSchedule>)>,
    /// Semaphores, their entries and events.
    pub semaphores: SemaphoreChanges,
}

/// The change of the stored key of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// It is new.
    Insert(KeyRecord),
    /// It changed.
    Update(KeyRecord),
    /// It is removed.
    Remove,
}

/// A tube, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TubeRecord {
    /// Its name.
    pub name: TubeName,
    /// Its options.
    pub options: TubeOptions,
    /// The id of its next task.
    pub next_id: u64,
    /// The bucket of its rate limit; `None` is full.
    pub bucket: Option<Bucket>,
}

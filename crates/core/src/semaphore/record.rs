//! Semaphores as they are stored: what must survive a crash.

use crate::task::TaskId;
use crate::time::Timestamp;

use super::command::{EventId, EventKind};
use super::entry::QueueEntry;
use super::key::{Grant, SemaphoreKey};
use super::options::SemaphoreOptions;

/// A semaphore, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreRecord {
    /// Its key.
    pub key: SemaphoreKey,
    /// Its options.
    pub options: SemaphoreOptions,
    /// The number of its latest grant.
    pub grant_seq: u64,
    /// When to check again whether a holder within its minimum time can be asked.
    pub recheck_at: Option<Timestamp>,
}

impl SemaphoreRecord {
    /// Whether only the number of the latest grant differs.
    pub(super) fn differs_in_grants(&self, other: &SemaphoreRecord) -> bool {
        let SemaphoreRecord { key, options, grant_seq, recheck_at } = self;
        *grant_seq != other.grant_seq
            && (key, options, recheck_at) == (&other.key, &other.options, &other.recheck_at)
    }
}

/// An entry of a semaphore, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntryRecord {
    /// The number of the semaphore.
    pub semaphore: u32,
    /// The task.
    pub task: TaskId,
    /// The entry.
    pub entry: QueueEntry,
}

/// An event, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// The number of its semaphore.
    pub semaphore: u32,
    /// The task.
    pub task: TaskId,
    /// The grant.
    pub grant: Grant,
    /// What happened.
    pub kind: EventKind,
    /// How often it was sent.
    pub attempts: u32,
    /// When it is sent next.
    pub next_at: Timestamp,
}

/// The change of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row<T> {
    /// It is new.
    Insert(T),
    /// It changed.
    Update(T),
    /// It is removed.
    Remove,
}

/// The changes of a batch that must be stored; each row at most once.
#[derive(Debug, Default)]
pub struct SemaphoreChanges {
    /// Semaphores by number.
    pub semaphores: Vec<(u32, Row<SemaphoreRecord>)>,
    /// Semaphores of which only the number of the latest grant changed: a store that reserved the
    /// number need not write them.
    pub granted: Vec<(u32, SemaphoreRecord)>,
    /// Tasks by their sequence number, which is never reused.
    pub tasks: Vec<(u64, Row<QueueEntryRecord>)>,
    /// Events.
    pub events: Vec<(EventId, Row<EventRecord>)>,
}

impl SemaphoreChanges {
    /// Whether nothing must be stored.
    pub fn is_empty(&self) -> bool {
        let semaphores = self.semaphores.is_empty() && self.granted.is_empty();
        semaphores && self.tasks.is_empty() && self.events.is_empty()
    }
}

//! Semaphores as they are written down: what must survive a crash.

use crate::task::TaskId;
use crate::time::Timestamp;

use super::command::{EventId, EventKind};
use super::key::{Grant, SemaphoreKey};
use super::options::SemaphoreOptions;
use super::place::Place;

/// A semaphore as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreRecord {
    /// Its key.
    pub key: SemaphoreKey,
    /// What it does.
    pub options: SemaphoreOptions,
    /// The number of its latest grant.
    pub grant_seq: u64,
    /// When to look again whether a holder that was too young can be asked.
    pub recheck_at: Option<Timestamp>,
}

/// Who stands in a semaphore, as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceRecord {
    /// The number of the semaphore.
    pub semaphore: u32,
    /// Which task.
    pub task: TaskId,
    /// Where it stands.
    pub place: Place,
}

/// An event as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// The number of its semaphore.
    pub semaphore: u32,
    /// For which task.
    pub task: TaskId,
    /// About which grant.
    pub grant: Grant,
    /// What happened.
    pub kind: EventKind,
    /// How often it was handed out.
    pub attempts: u32,
    /// When it is handed out next.
    pub next_at: Timestamp,
}

/// What a batch changed about one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row<T> {
    /// It is new.
    Insert(T),
    /// It changed.
    Update(T),
    /// It is gone.
    Remove,
}

/// What a batch changed that must be written down; each thing at most once.
#[derive(Debug, Default)]
pub struct SemaphoreChanges {
    /// Semaphores by number.
    pub semaphores: Vec<(u32, Row<SemaphoreRecord>)>,
    /// Tasks by the number of their arrival, which no other task ever gets.
    pub tasks: Vec<(u64, Row<PlaceRecord>)>,
    /// Events.
    pub events: Vec<(EventId, Row<EventRecord>)>,
}

impl SemaphoreChanges {
    /// Whether nothing must be written.
    pub fn is_empty(&self) -> bool {
        self.semaphores.is_empty() && self.tasks.is_empty() && self.events.is_empty()
    }
}

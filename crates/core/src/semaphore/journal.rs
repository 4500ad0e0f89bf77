//! Records the previous state of what a batch changed: enough to store the changes, and to undo
//! them.

use hashbrown::HashMap;

use crate::task::TaskId;

use super::command::EventId;
use super::entry::QueueEntry;
use super::record::{EventRecord, SemaphoreRecord};

/// What the current batch changed, each with its state before the first change; `None` was absent.
#[derive(Debug, Default)]
pub(super) struct SemaphoreJournal {
    pub on: bool,
    pub semaphores: HashMap<u32, Option<SemaphoreRecord>>,
    pub tasks: HashMap<(u32, TaskId), Option<QueueEntry>>,
    pub events: HashMap<EventId, Option<EventRecord>>,
}

impl SemaphoreJournal {
    /// Clears the journal.
    pub fn clear(&mut self, on: bool) {
        self.on = on;
        self.semaphores.clear();
        self.tasks.clear();
        self.events.clear();
    }
}

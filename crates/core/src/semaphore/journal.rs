//! What a batch touched, as it was before: enough to write the change down, and to undo it.

use hashbrown::HashMap;

use crate::task::TaskId;

use super::command::EventId;
use super::place::Place;
use super::record::{EventRecord, SemaphoreRecord};

/// What the batch under way touched, each thing as it was before its first change; `None` was not there.
#[derive(Debug, Default)]
pub(super) struct Journal {
    pub on: bool,
    pub semaphores: HashMap<u32, Option<SemaphoreRecord>>,
    pub tasks: HashMap<(u32, TaskId), Option<Place>>,
    pub events: HashMap<EventId, Option<EventRecord>>,
}

impl Journal {
    /// Begins anew.
    pub fn clear(&mut self, on: bool) {
        self.on = on;
        self.semaphores.clear();
        self.tasks.clear();
        self.events.clear();
    }
}

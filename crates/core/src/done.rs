//! The done tasks that a tube keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeFrom;

use crate::finished::Finished;
use crate::record::Record;
use crate::task::TaskId;
use crate::time::Timestamp;
use crate::tube::TubeOptions;

/// The done tasks of one tube, by id and by the time of their end.
#[derive(Debug, Default)]
pub(crate) struct DoneTasks {
    by_id: BTreeMap<TaskId, Box<DoneTask>>,
    by_end: BTreeSet<(Timestamp, TaskId)>,
}

/// A done task.
#[derive(Clone, Debug)]
pub(crate) struct DoneTask {
    pub record: Record,
    /// When it ended.
    pub at: Timestamp,
    /// The batch that added it.
    pub noted: u32,
}

impl DoneTask {
    /// The done task of a record; `None` if the record does not say how it ended.
    pub fn new(record: Record, noted: u32) -> Option<Box<Self>> {
        let at = record.finished.as_ref().map(Finished::at)?;
        Some(Box::new(DoneTask { record, at, noted }))
    }
}

impl TubeOptions {
    /// Whether a task that ended then is still kept: tasks over age cannot be seen, and are removed
    /// by a tick.
    pub fn keeps(&self, ended: Timestamp, now: Timestamp) -> bool {
        self.keep_done.is_some_and(|keep| ended + keep > now)
    }

    /// How many of this many done tasks are too many. They are removed in groups: none until there
    /// are an eighth more than allowed.
    pub fn done_excess(&self, count: u64) -> u64 {
        if self.keep_done.is_none() {
            return count;
        }
        let most = self.keep_done_max;
        if count > most.saturating_add(most / 8) { count - most } else { 0 }
    }
}

impl DoneTasks {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn get(&self, id: TaskId) -> Option<&DoneTask> {
        // Usually empty: this runs for every removed task.
        if self.by_id.is_empty() { None } else { self.by_id.get(&id).map(|done| &**done) }
    }

    pub fn get_mut(&mut self, id: TaskId) -> Option<&mut DoneTask> {
        self.by_id.get_mut(&id).map(|done| &mut **done)
    }

    /// A done task that is not over age.
    pub fn kept(&self, options: &TubeOptions, now: Timestamp, id: TaskId) -> Option<&DoneTask> {
        self.get(id).filter(|done| options.keeps(done.at, now))
    }

    /// Done tasks by id.
    pub fn range(&self, ids: RangeFrom<TaskId>) -> impl Iterator<Item = &DoneTask> {
        self.by_id.range(ids).map(|(_, done)| &**done)
    }

    /// The one that ended first.
    pub fn oldest(&self) -> Option<(Timestamp, TaskId)> {
        self.by_end.first().copied()
    }

    pub fn insert(&mut self, done: Box<DoneTask>) {
        self.by_end.insert((done.at, done.record.id));
        self.by_id.insert(done.record.id, done);
    }

    pub fn remove(&mut self, id: TaskId) -> Option<Box<DoneTask>> {
        if self.by_id.is_empty() {
            return None;
        }
        let done = self.by_id.remove(&id)?;
        self.by_end.remove(&(done.at, id));
        Some(done)
    }

    pub fn forget_notes(&mut self) {
        self.by_id.values_mut().for_each(|done| done.noted = 0);
    }

    /// When a tick has to remove some.
    pub fn due(&self, options: &TubeOptions) -> Option<Timestamp> {
        let (ended, _) = self.oldest()?;
        let due = match options.keep_done {
            Some(keep) if options.done_excess(self.len() as u64) == 0 => ended + keep,
            _ => ended,
        };
        (due != Timestamp::NEVER).then_some(due)
    }
}

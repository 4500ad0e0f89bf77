//! The tasks of one semaphore, found by id, by rank and by deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use hashbrown::HashMap;

use crate::ranked_set::RankedSet;
use crate::task::TaskId;
use crate::time::Timestamp;

use super::command::MemberGroup;
use super::entry::{QueueEntry, Rank, Status};

/// The tasks of one semaphore. A task is always in exactly the indexes of its status, because it
/// only changes through [`SemaphoreQueue::set`], which removes it from them and adds it again.
#[derive(Debug, Default)]
pub(super) struct SemaphoreQueue {
    tasks: HashMap<TaskId, QueueEntry>,
    waiting: RankedSet<(Rank, TaskId)>,
    /// Holders that may be asked to release.
    acquired: BTreeMap<Rank, TaskId>,
    revoking: BTreeMap<Rank, TaskId>,
    /// Holders that declined to release.
    pinned: BTreeMap<Rank, TaskId>,
    deadlines: BTreeSet<(Timestamp, TaskId)>,
    delayed: usize,
}

impl SemaphoreQueue {
    pub fn get(&self, task: TaskId) -> Option<&QueueEntry> {
        self.tasks.get(&task)
    }

    /// Sets or removes the entry of a task; returns the previous one.
    pub fn set(&mut self, task: TaskId, entry: Option<QueueEntry>) -> Option<QueueEntry> {
        let before = self.tasks.remove(&task);
        if let Some(before) = &before {
            self.unlink(task, before);
        }
        if let Some(entry) = entry {
            self.link(task, &entry);
            self.tasks.insert(task, entry);
        }
        before
    }

    fn link(&mut self, task: TaskId, entry: &QueueEntry) {
        match entry.status() {
            Status::Wait => _ = self.waiting.insert((entry.rank(), task)),
            Status::Delayed => self.delayed += 1,
            Status::Acquired if is_pinned(entry) => _ = self.pinned.insert(entry.rank(), task),
            Status::Acquired => _ = self.acquired.insert(entry.rank(), task),
            Status::TryRelease => _ = self.revoking.insert(entry.rank(), task),
        }
        if entry.deadline() != Timestamp::NEVER {
            self.deadlines.insert((entry.deadline(), task));
        }
    }

    fn unlink(&mut self, task: TaskId, entry: &QueueEntry) {
        match entry.status() {
            Status::Wait => _ = self.waiting.remove(&(entry.rank(), task)),
            Status::Delayed => self.delayed -= 1,
            Status::Acquired if is_pinned(entry) => _ = self.pinned.remove(&entry.rank()),
            Status::Acquired => _ = self.acquired.remove(&entry.rank()),
            Status::TryRelease => _ = self.revoking.remove(&entry.rank()),
        }
        self.deadlines.remove(&(entry.deadline(), task));
    }

    /// The number of waiting tasks.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The number of waiting tasks before this rank.
    pub fn waiting_before(&self, rank: Rank) -> usize {
        self.waiting.rank(&(rank, TaskId(0)))
    }

    /// The number of tasks that will be queued again.
    pub fn delayed(&self) -> usize {
        self.delayed
    }

    /// The number of holders that were not asked to release.
    pub fn acquired(&self) -> usize {
        self.acquired.len() + self.pinned.len()
    }

    /// The number of holders that may be asked to release: without those that declined.
    pub fn unpinned(&self) -> usize {
        self.acquired.len()
    }

    /// The number of holders that were asked to release.
    pub fn revoking(&self) -> usize {
        self.revoking.len()
    }

    /// The number of holders.
    pub fn held(&self) -> usize {
        self.acquired() + self.revoking()
    }

    /// The waiting task at this index of the queue, from 0.
    pub fn waiter(&self, index: usize) -> Option<TaskId> {
        self.waiting.nth(index).map(|waiter| waiter.1)
    }

    /// The worst holder that may be asked to release.
    pub fn worst_acquired(&self) -> Option<TaskId> {
        self.acquired.last_key_value().map(|(_, task)| *task)
    }

    /// The best holder that was asked to release.
    pub fn best_revoking(&self) -> Option<TaskId> {
        self.revoking.first_key_value().map(|(_, task)| *task)
    }

    /// The best holder that declined to release.
    pub fn best_pinned(&self) -> Option<TaskId> {
        self.pinned.first_key_value().map(|(_, task)| *task)
    }

    /// The number of holders that declined, or were asked to release, and are better than this
    /// rank; counts up to `most`.
    pub fn exempt_before(&self, rank: Rank, most: usize) -> usize {
        let before = |order: &BTreeMap<Rank, TaskId>| order.range(..rank).take(most).count();
        (before(&self.pinned) + before(&self.revoking)).min(most)
    }

    /// The best members of a group behind this rank, at most `count`.
    pub fn members(&self, part: MemberGroup, after: Option<Rank>, count: usize) -> Vec<TaskId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let orders: &[&BTreeMap<Rank, TaskId>] = match part {
            MemberGroup::Holders => &[&self.acquired, &self.pinned, &self.revoking],
            MemberGroup::Waiting => {
                let from = after.map_or(0, |rank| self.waiting.rank(&(rank, TaskId(u64::MAX))));
                let members = (from..).map_while(|place| self.waiter(place));
                return members.take(count).collect();
            }
        };
        let behind = |order: &&BTreeMap<Rank, TaskId>| -> Vec<(Rank, TaskId)> {
            let behind = order.range((from, Bound::Unbounded)).take(count);
            behind.map(|(rank, task)| (*rank, *task)).collect()
        };
        let mut found: Vec<_> = orders.iter().flat_map(behind).collect();
        found.sort_unstable();
        found.into_iter().take(count).map(|(_, task)| task).collect()
    }

    /// When the next change is due.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|deadline| deadline.0)
    }

    /// Tasks that are due, the earliest first, at most `most`.
    pub fn due(&self, now: Timestamp, most: usize) -> Vec<TaskId> {
        let due = self.deadlines.iter().take_while(|deadline| deadline.0 <= now);
        due.map(|deadline| deadline.1).take(most).collect()
    }

    /// The numbers of all tasks, in no order.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.tasks.keys().copied()
    }

    /// All tasks, in no order.
    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = (TaskId, &QueueEntry)> {
        self.tasks.iter().map(|(task, entry)| (*task, entry))
    }
}

fn is_pinned(entry: &QueueEntry) -> bool {
    entry.hold().is_some_and(|hold| hold.pinned)
}

//! The tasks of one semaphore, found by id, by rank and by deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use hashbrown::HashMap;

use crate::task::TaskId;
use crate::time::Timestamp;

use super::command::LinePart;
use super::place::{Place, Rank, Status};

/// The tasks of one semaphore. A task is always in exactly the orders of its status, because it only changes
/// through [`Line::set`], which takes it out of them and puts it back.
#[derive(Debug, Default)]
pub(super) struct Line {
    tasks: HashMap<TaskId, Place>,
    waiting: BTreeMap<Rank, TaskId>,
    /// Holders that may be asked to release.
    acquired: BTreeMap<Rank, TaskId>,
    revoking: BTreeMap<Rank, TaskId>,
    /// Holders that declined to release.
    pinned: BTreeMap<Rank, TaskId>,
    deadlines: BTreeSet<(Timestamp, TaskId)>,
    delayed: usize,
}

impl Line {
    pub fn get(&self, task: TaskId) -> Option<&Place> {
        self.tasks.get(&task)
    }

    /// Puts a task where it stands now, or takes it away; hands back where it stood.
    pub fn set(&mut self, task: TaskId, place: Option<Place>) -> Option<Place> {
        let before = self.tasks.remove(&task);
        if let Some(before) = &before {
            self.unlink(task, before);
        }
        if let Some(place) = place {
            self.link(task, &place);
            self.tasks.insert(task, place);
        }
        before
    }

    fn link(&mut self, task: TaskId, place: &Place) {
        match place.status() {
            Status::Wait => _ = self.waiting.insert(place.rank(), task),
            Status::Delayed => self.delayed += 1,
            Status::Acquired if is_pinned(place) => _ = self.pinned.insert(place.rank(), task),
            Status::Acquired => _ = self.acquired.insert(place.rank(), task),
            Status::TryRelease => _ = self.revoking.insert(place.rank(), task),
        }
        if place.deadline() != Timestamp::NEVER {
            self.deadlines.insert((place.deadline(), task));
        }
    }

    fn unlink(&mut self, task: TaskId, place: &Place) {
        match place.status() {
            Status::Wait => _ = self.waiting.remove(&place.rank()),
            Status::Delayed => self.delayed -= 1,
            Status::Acquired if is_pinned(place) => _ = self.pinned.remove(&place.rank()),
            Status::Acquired => _ = self.acquired.remove(&place.rank()),
            Status::TryRelease => _ = self.revoking.remove(&place.rank()),
        }
        self.deadlines.remove(&(place.deadline(), task));
    }

    /// How many stand in line.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many will stand in line again.
    pub fn delayed(&self) -> usize {
        self.delayed
    }

    /// How many hold a grant and were not asked to release.
    pub fn acquired(&self) -> usize {
        self.acquired.len() + self.pinned.len()
    }

    /// How many hold a grant and may be asked to release: none whose decline stands.
    pub fn unpinned(&self) -> usize {
        self.acquired.len()
    }

    /// How many hold a grant and were asked to release.
    pub fn revoking(&self) -> usize {
        self.revoking.len()
    }

    /// How many hold a grant.
    pub fn held(&self) -> usize {
        self.acquired() + self.revoking()
    }

    /// Who stands at this place of the line, from 0.
    pub fn waiter(&self, place: usize) -> Option<TaskId> {
        self.waiting.values().nth(place).copied()
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

    /// How many holders that declined, or were asked to release, are better than this rank; counts up to `most`.
    pub fn exempt_before(&self, rank: Rank, most: usize) -> usize {
        let before = |order: &BTreeMap<Rank, TaskId>| order.range(..rank).take(most).count();
        (before(&self.pinned) + before(&self.revoking)).min(most)
    }

    /// The best of a part of the line that are behind this rank, at most so many.
    pub fn members(&self, part: LinePart, after: Option<Rank>, count: usize) -> Vec<TaskId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let orders: &[&BTreeMap<Rank, TaskId>] = match part {
            LinePart::Holders => &[&self.acquired, &self.pinned, &self.revoking],
            LinePart::Waiting => &[&self.waiting],
        };
        let behind = |order: &&BTreeMap<Rank, TaskId>| -> Vec<(Rank, TaskId)> {
            let behind = order.range((from, Bound::Unbounded)).take(count);
            behind.map(|(rank, task)| (*rank, *task)).collect()
        };
        let mut found: Vec<_> = orders.iter().flat_map(behind).collect();
        found.sort_unstable();
        found.into_iter().take(count).map(|(_, task)| task).collect()
    }

    /// When time alone next changes something.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|deadline| deadline.0)
    }

    /// Tasks whose moment has come, the earliest first, at most so many.
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
    pub fn all(&self) -> impl Iterator<Item = (TaskId, &Place)> {
        self.tasks.iter().map(|(task, place)| (*task, place))
    }
}

fn is_pinned(place: &Place) -> bool {
    place.hold().is_some_and(|hold| hold.pinned)
}

//! Tasks of tubes that stand in a semaphore.
//!
//! A tube may have a semaphore before it: its tasks are ready only while they hold a grant. They stand in the
//! same line as everybody else, under numbers that no caller can name, and nobody is told of their grants: the tube
//! sees for itself.

use crate::task::TaskId;
use crate::time::Timestamp;

use super::book::Semaphores;
use super::key::{Priority, SemaphoreKey};
use super::place::Status;

/// Sets the tasks of tubes apart from the numbers that callers choose.
const GATED: u64 = 1 << 63;
/// A tube number above a task id, as in the key of a row on disk.
const ID_BITS: u32 = 49;

/// The largest number that a caller may give a task in a semaphore.
pub const OWN_TASK_MAX: u64 = GATED - 1;

/// The number under which a task of a tube stands in a semaphore.
pub(crate) fn gated(tube: u32, id: TaskId) -> TaskId {
    TaskId(GATED | u64::from(tube) << ID_BITS | id.0)
}

/// Which task of which tube stands under this number, if one does.
pub(crate) fn tube_task(task: TaskId) -> Option<(u32, TaskId)> {
    let tube = ((task.0 & !GATED) >> ID_BITS) as u32;
    (task.0 >= GATED).then_some((tube, TaskId(task.0 & ((1 << ID_BITS) - 1))))
}

/// How important the tasks of a tube are to its semaphore: their smaller goes first, as does its larger.
pub(crate) fn priority_of(pri: u64) -> Priority {
    Priority::new(-(pri as f64)).unwrap_or(Priority::ZERO)
}

/// What a tube wants for one of its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// It is ready, or would be with a grant: let it stand in line, or keep what it holds. If it was asked to
    /// release, this is the moment.
    Stand(Priority),
    /// Somebody works on it.
    Work,
    /// It is gone, put aside, or its time has not come.
    Leave,
}

impl Semaphores {
    /// The number of a semaphore, if there is one.
    pub(crate) fn number_of(&self, key: &SemaphoreKey) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    /// Gives a tube what it wants for its tasks, and settles.
    pub(crate) fn regate(&mut self, now: Timestamp, number: u32, wants: &[(TaskId, Want)]) {
        for (task, want) in wants {
            let (task, place) = (*task, self.line(number).get(*task));
            let status = place.map(|place| place.status());
            let grant = place.and_then(|place| place.hold()).map(|hold| hold.grant);
            match (*want, status) {
                (Want::Stand(priority), None) => self.stand_in_line(now, number, task, priority),
                (Want::Stand(_), Some(Status::TryRelease)) => {
                    grant.map(|grant| self.forget_events((number, task, grant)));
                    self.step_back(now, number, task);
                }
                (Want::Leave, Some(_)) => {
                    grant.map(|grant| self.forget_events((number, task, grant)));
                    self.place(number, task, None);
                }
                _ => {}
            }
            // The tube may believe otherwise although nothing changed here.
            self.moved.push(task);
        }
        self.settle(now, number);
    }

    /// Whether a task holds a grant.
    pub(crate) fn holds(&self, number: u32, task: TaskId) -> bool {
        self.line(number).get(task).is_some_and(|place| place.hold().is_some())
    }

    /// Whether a task stands there at all, and was asked to release.
    pub(crate) fn status(&self, number: u32, task: TaskId) -> Option<Status> {
        self.line(number).get(task).map(|place| place.status())
    }

    /// The tasks of tubes whose place may have changed since the last call, by their numbers here.
    pub(crate) fn take_moved(&mut self) -> Vec<TaskId> {
        std::mem::take(&mut self.moved)
    }

    /// All tasks of tubes, with the number of the semaphore they stand in.
    pub(crate) fn gated_tasks(&self) -> impl Iterator<Item = (u32, TaskId)> {
        let lines = (0..).zip(&self.all);
        lines.flat_map(|(number, semaphore)| {
            let tasks = semaphore.line.tasks().filter(|task| tube_task(*task).is_some());
            tasks.map(move |task| (number, task))
        })
    }

    /// Whether a task is one of a tube and nobody works on it: it can lose its grant without a word.
    pub(super) fn is_idle(&self, task: TaskId) -> bool {
        tube_task(task).is_some() && !self.at_work.contains(&task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{TASK_ID_MAX, TUBE_NUMBERS_MAX};

    #[test]
    fn the_number_of_a_tubes_task_tells_which_it_is() {
        let last = (TUBE_NUMBERS_MAX - 1, TaskId(TASK_ID_MAX));
        for (tube, id) in [(0, TaskId(0)), (3, TaskId(7)), last] {
            assert_eq!(tube_task(gated(tube, id)), Some((tube, id)));
        }
        assert_eq!(tube_task(TaskId(OWN_TASK_MAX)), None);
    }
}

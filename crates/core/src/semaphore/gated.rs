//! Tasks of tubes in a semaphore.
//!
//! A semaphore may gate a tube: its tasks are ready only while they hold a grant. They are in the
//! same queue as all others, under numbers that no caller can use, and no events are sent for their
//! grants: the tube checks itself.

use crate::task::TaskId;
use crate::time::Timestamp;

use super::entry::Status;
use super::key::{Priority, SemaphoreKey};
use super::semaphores::Semaphores;

/// Marks the tasks of tubes, apart from the numbers that callers choose.
const GATED: u64 = 1 << 63;
/// A tube number above a task id, as in the key of a row on disk.
const ID_BITS: u32 = 49;

/// The largest number that a caller may use for a task in a semaphore.
pub const OWN_TASK_MAX: u64 = GATED - 1;

/// The number of a tube's task in a semaphore.
pub(crate) fn gated(tube: u32, id: TaskId) -> TaskId {
    TaskId(GATED | u64::from(tube) << ID_BITS | id.0)
}

/// The tube and the task with this number, if it is the task of a tube.
pub(crate) fn tube_task(task: TaskId) -> Option<(u32, TaskId)> {
    let tube = ((task.0 & !GATED) >> ID_BITS) as u32;
    (task.0 >= GATED).then_some((tube, TaskId(task.0 & ((1 << ID_BITS) - 1))))
}

/// The semaphore priority of a tube's task: a smaller `pri` is a larger priority.
pub(crate) fn priority_of(pri: u64) -> Priority {
    Priority::new(-(pri as f64)).unwrap_or(Priority::ZERO)
}

/// What a tube requests for one of its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateRequest {
    /// It is ready, or would be with a grant: enqueue it, or keep its grant. If it was asked to
    /// release, it loses the grant now.
    Queue(Priority),
    /// It is taken.
    Taken,
    /// It is removed, buried or delayed.
    Remove,
}

impl Semaphores {
    /// The number of a semaphore, if it exists.
    pub(crate) fn number_of(&self, key: &SemaphoreKey) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    /// The number of waiting tasks that get a grant before this one.
    pub(crate) fn waiting_before(&self, number: u32, task: TaskId) -> usize {
        let queue = self.queue(number);
        queue.get(task).map_or(0, |entry| queue.waiting_before(entry.rank()))
    }

    /// Applies the requests of a tube for its tasks, and admits waiting tasks.
    pub(crate) fn regate(&mut self, now: Timestamp, number: u32, wants: &[(TaskId, GateRequest)]) {
        for (task, want) in wants {
            let (task, entry) = (*task, self.queue(number).get(*task));
            let status = entry.map(|entry| entry.status());
            let grant = entry.and_then(|entry| entry.hold()).map(|hold| hold.grant);
            match (*want, status) {
                (GateRequest::Queue(priority), None) => {
                    self.enqueue_one(now, number, task, priority)
                }
                (GateRequest::Queue(_), Some(Status::TryRelease)) => {
                    grant.map(|grant| self.forget_events((number, task, grant)));
                    self.requeue(now, number, task);
                }
                // A put has replaced the task.
                (GateRequest::Queue(priority), Some(_)) => {
                    self.enqueue_one(now, number, task, priority)
                }
                (GateRequest::Remove, Some(_)) => {
                    grant.map(|grant| self.forget_events((number, task, grant)));
                    self.set_entry(number, task, None);
                }
                _ => {}
            }
            // The tube may have another state although nothing changed here.
            self.moved.push(task);
        }
        self.admit_waiters(now, number);
    }

    /// Whether a task holds a grant.
    pub(crate) fn holds(&self, number: u32, task: TaskId) -> bool {
        self.queue(number).get(task).is_some_and(|entry| entry.hold().is_some())
    }

    /// The status of a task, if it is in the semaphore.
    pub(crate) fn status(&self, number: u32, task: TaskId) -> Option<Status> {
        self.queue(number).get(task).map(|entry| entry.status())
    }

    /// The tasks of tubes whose grant may have changed since the last call, by their numbers here.
    pub(crate) fn take_moved(&mut self) -> Vec<TaskId> {
        std::mem::take(&mut self.moved)
    }

    /// All tasks of tubes, with the number of their semaphore.
    pub(crate) fn gated_tasks(&self) -> impl Iterator<Item = (u32, TaskId)> {
        let lines = (0..).zip(&self.all);
        lines.flat_map(|(number, semaphore)| {
            let tasks = semaphore.queue.tasks().filter(|task| tube_task(*task).is_some());
            tasks.map(move |task| (number, task))
        })
    }

    /// Whether a task is one of a tube and not taken: it can lose its grant without an event.
    pub(super) fn is_idle(&self, task: TaskId) -> bool {
        tube_task(task).is_some() && !self.taken_tasks.contains(&task)
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

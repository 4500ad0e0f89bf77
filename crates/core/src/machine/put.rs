//! Adds tasks.

use std::sync::Arc;

use crate::command::{NewTask, Placed, Reply};
use crate::error::{Error, Result};
use crate::journal::Entry;
use crate::limits::{BATCH_TASKS_MAX, META_BYTES_MAX, SUBQUEUE_BYTES_MAX, TASK_ID_MAX};
use crate::slots::{Slot, SlotState};
use crate::state::{self, Event, State};
use crate::task::TaskId;
use crate::tasks::DetachedTask;
use crate::time::{Span, Timestamp};
use crate::tube::{Kind, TubeName, TubeOptions};

use super::Machine;
use super::tubes::Tube;

/// The sub-queue of a task whose put names none, as in the original queue.
const DEFAULT_SUBQUEUE: &str = "nil";

impl Machine {
    pub(super) fn put(
        &mut self,
        now: Timestamp,
        name: &TubeName,
        tasks: Vec<NewTask>,
    ) -> Result<Reply> {
        // Stores do this before they look for the tube.
        check_tasks(&tasks)?;
        let number = self.number(name)?;
        let tube = self.tube(number);
        if tube.options.semaphore.is_none() {
            refuse_priorities(name, &tasks)?;
        }
        tube.check_space(now, &tasks)?;
        let are_claimed = tube.tasks.claim_keys(TaskId(tube.next_id), &tasks);
        self.note_stats(number);
        let mut expired = Vec::new();
        let mut placed: Vec<Placed> = if are_claimed {
            tasks.into_iter().map(|task| self.add_task(now, number, task)).collect()
        } else {
            self.put_unclaimed(now, number, tasks, &mut expired)
        };
        if self.gate(number).is_some() {
            let mut moved = expired;
            moved.extend(placed.iter().map(|placed| placed.id));
            self.regate(now, number, &moved);
            let tasks = &self.tubes[number].tasks;
            for placed in &mut placed {
                placed.state = tasks.get(placed.id).map_or(placed.state, Slot::state);
            }
        }
        self.update_signals(number);
        Ok(Reply::Put(placed))
    }

    /// Adds a task, whose key its id has claimed. Inlined, so that the task is not copied once more.
    #[inline]
    pub(super) fn add_task(&mut self, now: Timestamp, number: u32, mut task: NewTask) -> Placed {
        let batch = self.journal.batch;
        let tube = self.tubes.get_mut(number).expect("put looked the tube up");
        let id = TaskId(tube.next_id);
        tube.next_id += 1;
        tube.calls().put += 1;
        let subqueue = tube
            .options
            .kind
            .has_subqueues()
            .then(|| task.subqueue.clone().unwrap_or_else(|| Arc::from(DEFAULT_SUBQUEUE)));
        let (semaphore_priority, attempts_max) = (task.semaphore_priority, task.attempts_max);
        let key = task.key.take();
        let mut slot = new_slot(now, id, task, &tube.options, self.wall_ahead);
        slot.noted = batch;
        let state = slot.state();
        debug_assert_eq!(state::next(None, put_event(state)), Some(state));
        let place = if semaphore_priority.is_none() && attempts_max.is_none() {
            tube.tasks.insert_slot(slot, subqueue.as_ref(), &mut self.shared)
        } else {
            let (failures, key) = (None, None);
            let detached =
                DetachedTask { slot, subqueue, semaphore_priority, attempts_max, failures, key };
            tube.tasks.insert(detached, &mut self.shared)
        };
        if let Some(request) = key {
            tube.tasks.keys_mut().insert_claimed(place, request);
        }
        self.journal.push(|| Entry::Task { tube: number, id, before: None });
        Placed { id, state, existing: false }
    }
}

impl Tube {
    /// Refuses tasks for which there is no capacity, or no ids.
    fn check_space(&self, now: Timestamp, tasks: &[NewTask]) -> Result<()> {
        let (room, ids) = (self.room(), TASK_ID_MAX.saturating_sub(self.next_id));
        if tasks.len() as u64 <= room.min(ids) {
            return Ok(());
        }
        let (name, added) = (&self.name, self.added_by(now, tasks));
        if added > room {
            let capacity = self.options.capacity.unwrap_or(u64::MAX);
            return Err(Error::TubeFull { tube: name.clone(), capacity });
        }
        if added > ids {
            return Err(Error::Invalid(format!("tube '{name}' has used up its task ids")));
        }
        Ok(())
    }
}

fn put_event(state: State) -> Event {
    if state == State::Delayed { Event::PutDelayed } else { Event::Put }
}

/// The slot of a task that is put now.
pub(super) fn new_slot(
    now: Timestamp,
    id: TaskId,
    task: NewTask,
    options: &TubeOptions,
    wall_ahead: i64,
) -> Slot {
    let bytes = task.body.bytes();
    let mut slot = Slot::new(id, now, Some(task.body), bytes);
    if !options.kind.has_times() {
        return slot;
    }
    let ttl = task.ttl.or(options.ttl).unwrap_or(Span::FOREVER);
    let due = match task.at {
        Some(at) => at.moved(wall_ahead.saturating_neg()),
        None => now + task.delay.or(options.delay).unwrap_or(Span::ZERO),
    };
    // The time to live begins when the delay is over.
    let expires = now.max(due) + ttl;
    slot.change_options(|own| {
        own.pri = task.pri.unwrap_or(options.pri);
        own.expires = expires;
        own.ttr = task.ttr.or(options.ttr).unwrap_or(ttl);
    });
    if due > now {
        let scheduled = task.at.is_some();
        slot.set_state(if scheduled { SlotState::Scheduled(due) } else { SlotState::Delayed(due) });
    }
    slot
}

/// Refuses tasks with a semaphore priority for a tube without a semaphore.
pub fn refuse_priorities(tube: &TubeName, tasks: &[NewTask]) -> Result<()> {
    if tasks.iter().all(|task| task.semaphore_priority.is_none()) {
        return Ok(());
    }
    Err(no_semaphore(tube))
}

/// Refuses sub-queues for a tube of a kind that has none. Stores ignore them there, as the original
/// queue does; our own interfaces call this first.
pub fn refuse_subqueues(kind: Kind) -> Result<()> {
    if kind.has_subqueues() {
        return Ok(());
    }
    let verb = "sub-queues; put without one, or into a tube of the kind utube or utubettl";
    Err(Error::Unsupported { kind: kind.name(), verb })
}

/// The error of a tube without a semaphore for such tasks.
pub fn no_semaphore(tube: &TubeName) -> Error {
    Error::NoSemaphore(tube.clone())
}

/// Refuses tasks that no store accepts: too many at once, with too large a part, or with two start
/// times. Stores whose rules run in the database call this first.
pub fn check_tasks(tasks: &[NewTask]) -> Result<()> {
    if tasks.len() > BATCH_TASKS_MAX {
        return Err(Error::TooLarge {
            what: "the number of tasks in one put",
            size: tasks.len(),
            limit: BATCH_TASKS_MAX,
            advice: "put them in several batches",
        });
    }
    for task in tasks {
        if let Some(key) = &task.key {
            key.check()?;
        }
        if task.at.is_some() && task.delay.is_some() {
            let why = "a task has a start time (at) or a delay, not both; leave one of them out";
            return Err(Error::Invalid(why.into()));
        }
        if task.attempts_max == Some(0) {
            let why = "attempts_max of a task must be at least 1; leave it out for the tube's";
            return Err(Error::Invalid(why.into()));
        }
        let meta = task.body.meta().map_or(0, <[u8]>::len);
        if meta > META_BYTES_MAX {
            return Err(Error::TooLarge {
                what: "the meta map of a task, in bytes,",
                size: meta,
                limit: META_BYTES_MAX,
                advice: "put large things into the payload",
            });
        }
        let subqueue = task.subqueue.as_ref().map_or(0, |key| key.len());
        if subqueue > SUBQUEUE_BYTES_MAX {
            return Err(Error::TooLarge {
                what: "the name of a sub-queue, in bytes,",
                size: subqueue,
                limit: SUBQUEUE_BYTES_MAX,
                advice: "use a shorter name or a hash of it",
            });
        }
    }
    Ok(())
}

//! Builds tasks for replies.

use std::sync::Arc;

use memchr::memmem;

use crate::command::Reply;
use crate::done::DoneTask;
use crate::error::Result;
use crate::finished::Finished;
use crate::limits::BATCH_BYTES_MAX;
use crate::reason::Reason;
use crate::record::{Record, StoredState};
use crate::search::{Found, Search, shown_too_large};
use crate::slots::{Slot, SlotOptions, SlotState};
use crate::state::State;
use crate::task::{Task, TaskId};
use crate::tasks::DetachedTask;
use crate::time::Timestamp;
use crate::tube::TubeName;

use super::Machine;
use super::finish::check_batch;
use super::list::is_expired;
use super::tubes::Tube;

impl Tube {
    /// The task, as replies show it.
    pub fn view(&self, now: Timestamp, id: TaskId) -> Option<Task> {
        Some(self.view_found(now, self.tasks.get(id)?, None))
    }

    /// The same with the moment since which a taken task was ready.
    pub fn view_with_due(&self, now: Timestamp, id: TaskId) -> Option<Task> {
        let slot = self.tasks.get(id)?;
        let ready_since = slot.delivery().map(|delivery| delivery.since);
        Some(self.view_found(now, slot, ready_since))
    }

    /// A task with all that a peek shows.
    fn peeked(&self, now: Timestamp, id: TaskId) -> Option<Task> {
        if let Some(done) = self.tasks.done().kept(&self.options, now, id) {
            return Some(view_kept(done));
        }
        let semaphore_priority = self.tasks.semaphore_priority(id);
        let (worker, failures) = (self.worker(id), self.tasks.failures(id).cloned());
        let task = self.view_with_due(now, id)?;
        let key = self.tasks.key_of(id).map(|held| Box::new(held.key.clone()));
        let attempts_max = self.tasks.attempts_max(id);
        Some(Task { semaphore_priority, key, attempts_max, worker, failures, ..task })
    }

    /// The worker that holds a task, if it gave its name.
    fn worker(&self, id: TaskId) -> Option<Arc<str>> {
        self.tasks.get(id)?.delivery()?.worker.clone()
    }

    /// A task that was looked up. Runs for every taken task, so it neither looks it up again nor
    /// copies it.
    #[inline]
    fn view_found(&self, now: Timestamp, slot: &Slot, ready_since: Option<Timestamp>) -> Task {
        let mut task = view_slot(slot, slot.state(), self.reason(now, slot));
        task.subqueue = self.tasks.subqueue_of(slot);
        task.due = ready_since.or(task.due);
        task
    }

    /// The stored form of a task that is finished now, if it is taken.
    pub fn done_record(&self, now: Timestamp, id: TaskId, result: Option<&[u8]>) -> Option<Record> {
        let slot = self.tasks.get(id)?;
        let delivery = slot.delivery()?;
        let (run, worker) = (now.since(delivery.start), delivery.worker.as_deref());
        Some(Record {
            state: StoredState::Done,
            finished: Some(Finished::new(now, run, worker, result.unwrap_or(&[]))),
            ..self.tasks.record(slot, 0)
        })
    }

    /// Refuses to show more bytes in one reply than are allowed in one command.
    pub fn check_shown(&self, ids: impl Iterator<Item = TaskId>) -> Result<()> {
        let size = |id| match self.tasks.get(id) {
            Some(slot) => slot.body_bytes as usize,
            None => self.tasks.done().get(id).map_or(0, done_bytes),
        };
        let size = ids.map(size).sum();
        if size <= BATCH_BYTES_MAX {
            return Ok(());
        }
        Err(shown_too_large(size))
    }

    fn reason(&self, now: Timestamp, slot: &Slot) -> Reason {
        match slot.details() {
            SlotState::Taken(_) => Reason::Running,
            SlotState::Delayed(due) | SlotState::Scheduled(due) => Reason::NotDue(due),
            _ if slot.expires() <= now => Reason::Expired,
            SlotState::Gated(_) => Reason::Semaphore,
            SlotState::Buried { dead_letter: true } => Reason::AttemptsUsedUp,
            SlotState::Buried { dead_letter: false } => Reason::Buried,
            SlotState::Ready(_) if self.options.paused => Reason::TubePaused,
            SlotState::Ready(_) if self.tasks.is_blocked(slot) => Reason::SubqueueBusy,
            SlotState::Ready(_) => {
                self.rate_limited(now).map_or(Reason::WaitsForConsumer, Reason::RateLimited)
            }
        }
    }
}

/// A task that was just removed.
pub(super) fn view_done(detached: &DetachedTask) -> Task {
    let mut task = view_slot(&detached.slot, State::Done, Reason::Finished);
    task.subqueue = detached.subqueue.clone();
    task
}

/// A done task that is kept.
pub(super) fn view_kept(done: &DoneTask) -> Task {
    let record = &done.record;
    Task {
        id: record.id,
        state: State::Done,
        pri: record.pri,
        created: record.created,
        due: None,
        expires: record.expires,
        ttr: record.ttr,
        attempts: record.attempts,
        start: None,
        previous_start: record.previous_start,
        subqueue: record.subqueue.clone(),
        semaphore_priority: None,
        key: record.key.as_ref().map(|held| Box::new(held.key.clone())),
        attempts_max: record.attempts_max,
        session: None,
        worker: None,
        failures: record.failures.clone(),
        finished: record.finished.clone(),
        lease: None,
        lease_until: None,
        reason: Reason::Finished,
        body: record.body.clone(),
    }
}

/// How many bytes the body and the result of a done task have.
fn done_bytes(done: &DoneTask) -> usize {
    let result = done.record.finished.as_ref().and_then(Finished::result);
    done.record.body_bytes as usize + result.map_or(0, <[u8]>::len)
}

fn view_slot(slot: &Slot, state: State, reason: Reason) -> Task {
    let delivery = slot.delivery();
    let SlotOptions { pri, expires, ttr, previous_start, attempts, .. } = *slot.options();
    Task {
        id: slot.id,
        state,
        pri,
        created: slot.created,
        due: match slot.details() {
            SlotState::Delayed(due) | SlotState::Scheduled(due) => Some(due),
            _ => None,
        },
        expires,
        ttr,
        attempts,
        start: delivery.map(|delivery| delivery.start),
        previous_start: (previous_start != Timestamp::NEVER).then_some(previous_start),
        subqueue: None,
        semaphore_priority: None,
        key: None,
        attempts_max: None,
        session: delivery.and_then(|delivery| delivery.session),
        worker: None,
        failures: None,
        finished: None,
        lease: delivery.map(|delivery| delivery.lease),
        lease_until: delivery.map(|delivery| delivery.until),
        reason,
        body: slot.body.clone(),
    }
}

impl Machine {
    pub(super) fn peek(&self, now: Timestamp, name: &TubeName, ids: &[TaskId]) -> Result<Reply> {
        let tube = &self.tubes[self.number(name)?];
        check_batch(ids.len())?;
        tube.check_shown(ids.iter().copied())?;
        Ok(Reply::Tasks(ids.iter().filter_map(|id| tube.peeked(now, *id)).collect()))
    }

    pub(super) fn search(&self, now: Timestamp, search: &Search) -> Result<Reply> {
        search.check()?;
        let tube = &self.tubes[self.number(&search.tube)?];
        let run = memmem::Finder::new(&*search.run);
        let mut found = Found::default();
        for id in search.ids().take_while(|id| id.0 < tube.next_id) {
            let (state, bytes, body) = match tube.tasks.get(id) {
                Some(slot) if is_expired(slot, now) => continue,
                Some(slot) => (slot.state(), u64::from(slot.body_bytes), slot.body.as_ref()),
                None => match tube.tasks.done().kept(&tube.options, now, id) {
                    Some(done) => (State::Done, done_bytes(done) as u64, done.record.body.as_ref()),
                    None => continue,
                },
            };
            if !search.states.contains(state) {
                continue;
            }
            found.count(id, bytes);
            found.check_bytes()?;
            // A body on disk is compared by the caller.
            if body.is_none_or(|body| run.find(body.payload()).is_some()) {
                tube.peeked(now, id).into_iter().for_each(|task| found.add(task));
            }
        }
        Ok(Reply::Found(found))
    }

    pub(super) fn deliveries(
        &self,
        now: Timestamp,
        name: &TubeName,
        count: usize,
    ) -> Result<Reply> {
        let tube = &self.tubes[self.number(name)?];
        let tasks = tube.tasks.taken().take(count).filter_map(|id| tube.view_with_due(now, id));
        let show = |task: Task| Task { body: None, worker: tube.worker(task.id), ..task };
        Ok(Reply::Tasks(tasks.map(show).collect()))
    }
}

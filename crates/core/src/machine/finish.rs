//! Ends deliveries, and moves tasks by command.

use crate::command::{AfterFailure, Finish, FinishItem, Holder, Outcome, Reply};
use crate::done::DoneTask;
use crate::error::{Error, Result};
use crate::failure::{Failure, LEASE_EXPIRED, SESSION_ENDED};
use crate::finished::check_results;
use crate::journal::Entry;
use crate::key::EndedKey;
use crate::limits::BATCH_TASKS_MAX;
use crate::slots::{Delivery, Slot, SlotState};
use crate::state::{self, Event, State};
use crate::task::{Task, TaskId};
use crate::time::{Span, Timestamp};
use crate::tube::TubeName;

use super::Machine;
use super::keys::end_of;
use super::view::{view_done, view_kept};

impl Machine {
    pub(super) fn finish(
        &mut self,
        now: Timestamp,
        name: &TubeName,
        items: &[FinishItem],
        show: bool,
    ) -> Result<Reply> {
        let number = self.number(name)?;
        check_batch(items.len())?;
        check_results(items)?;
        if show {
            self.tubes[number].check_shown(items.iter().map(|item| item.id))?;
        }
        self.check_touches(now, number, items)?;
        let mut outcomes: Vec<_> =
            items.iter().map(|item| self.finish_one(now, number, item, show)).collect();
        if self.gate(number).is_some() {
            let done = |(item, outcome): (&FinishItem, &Outcome)| {
                matches!(outcome, Outcome::Done(_)).then_some(item.id)
            };
            let ids: Vec<_> = items.iter().zip(&outcomes).filter_map(done).collect();
            self.regate(now, number, &ids);
            self.show_gated(now, number, &mut outcomes);
        }
        self.update_signals(number);
        Ok(Reply::Finished(outcomes))
    }

    fn finish_one(
        &mut self,
        now: Timestamp,
        number: u32,
        item: &FinishItem,
        show: bool,
    ) -> Outcome {
        let Some(slot) = self.tubes[number].tasks.get(item.id) else { return Outcome::Missing };
        let is_unowned_bury = item.finish.buries() && item.holder == Holder::Any;
        let held = self.held_delivery(now, slot, item.holder);
        if held.is_none() && !is_unowned_bury {
            return Outcome::Stale;
        }
        match &item.finish {
            Finish::Ack | Finish::AckWithResult(_) => {
                return self.ack(now, number, item.id, item.finish.result(), show);
            }
            Finish::Release { delay, counted } => {
                let delay = self.release_delay(number, *delay);
                let how = ReleaseMode { delay, counted: *counted, ..ReleaseMode::RELEASE };
                self.give_back(now, number, item.id, how);
            }
            Finish::Bury => self.bury(now, number, item.id, None),
            Finish::Touch(more) => self.touch(number, item.id, *more),
            Finish::Fail(fail) => match self.retry_after(number, item.id, fail.then) {
                Some(delay) => {
                    let delay = self.release_delay(number, delay);
                    let error = Some(&*fail.error);
                    let how = ReleaseMode { delay, error, ..ReleaseMode::RELEASE };
                    self.give_back(now, number, item.id, how);
                }
                None => self.bury(now, number, item.id, Some(&fail.error)),
            },
        }
        let shown = show.then(|| self.tubes[number].view(now, item.id)).flatten();
        Outcome::Done(shown.map(Box::new))
    }

    /// The delay before the next attempt of a failed task; `None` if it is buried.
    fn retry_after(&self, number: u32, id: TaskId, then: AfterFailure) -> Option<Span> {
        let tube = &self.tubes[number];
        match (then, tube.options.retry.as_deref()) {
            (AfterFailure::Policy { seed, .. }, Some(policy)) => {
                Some(tube.retry_delay(policy, tube.tasks.get(id)?, seed))
            }
            _ => then.delay(),
        }
    }

    /// The delay of a released task: kinds without times have none.
    fn release_delay(&self, number: u32, delay: Span) -> Span {
        if self.tubes[number].options.kind.has_times() { delay } else { Span::ZERO }
    }

    /// Updates the shown tasks after the semaphore has changed them.
    fn show_gated(&self, now: Timestamp, number: u32, outcomes: &mut [Outcome]) {
        for outcome in outcomes {
            if let Outcome::Done(Some(task)) = outcome
                && task.state == State::Ready
                && let Some(view) = self.tubes[number].view(now, task.id)
            {
                **task = view;
            }
        }
    }

    /// The current delivery, if `holder` holds it and it has not expired.
    fn held_delivery<'a>(
        &self,
        now: Timestamp,
        slot: &'a Slot,
        holder: Holder,
    ) -> Option<&'a Delivery> {
        let delivery = slot.delivery().filter(|delivery| delivery.until > now)?;
        let holds = match holder {
            Holder::Lease(lease) => delivery.lease == lease,
            Holder::Session(session) => {
                delivery.session == Some(session) && self.check_session(now, session).is_ok()
            }
            Holder::Any => true,
        };
        holds.then_some(delivery)
    }

    /// A kind without times does not support touch, except for deliveries whose take set a lease
    /// time.
    fn check_touches(&self, now: Timestamp, number: u32, items: &[FinishItem]) -> Result<()> {
        let tube = &self.tubes[number];
        if tube.options.kind.has_times() {
            return Ok(());
        }
        let touches = items.iter().filter(|item| matches!(item.finish, Finish::Touch(_)));
        for item in touches {
            let Some(slot) = tube.tasks.get(item.id) else { continue };
            if self.held_delivery(now, slot, item.holder).is_some_and(|held| !held.explicit) {
                return Err(Error::Unsupported { kind: tube.options.kind.name(), verb: "touch" });
            }
        }
        Ok(())
    }

    fn ack(
        &mut self,
        now: Timestamp,
        number: u32,
        id: TaskId,
        result: Option<&[u8]>,
        show: bool,
    ) -> Outcome {
        debug_assert_eq!(state::next(Some(State::Taken), Event::Ack), Some(State::Done));
        let tube = &self.tubes[number];
        let done =
            if tube.options.keep_done.is_some() { tube.done_record(now, id, result) } else { None };
        let outcome = self.remove(now, number, id, show);
        let batch = self.journal.batch;
        let tube = self.tubes.get_mut(number).expect("the caller looked the tube up");
        if let Some(done) = done.and_then(|record| DoneTask::new(record, batch)) {
            tube.tasks.insert_done(done, &mut self.shared);
        }
        tube.calls().ack += 1;
        outcome
    }

    /// Removes a done task that is kept.
    pub(super) fn remove_done(&mut self, number: u32, id: TaskId) {
        let tube = self.tubes.get_mut(number).expect("the caller looked the tube up");
        let Some(done) = tube.tasks.remove_done(id, &mut self.shared) else { return };
        // One that this batch added has an entry as a task.
        if done.noted != self.journal.batch {
            self.journal.push(|| Entry::DoneRemoved { tube: number, before: done });
        }
    }

    /// Removes a task by command.
    fn delete_one(&mut self, now: Timestamp, number: u32, id: TaskId, show: bool) -> Outcome {
        let tube = &self.tubes[number];
        if let Some(done) = tube.tasks.done().kept(&tube.options, now, id) {
            let view = || Box::new(Task { failures: None, key: None, ..view_kept(done) });
            let shown = show.then(view);
            self.note_stats(number);
            self.remove_done(number, id);
            return Outcome::Done(shown);
        }
        self.remove(now, number, id, show)
    }

    /// Removes a task permanently.
    pub(super) fn remove(
        &mut self,
        now: Timestamp,
        number: u32,
        id: TaskId,
        show: bool,
    ) -> Outcome {
        self.note_stats(number);
        let tube = self.tubes.get_mut(number).expect("the caller looked the tube up");
        let Some(detached) = tube.tasks.remove(id, &mut self.shared) else {
            return Outcome::Missing;
        };
        tube.since_open.tasks.done += 1;
        let outcome = Outcome::Done(show.then(|| Box::new(view_done(&detached))));
        let ended = detached.key.as_ref().and_then(|request| {
            let held = &request.held;
            let until = end_of(&detached.slot, now) + held.unique_for;
            (until > now).then(|| EndedKey { id, key: held.key.clone(), until })
        });
        // As `note` does it, but without a copy: the task is not used any more.
        if detached.slot.noted != self.journal.batch {
            self.journal.push(|| Entry::Task { tube: number, id, before: Some(detached) });
        }
        // After the entry of the task, so that an undo frees the key before the task gets it back.
        if let Some(ended) = ended {
            self.end_key(now, number, ended);
        }
        outcome
    }

    /// Ends a delivery without ack: the task is ready again, or delayed, or its attempts are used
    /// up.
    pub(super) fn give_back(
        &mut self,
        now: Timestamp,
        number: u32,
        id: TaskId,
        how: ReleaseMode<'_>,
    ) {
        self.note(number, id);
        if let Some(error) = how.error {
            self.add_failure(now, number, id, error, how.lease_over);
        }
        let tube = self.tubes.get_mut(number).expect("the caller looked the tube up");
        let own = tube.tasks.attempts_max(id);
        let attempts_max = own.or(tube.options.attempts_max).unwrap_or(u32::MAX);
        let mut used_up = false;
        tube.tasks.update(id, &mut self.shared, |slot| {
            // An uncounted delivery leaves no trace.
            let mut since = slot.since();
            if how.counted {
                // An expired delivery ended when its time was over, whenever that is noticed.
                let back = match slot.details() {
                    SlotState::Taken(delivery) if how.lease_over => delivery.until,
                    _ => now,
                };
                let attempts = slot.attempts().saturating_add(1);
                let previous_start = std::mem::replace(&mut since, back);
                slot.change_options(|options| {
                    (options.previous_start, options.attempts) = (previous_start, attempts);
                });
                used_up = attempts >= attempts_max;
            }
            let event = if used_up {
                slot.set_state(SlotState::Buried { dead_letter: true });
                Event::DeadLetter
            } else if how.delay.is_zero() {
                slot.set_state(SlotState::Ready(since));
                Event::Release
            } else {
                slot.set_state(SlotState::Delayed(now + how.delay));
                slot.set_expires(slot.expires() + how.delay);
                Event::ReleaseDelayed
            };
            debug_assert_eq!(state::next(Some(State::Taken), event), Some(slot.state()));
        });
        let calls = tube.calls();
        calls.ttr += u64::from(how.lease_over);
        calls.release += u64::from(!how.lease_over);
        calls.bury += u64::from(used_up);
    }

    /// Adds a failure to a task, before its delivery ends.
    fn add_failure(
        &mut self,
        now: Timestamp,
        number: u32,
        id: TaskId,
        error: &str,
        lease_over: bool,
    ) {
        let tube = self.tubes.get_mut(number).expect("the caller looked the tube up");
        let Some(slot) = tube.tasks.get(id) else { return };
        let attempt = slot.attempts().saturating_add(1);
        let (at, run, worker) = match slot.delivery() {
            // An expired delivery ended when its time was over, whenever that is noticed.
            Some(delivery) => {
                let at = if lease_over { delivery.until } else { now };
                (at, at.since(delivery.start), delivery.worker.clone())
            }
            None => (now, Span::ZERO, None),
        };
        tube.tasks.add_failure(id, &Failure { at, attempt, run, worker, error: error.into() });
    }

    fn bury(&mut self, now: Timestamp, number: u32, id: TaskId, error: Option<&str>) {
        let state = self.tubes[number].tasks.get(id).map(Slot::state);
        if state == Some(State::Buried) {
            return;
        }
        debug_assert_eq!(state::next(state, Event::Bury), Some(State::Buried));
        self.note(number, id);
        if let Some(error) = error {
            self.add_failure(now, number, id, error, false);
        }
        let tube = self.tubes.get_mut(number).expect("the caller looked the tube up");
        tube.tasks.update(id, &mut self.shared, |slot| {
            slot.set_state(SlotState::Buried { dead_letter: false });
        });
        tube.calls().bury += 1;
    }

    fn touch(&mut self, number: u32, id: TaskId, more: Span) {
        if more.is_zero() {
            return;
        }
        self.note(number, id);
        let tube = self.tubes.get_mut(number).expect("the caller looked the tube up");
        tube.tasks.update(id, &mut self.shared, |slot| {
            if let Some(delivery) = slot.delivery_mut() {
                delivery.until = delivery.until + more;
            }
            slot.change_options(|options| {
                options.expires = options.expires + more;
                options.ttr = options.ttr + more;
            });
        });
        tube.calls().touch += 1;
    }

    pub(super) fn delete(
        &mut self,
        now: Timestamp,
        name: &TubeName,
        ids: &[TaskId],
        show: bool,
    ) -> Result<Reply> {
        let number = self.number(name)?;
        check_batch(ids.len())?;
        if show {
            self.tubes[number].check_shown(ids.iter().copied())?;
        }
        let mut outcomes = Vec::with_capacity(ids.len());
        for id in ids {
            let outcome = self.delete_one(now, number, *id, show);
            self.tube(number).calls().delete += u64::from(outcome != Outcome::Missing);
            outcomes.push(outcome);
        }
        self.regate(now, number, ids);
        self.update_signals(number);
        Ok(Reply::Finished(outcomes))
    }

    pub(super) fn kick(&mut self, now: Timestamp, name: &TubeName, count: u64) -> Result<Reply> {
        let number = self.number(name)?;
        let mut kicked = Vec::new();
        while (kicked.len() as u64) < count {
            let Some(id) = self.tube(number).tasks.first_buried() else { break };
            self.kick_one(now, number, id, false);
            kicked.push(id);
        }
        self.regate(now, number, &kicked);
        self.update_signals(number);
        Ok(Reply::Kicked(kicked.len() as u64))
    }

    pub(super) fn kick_tasks(
        &mut self,
        now: Timestamp,
        name: &TubeName,
        ids: &[TaskId],
        reset_attempts: bool,
    ) -> Result<Reply> {
        let number = self.number(name)?;
        check_batch(ids.len())?;
        let mut kicked = Vec::new();
        let mut outcomes = Vec::with_capacity(ids.len());
        for id in ids {
            let state = self.tubes[number].tasks.get(*id).map(Slot::state);
            outcomes.push(match state {
                Some(State::Buried) => {
                    self.kick_one(now, number, *id, reset_attempts);
                    kicked.push(*id);
                    Outcome::Done(None)
                }
                Some(_) => Outcome::Stale,
                None => Outcome::Missing,
            });
        }
        self.regate(now, number, &kicked);
        self.update_signals(number);
        Ok(Reply::Finished(outcomes))
    }

    fn kick_one(&mut self, now: Timestamp, number: u32, id: TaskId, reset_attempts: bool) {
        debug_assert_eq!(state::next(Some(State::Buried), Event::Kick), Some(State::Ready));
        self.note(number, id);
        let tube = self.tubes.get_mut(number).expect("the caller looked the tube up");
        tube.tasks.update(id, &mut self.shared, |slot| {
            slot.set_state(SlotState::Ready(now));
            if reset_attempts {
                slot.set_attempts(0);
            }
        });
        tube.calls().kick += 1;
    }

    pub(super) fn release_all(&mut self, now: Timestamp, name: &TubeName) -> Result<Reply> {
        let number = self.number(name)?;
        let taken: Vec<TaskId> = self.tube(number).tasks.taken().collect();
        for id in &taken {
            self.give_back(now, number, *id, ReleaseMode::RELEASE);
        }
        self.regate(now, number, &taken);
        self.update_signals(number);
        Ok(Reply::Nothing)
    }
}

/// How a delivery ends without ack.
#[derive(Clone, Copy)]
pub(super) struct ReleaseMode<'a> {
    pub delay: Span,
    /// Whether it counts as an attempt.
    pub counted: bool,
    /// Whether the lease expired, instead of a release.
    pub lease_over: bool,
    /// What went wrong, if it failed.
    pub error: Option<&'a str>,
}

impl ReleaseMode<'_> {
    /// As by `release_all`.
    pub const RELEASE: ReleaseMode<'static> =
        ReleaseMode { delay: Span::ZERO, counted: true, lease_over: false, error: None };
    /// As at the end of a session.
    pub const SESSION_OVER: ReleaseMode<'static> =
        ReleaseMode { error: Some(SESSION_ENDED), ..ReleaseMode::RELEASE };
    /// As at the end of a lease.
    pub const LEASE_OVER: ReleaseMode<'static> =
        ReleaseMode { lease_over: true, error: Some(LEASE_EXPIRED), ..ReleaseMode::RELEASE };
}

impl Finish {
    /// Whether the task is buried, however many attempts it has left.
    fn buries(&self) -> bool {
        match self {
            Finish::Bury => true,
            Finish::Fail(fail) => fail.then == AfterFailure::Bury,
            _ => false,
        }
    }
}

pub(super) fn check_batch(size: usize) -> Result<()> {
    if size <= BATCH_TASKS_MAX {
        return Ok(());
    }
    Err(Error::TooLarge {
        what: "the number of tasks in one command",
        size,
        limit: BATCH_TASKS_MAX,
        advice: "use several batches",
    })
}

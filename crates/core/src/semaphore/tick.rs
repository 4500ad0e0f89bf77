//! Processes what is due in semaphores.

use crate::effects::NewEvents;
use crate::limits::BATCH_TASKS_MAX;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

use super::command::EventKind;
use super::entry::{EntryState, HeldGrant, QueueEntry};
use super::gated::tube_task;
use super::key::Grant;
use super::semaphores::Semaphores;

impl Semaphores {
    /// Processes what is due in at most `most` semaphores; returns in how many something was.
    pub fn tick(&mut self, now: Timestamp, limit: usize) -> usize {
        let mut ticked = 0;
        while ticked < limit
            && let Some((due, number)) = self.wakeups.first().copied()
            && due <= now
        {
            for task in self.queue(number).due(now, BATCH_TASKS_MAX) {
                self.end_wait(now, number, task);
            }
            self.admit_waiters(now, number);
            ticked += 1;
        }
        if self
            .outbox
            .next_after(self.notified_until.unwrap_or(LONG_AGO))
            .is_some_and(|at| at <= now)
        {
            self.new_events.add(NewEvents::All);
        }
        self.notified_until = self.notified_until.max(Some(now));
        ticked
    }

    /// Processes one due task.
    fn end_wait(&mut self, now: Timestamp, number: u32, task: TaskId) {
        let Some(entry) = self.queue(number).get(task) else { return };
        let QueueEntry { state: EntryState::Held(hold), .. } = entry else {
            return self.change_entry(number, task, |entry| entry.state = EntryState::Wait);
        };
        let hold = HeldGrant::clone(hold);
        let about = (number, task, hold.grant);
        let options = &self.semaphore(number).record.options;
        if hold.lease_until <= now {
            // A holder that never received its grant did not let it expire.
            let leaves = options.drop_expired && !self.is_grant_unseen(about);
            self.expire(now, about, (!leaves).then_some(Span::ZERO));
        } else if hold.ack_by <= now {
            // The receiver of the event may be down for a while.
            let pause = options.ack_timeout.unwrap_or(Span::ZERO);
            self.expire(now, about, Some(pause));
        } else {
            self.insist(now, about);
        }
    }

    /// Ends a grant that was not extended or acknowledged. Its task is queued again after this
    /// time, or removed.
    fn expire(&mut self, now: Timestamp, about: (u32, TaskId, Grant), back_after: Option<Span>) {
        let (number, task, _) = about;
        if self.forget_events(about) {
            self.add_event(now, about, EventKind::Expired);
        }
        match back_after {
            Some(pause) => self.requeue_after(number, task, now, pause),
            None => self.set_entry(number, task, None),
        }
    }

    /// Handles a holder that was asked to release and has not done so in time.
    fn insist(&mut self, now: Timestamp, about: (u32, TaskId, Grant)) {
        let (number, task, _) = about;
        let options = &self.semaphore(number).record.options;
        let again_at = now + options.revoke_grace;
        // The grant of a taken task of a tube is free when the delivery ends, and not before.
        if options.force && tube_task(task).is_none() {
            self.forget_events(about);
            self.add_event(now, about, EventKind::Revoked);
            return self.requeue(now, number, task);
        }
        if self.outbox.find(about, EventKind::TryRelease).is_none() {
            self.add_event_with_attempts(now, about, EventKind::TryRelease, 1);
        }
        self.change_hold(number, task, |hold| hold.revoke_at = Some(again_at));
    }
}

/// Before any event.
const LONG_AGO: Timestamp = Timestamp::from_micros(i64::MIN);

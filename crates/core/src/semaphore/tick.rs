//! What time alone does to semaphores.

use crate::effects::News;
use crate::limits::BATCH_TASKS_MAX;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

use super::book::Semaphores;
use super::command::EventKind;
use super::gated::tube_task;
use super::key::Grant;
use super::place::{Hold, Place, Stand};

impl Semaphores {
    /// Does what is due in at most so many semaphores; answers in how many something was.
    pub fn tick(&mut self, now: Timestamp, limit: usize) -> usize {
        let mut ticked = 0;
        while ticked < limit
            && let Some((due, number)) = self.wakeups.first().copied()
            && due <= now
        {
            for task in self.line(number).due(now, BATCH_TASKS_MAX) {
                self.end_wait(now, number, task);
            }
            self.settle(now, number);
            ticked += 1;
        }
        if self.outbox.next_after(self.told_until.unwrap_or(LONG_AGO)).is_some_and(|at| at <= now) {
            self.news.add(News::All);
        }
        self.told_until = self.told_until.max(Some(now));
        ticked
    }

    /// The moment of one task has come.
    fn end_wait(&mut self, now: Timestamp, number: u32, task: TaskId) {
        let Some(place) = self.line(number).get(task) else { return };
        let Place { stand: Stand::Held(hold), .. } = place else {
            return self.replace(number, task, |place| place.stand = Stand::Wait);
        };
        let hold = Hold::clone(hold);
        let about = (number, task, hold.grant);
        let options = &self.semaphore(number).record.options;
        if hold.lease_until <= now {
            // Who never heard of its grant did not let it run out.
            let leaves = options.drop_expired && !self.is_untold(about);
            self.expire(now, about, (!leaves).then_some(Span::ZERO));
        } else if hold.ack_by <= now {
            // Whoever should have heard of the grant may be down for a while.
            let pause = options.ack_timeout.unwrap_or(Span::ZERO);
            self.expire(now, about, Some(pause));
        } else {
            self.insist(now, about);
        }
    }

    /// A grant ends because nobody spoke up for it. Its task stands in line again after this time, or leaves.
    fn expire(&mut self, now: Timestamp, about: (u32, TaskId, Grant), back_after: Option<Span>) {
        let (number, task, _) = about;
        if self.forget_events(about) {
            self.tell(now, about, EventKind::Expired);
        }
        match back_after {
            Some(pause) => self.stand_back(number, task, now, pause),
            None => self.place(number, task, None),
        }
    }

    /// A holder that was asked to release has not done so in time.
    fn insist(&mut self, now: Timestamp, about: (u32, TaskId, Grant)) {
        let (number, task, _) = about;
        let options = &self.semaphore(number).record.options;
        let again_at = now + options.revoke_grace;
        // The place of a task that is worked on in its tube is free when the work ends, and not before.
        if options.force && tube_task(task).is_none() {
            self.forget_events(about);
            self.tell(now, about, EventKind::Revoked);
            return self.step_back(now, number, task);
        }
        if self.outbox.find(about, EventKind::TryRelease).is_none() {
            self.tell_again(now, about, EventKind::TryRelease, 1);
        }
        self.change_hold(number, task, |hold| hold.revoke_at = Some(again_at));
    }
}

/// Before anything can have been told.
const LONG_AGO: Timestamp = Timestamp::from_micros(i64::MIN);

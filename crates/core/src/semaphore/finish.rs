//! How grants end or go on by the word of their holders.

use crate::error::Result;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

use super::book::Semaphores;
use super::command::{EventKind, GrantFinish, GrantItem, GrantOutcome, SemaphoreReply};
use super::key::{Grant, SemaphoreKey};
use super::place::{Hold, Stand, Status};

impl Semaphores {
    pub(super) fn finish(
        &mut self,
        now: Timestamp,
        key: &SemaphoreKey,
        items: &[GrantItem],
    ) -> Result<SemaphoreReply> {
        let number = self.number(key)?;
        let outcomes = items.iter().map(|item| self.finish_one(now, number, item)).collect();
        self.settle(now, number);
        Ok(SemaphoreReply::Finished(outcomes))
    }

    fn finish_one(&mut self, now: Timestamp, number: u32, item: &GrantItem) -> GrantOutcome {
        let Some(place) = self.line(number).get(item.task) else { return GrantOutcome::Missing };
        let current = place.hold().map(|hold| hold.grant);
        if item.grant.is_some() && item.grant != current {
            return GrantOutcome::Stale;
        }
        let Some(grant) = current else {
            return match item.finish {
                GrantFinish::Release => {
                    self.place(number, item.task, None);
                    GrantOutcome::Done
                }
                // It has yielded already, and there is nothing to keep or prolong.
                GrantFinish::Yield => GrantOutcome::Done,
                GrantFinish::Decline | GrantFinish::Extend(_) => GrantOutcome::Stale,
            };
        };
        if item.finish == GrantFinish::Decline && place.status() != Status::TryRelease {
            // Twice is the same as once.
            let declined = place.hold().is_some_and(|hold| hold.pinned);
            return if declined { GrantOutcome::Done } else { GrantOutcome::NotAsked };
        }
        self.finish_held(now, (number, item.task, grant), item.finish);
        GrantOutcome::Done
    }

    fn finish_held(&mut self, now: Timestamp, held: (u32, TaskId, Grant), finish: GrantFinish) {
        let (number, task, _) = held;
        match finish {
            GrantFinish::Release => {
                self.forget_events(held);
                self.place(number, task, None);
            }
            GrantFinish::Yield => {
                self.forget_events(held);
                self.step_back(now, number, task);
            }
            GrantFinish::Decline => {
                self.forget_events(held);
                self.change_hold(number, task, |hold| {
                    hold.pinned = true;
                    hold.revoke_at = None;
                    hold.ack_by = Timestamp::NEVER;
                });
            }
            GrantFinish::Extend(span) => {
                // Who prolongs a grant knows of it.
                if let Some((id, _)) = self.outbox.find(held, EventKind::Acquired) {
                    self.set_event(id, None);
                    // A request that had to wait for it may be handed out now.
                    if !self.outbox.of_grant(held).is_empty() {
                        self.tell_news(number);
                    }
                }
                self.change_hold(number, task, |hold| {
                    hold.lease_until = now + span;
                    hold.ack_by = Timestamp::NEVER;
                });
            }
        }
    }

    /// Lets a holder stand in line again, after the time that its semaphore sets for that.
    pub(super) fn step_back(&mut self, now: Timestamp, number: u32, task: TaskId) {
        let cool_down = self.semaphore(number).record.options.cool_down;
        self.stand_back(number, task, now, cool_down);
    }

    /// Lets a holder stand in line again after this time.
    pub(super) fn stand_back(&mut self, number: u32, task: TaskId, now: Timestamp, after: Span) {
        let stand = if after.is_zero() { Stand::Wait } else { Stand::Delayed(now + after) };
        self.replace(number, task, |place| place.stand = stand);
    }

    pub(super) fn change_hold(
        &mut self,
        number: u32,
        task: TaskId,
        change: impl FnOnce(&mut Hold),
    ) {
        self.replace(number, task, |place| {
            if let Stand::Held(hold) = &mut place.stand {
                change(hold);
            }
        });
    }

    /// Removes what was still to be said about a grant. Tells whether its holder may have heard of it.
    pub(super) fn forget_events(&mut self, grant: (u32, TaskId, Grant)) -> bool {
        let untold = self.is_untold(grant);
        for id in self.outbox.of_grant(grant).to_vec() {
            self.set_event(id, None);
        }
        !untold
    }

    /// Whether nobody can have heard of a grant yet.
    pub(super) fn is_untold(&self, grant: (u32, TaskId, Grant)) -> bool {
        let acquired = self.outbox.find(grant, EventKind::Acquired);
        acquired.is_some_and(|(_, row)| row.attempts == 0)
    }
}

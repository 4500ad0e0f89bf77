//! Ends or extends grants at the request of their holders.

use crate::error::Result;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

use super::command::{EventKind, GrantFinish, GrantItem, GrantOutcome, SemaphoreReply};
use super::entry::{EntryState, HeldGrant, Status};
use super::key::{Grant, SemaphoreKey};
use super::semaphores::Semaphores;

impl Semaphores {
    pub(super) fn finish(
        &mut self,
        now: Timestamp,
        key: &SemaphoreKey,
        items: &[GrantItem],
    ) -> Result<SemaphoreReply> {
        let number = self.number(key)?;
        let outcomes = items.iter().map(|item| self.finish_one(now, number, item)).collect();
        self.admit_waiters(now, number);
        Ok(SemaphoreReply::Finished(outcomes))
    }

    fn finish_one(&mut self, now: Timestamp, number: u32, item: &GrantItem) -> GrantOutcome {
        let Some(entry) = self.queue(number).get(item.task) else { return GrantOutcome::Missing };
        let current = entry.hold().map(|hold| hold.grant);
        if item.grant.is_some() && item.grant != current {
            return GrantOutcome::Stale;
        }
        let Some(grant) = current else {
            return match item.finish {
                GrantFinish::Release => {
                    self.set_entry(number, item.task, None);
                    GrantOutcome::Done
                }
                // It has already yielded, and there is nothing to keep or extend.
                GrantFinish::Yield => GrantOutcome::Done,
                GrantFinish::Decline | GrantFinish::Extend(_) => GrantOutcome::Stale,
            };
        };
        if item.finish == GrantFinish::Decline && entry.status() != Status::TryRelease {
            // A repeated decline has no further effect.
            let declined = entry.hold().is_some_and(|hold| hold.pinned);
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
                self.set_entry(number, task, None);
            }
            GrantFinish::Yield => {
                self.forget_events(held);
                self.requeue(now, number, task);
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
                // A caller that extends a grant knows of it.
                if let Some((id, _)) = self.outbox.find(held, EventKind::Acquired) {
                    self.set_event(id, None);
                    // A request that had to wait for it may be sent now.
                    if !self.outbox.of_grant(held).is_empty() {
                        self.note_new_events(number);
                    }
                }
                self.change_hold(number, task, |hold| {
                    hold.lease_until = now + span;
                    hold.ack_by = Timestamp::NEVER;
                });
            }
        }
    }

    /// Puts a holder back into the queue after the semaphore's cool-down.
    pub(super) fn requeue(&mut self, now: Timestamp, number: u32, task: TaskId) {
        let cool_down = self.semaphore(number).record.options.cool_down;
        self.requeue_after(number, task, now, cool_down);
    }

    /// Puts a holder back into the queue after this time.
    pub(super) fn requeue_after(&mut self, number: u32, task: TaskId, now: Timestamp, after: Span) {
        let stand =
            if after.is_zero() { EntryState::Wait } else { EntryState::Delayed(now + after) };
        self.change_entry(number, task, |entry| entry.state = stand);
    }

    pub(super) fn change_hold(
        &mut self,
        number: u32,
        task: TaskId,
        change: impl FnOnce(&mut HeldGrant),
    ) {
        self.change_entry(number, task, |entry| {
            if let EntryState::Held(hold) = &mut entry.state {
                change(hold);
            }
        });
    }

    /// Removes the pending events of a grant. Returns whether its holder may have received one.
    pub(super) fn forget_events(&mut self, grant: (u32, TaskId, Grant)) -> bool {
        let untold = self.is_grant_unseen(grant);
        for id in self.outbox.of_grant(grant).to_vec() {
            self.set_event(id, None);
        }
        !untold
    }

    /// Whether no event of a grant can have been received yet.
    pub(super) fn is_grant_unseen(&self, grant: (u32, TaskId, Grant)) -> bool {
        let acquired = self.outbox.find(grant, EventKind::Acquired);
        acquired.is_some_and(|(_, row)| row.attempts == 0)
    }
}

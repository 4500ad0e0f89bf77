//! Grants free capacity to waiting tasks and asks holders to release: runs after every change of a
//! semaphore.

use crate::limits::{ADMIT_STEP_PLACES, ADMIT_STEPS_MAX};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

use super::command::EventKind;
use super::entry::{EntryState, HeldGrant};
use super::gated::tube_task;
use super::key::{Grant, Priority};
use super::semaphores::{Semaphore, Semaphores};

impl Semaphores {
    /// Takes steps until none is left, or until so many were taken that other commands should run:
    /// then the next tick continues.
    pub(super) fn admit_waiters(&mut self, now: Timestamp, number: u32) {
        let mut recheck = None;
        let mut left = ADMIT_STEPS_MAX;
        while let Some(cost) = self.step(now, number, &mut recheck) {
            left = left.saturating_sub(cost);
            if left == 0 {
                recheck = Some(now);
                break;
            }
        }
        if self.semaphore(number).record.recheck_at != recheck {
            self.update(number, |record| record.recheck_at = recheck);
        }
        self.schedule(number);
    }

    /// Takes one step, if there is one, and returns its cost.
    fn step(
        &mut self,
        now: Timestamp,
        number: u32,
        recheck: &mut Option<Timestamp>,
    ) -> Option<usize> {
        *recheck = None;
        if self.admit(now, number) {
            return Some(1);
        }
        // The other steps search for a waiting task behind as many as were asked.
        let cost = 1 + self.queue(number).revoking() / ADMIT_STEP_PLACES;
        let taken = self.unrevoke(now, number)
            || self.end_decline(number)
            || self.revoke(now, number, recheck)
            || self.shed(now, number);
        taken.then_some(cost)
    }

    /// Gives a free grant to the best waiting task.
    fn admit(&mut self, now: Timestamp, number: u32) -> bool {
        let semaphore = self.semaphore(number);
        let options = &semaphore.record.options;
        if semaphore.queue.held() >= options.active as usize {
            return false;
        }
        let Some(task) = semaphore.queue.waiter(0) else { return false };
        let grant = Grant(semaphore.record.grant_seq + 1);
        // A tube notices by itself that its task got a grant.
        let is_external = tube_task(task).is_none();
        let until = |span: Option<Span>| span.map_or(Timestamp::NEVER, |span| now + span);
        let hold = HeldGrant {
            grant,
            granted: now,
            // A taken task of a tube has a lease there, which returns it: with another lease here
            // the grant would go to another task while the work continues.
            lease_until: until(options.lease.filter(|_| is_external)),
            ack_by: until(options.ack_timeout.filter(|_| is_external)),
            revoke_at: None,
            pinned: false,
        };
        self.update(number, |record| record.grant_seq = grant.0);
        self.change_entry(number, task, |entry| entry.state = EntryState::Held(Box::new(hold)));
        if is_external {
            self.add_event(now, (number, task, grant), EventKind::Acquired);
        }
        true
    }

    /// Asks the worst holder to release for a better waiting task: one holder for each of those.
    fn revoke(&mut self, now: Timestamp, number: u32, recheck: &mut Option<Timestamp>) -> bool {
        let semaphore = self.semaphore(number);
        let (queue, options) = (&semaphore.queue, &semaphore.record.options);
        let full = queue.held() == options.active as usize;
        if !full || queue.revoking() >= options.revoking_limit() {
            return false;
        }
        let (waiter, holder) = (queue.waiter(queue.revoking()), queue.worst_acquired());
        let (Some(waiter), Some(holder)) = (waiter, holder) else { return false };
        let (wanted, held) = (self.priority(number, waiter), self.priority(number, holder));
        if !wanted.beats(held, options.margin) || !may_ask(semaphore, holder) {
            return false;
        }
        let Some(hold) = queue.get(holder).and_then(|entry| entry.hold()) else { return false };
        let ripe_at = hold.granted + options.min_hold;
        if ripe_at > now {
            *recheck = Some(ripe_at).filter(|moment| *moment != Timestamp::NEVER);
            return false;
        }
        let grant = hold.grant;
        self.ask_to_release(now, number, holder, grant);
        true
    }

    /// The capacity was lowered: asks the worst holders to release, regardless of waiting tasks.
    fn shed(&mut self, now: Timestamp, number: u32) -> bool {
        let semaphore = self.semaphore(number);
        let (queue, options) = (&semaphore.queue, &semaphore.record.options);
        let too_many = queue.acquired() > options.active as usize;
        let asked_enough = queue.revoking() >= options.shedding_limit();
        if !options.shed || !too_many || asked_enough {
            return false;
        }
        let holder = queue.worst_acquired().filter(|holder| may_ask(semaphore, *holder));
        let Some(holder) = holder else { return false };
        let Some(hold) = queue.get(holder).and_then(|entry| entry.hold()) else { return false };
        let grant = hold.grant;
        self.ask_to_release(now, number, holder, grant);
        true
    }

    /// Lets the best holder that was asked to release keep its grant, when no better task waits for
    /// it any more.
    fn unrevoke(&mut self, now: Timestamp, number: u32) -> bool {
        let semaphore = self.semaphore(number);
        let (queue, options) = (&semaphore.queue, &semaphore.record.options);
        let excess = queue.held().saturating_sub(options.active as usize);
        let asked_to_shed = if options.shed { excess } else { 0 };
        let Some(asked_for_waiters) = queue.revoking().checked_sub(asked_to_shed + 1) else {
            return false;
        };
        let Some(holder) = queue.best_revoking() else { return false };
        let Some(hold) = queue.get(holder).and_then(|entry| entry.hold()) else { return false };
        let grant = hold.grant;
        if let Some(waiter) = queue.waiter(asked_for_waiters)
            && self.priority(number, waiter) > self.priority(number, holder)
        {
            return false;
        }
        self.change_hold(number, holder, |hold| hold.revoke_at = None);
        self.withdraw_release_request(now, (number, holder, grant));
        true
    }

    /// A decline holds as long as the declined request would: when no better task waits for the
    /// grant, and there are not too many holders, the holder may be asked again.
    fn end_decline(&mut self, number: u32) -> bool {
        let semaphore = self.semaphore(number);
        let (queue, options) = (&semaphore.queue, &semaphore.record.options);
        let Some(holder) = queue.best_pinned() else { return false };
        if options.shed && queue.held() > options.active as usize {
            return false;
        }
        if let Some(waiter) = queue.waiter(0)
            && self.priority(number, waiter) > self.priority(number, holder)
        {
            return false;
        }
        self.change_hold(number, holder, |hold| hold.pinned = false);
        true
    }

    fn priority(&self, number: u32, task: TaskId) -> Priority {
        self.queue(number).get(task).map_or(Priority::ZERO, |entry| entry.priority)
    }

    /// Asks a holder to release. One whose grant was not sent yet, or whose task is not taken,
    /// loses the grant without an event.
    fn ask_to_release(&mut self, now: Timestamp, number: u32, task: TaskId, grant: Grant) {
        let about = (number, task, grant);
        if self.is_grant_unseen(about) || self.is_idle(task) {
            self.forget_events(about);
            return self.change_entry(number, task, |entry| entry.state = EntryState::Wait);
        }
        let again_at = now + self.semaphore(number).record.options.revoke_grace;
        self.change_hold(number, task, |hold| hold.revoke_at = Some(again_at));
        let keep = self.outbox.find(about, EventKind::Keep).map(|(keep, _)| keep);
        if let Some(keep) = keep {
            self.set_event(keep, None);
        }
        // Sent even if `keep` was not sent yet, because the first request may have been lost. But
        // it may also have arrived, so this one counts as sent: if it is withdrawn, `keep` must
        // follow.
        self.add_event_with_attempts(now, about, EventKind::TryRelease, u32::from(keep.is_some()));
    }

    /// Lets a holder know that it need not release, unless the request was never sent.
    fn withdraw_release_request(&mut self, now: Timestamp, about: (u32, TaskId, Grant)) {
        if let Some((request, row)) = self.outbox.find(about, EventKind::TryRelease) {
            let heard = row.attempts > 0;
            self.set_event(request, None);
            if !heard {
                return;
            }
        }
        self.add_event(now, about, EventKind::Keep);
    }
}

/// Whether the worst holder that can be asked is not among the protected best ones. All holders
/// count: those that can be asked are better than the worst of them, and of the others some are.
fn may_ask(semaphore: &Semaphore, worst: TaskId) -> bool {
    let (queue, protected) = (&semaphore.queue, semaphore.record.options.protected());
    if queue.unpinned() > protected {
        return true;
    }
    let missing = protected + 1 - queue.unpinned();
    queue.get(worst).is_some_and(|entry| queue.exempt_before(entry.rank(), missing) == missing)
}

//! Who gets in, and who is asked to leave: run at the end of everything that changes a semaphore.

use crate::limits::{SETTLE_STEP_PLACES, SETTLE_STEPS_MAX};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

use super::book::{Semaphore, Semaphores};
use super::command::EventKind;
use super::gated::tube_task;
use super::key::{Grant, Priority};
use super::place::{Hold, Stand};

impl Semaphores {
    /// Takes steps until none is left to take, or so many were taken that others should have their turn: then
    /// the next tick goes on.
    pub(super) fn settle(&mut self, now: Timestamp, number: u32) {
        let mut recheck = None;
        let mut left = SETTLE_STEPS_MAX;
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

    /// Takes one step, if there is one to take, and says what it cost.
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
        // The others look for one who waits behind as many as were asked.
        let cost = 1 + self.line(number).revoking() / SETTLE_STEP_PLACES;
        let taken = self.unrevoke(now, number)
            || self.end_decline(number)
            || self.revoke(now, number, recheck)
            || self.shed(now, number);
        taken.then_some(cost)
    }

    /// The best who waits gets a free place.
    fn admit(&mut self, now: Timestamp, number: u32) -> bool {
        let semaphore = self.semaphore(number);
        let options = &semaphore.record.options;
        if semaphore.line.held() >= options.active as usize {
            return false;
        }
        let Some(task) = semaphore.line.waiter(0) else { return false };
        let grant = Grant(semaphore.record.grant_seq + 1);
        // A tube sees for itself that its task was let in.
        let is_told = tube_task(task).is_none();
        let until = |span: Option<Span>| span.map_or(Timestamp::NEVER, |span| now + span);
        let hold = Hold {
            grant,
            granted: now,
            // Who works on a task of a tube has a lease there, which brings the task back: with one more here the
            // place would go to another while the work goes on.
            lease_until: until(options.lease.filter(|_| is_told)),
            ack_by: until(options.ack_timeout.filter(|_| is_told)),
            revoke_at: None,
            pinned: false,
        };
        self.update(number, |record| record.grant_seq = grant.0);
        self.replace(number, task, |place| place.stand = Stand::Held(Box::new(hold)));
        if is_told {
            self.tell(now, (number, task, grant), EventKind::Acquired);
        }
        true
    }

    /// The worst holder is asked to release for somebody better who waits: one holder for each of those.
    fn revoke(&mut self, now: Timestamp, number: u32, recheck: &mut Option<Timestamp>) -> bool {
        let semaphore = self.semaphore(number);
        let (line, options) = (&semaphore.line, &semaphore.record.options);
        let full = line.held() == options.active as usize;
        if !full || line.revoking() >= options.revoking_limit() {
            return false;
        }
        let (waiter, holder) = (line.waiter(line.revoking()), line.worst_acquired());
        let (Some(waiter), Some(holder)) = (waiter, holder) else { return false };
        let (wanted, held) = (self.priority(number, waiter), self.priority(number, holder));
        if !wanted.beats(held, options.margin) || !may_ask(semaphore, holder) {
            return false;
        }
        let Some(hold) = line.get(holder).and_then(|place| place.hold()) else { return false };
        let ripe_at = hold.granted + options.min_hold;
        if ripe_at > now {
            *recheck = Some(ripe_at).filter(|moment| *moment != Timestamp::NEVER);
            return false;
        }
        let grant = hold.grant;
        self.ask_to_release(now, number, holder, grant);
        true
    }

    /// The capacity was lowered: the worst holders are asked to release, whoever waits.
    fn shed(&mut self, now: Timestamp, number: u32) -> bool {
        let semaphore = self.semaphore(number);
        let (line, options) = (&semaphore.line, &semaphore.record.options);
        let too_many = line.acquired() > options.active as usize;
        let asked_enough = line.revoking() >= options.shedding_limit();
        if !options.shed || !too_many || asked_enough {
            return false;
        }
        let holder = line.worst_acquired().filter(|holder| may_ask(semaphore, *holder));
        let Some(holder) = holder else { return false };
        let Some(hold) = line.get(holder).and_then(|place| place.hold()) else { return false };
        let grant = hold.grant;
        self.ask_to_release(now, number, holder, grant);
        true
    }

    /// The best who was asked to release keeps its grant, when nobody better waits for it any more.
    fn unrevoke(&mut self, now: Timestamp, number: u32) -> bool {
        let semaphore = self.semaphore(number);
        let (line, options) = (&semaphore.line, &semaphore.record.options);
        let excess = line.held().saturating_sub(options.active as usize);
        let asked_to_shed = if options.shed { excess } else { 0 };
        let Some(asked_for_waiters) = line.revoking().checked_sub(asked_to_shed + 1) else {
            return false;
        };
        let Some(holder) = line.best_revoking() else { return false };
        let Some(hold) = line.get(holder).and_then(|place| place.hold()) else { return false };
        let grant = hold.grant;
        if let Some(waiter) = line.waiter(asked_for_waiters)
            && self.priority(number, waiter) > self.priority(number, holder)
        {
            return false;
        }
        self.change_hold(number, holder, |hold| hold.revoke_at = None);
        self.take_back_request(now, (number, holder, grant));
        true
    }

    /// A decline stands as long as the request that it answered would: when no better task waits for the place, and it
    /// is not one of too many, its holder may be asked again.
    fn end_decline(&mut self, number: u32) -> bool {
        let semaphore = self.semaphore(number);
        let (line, options) = (&semaphore.line, &semaphore.record.options);
        let Some(holder) = line.best_pinned() else { return false };
        if options.shed && line.held() > options.active as usize {
            return false;
        }
        if let Some(waiter) = line.waiter(0)
            && self.priority(number, waiter) > self.priority(number, holder)
        {
            return false;
        }
        self.change_hold(number, holder, |hold| hold.pinned = false);
        true
    }

    fn priority(&self, number: u32, task: TaskId) -> Priority {
        self.line(number).get(task).map_or(Priority::ZERO, |place| place.priority)
    }

    /// Asks a holder to release. One that nobody told of its grant, or that nobody works on, loses it without a
    /// word.
    fn ask_to_release(&mut self, now: Timestamp, number: u32, task: TaskId, grant: Grant) {
        let about = (number, task, grant);
        if self.is_untold(about) || self.is_idle(task) {
            self.forget_events(about);
            return self.replace(number, task, |place| place.stand = Stand::Wait);
        }
        let again_at = now + self.semaphore(number).record.options.revoke_grace;
        self.change_hold(number, task, |hold| hold.revoke_at = Some(again_at));
        let keep = self.outbox.find(about, EventKind::Keep).map(|(keep, _)| keep);
        if let Some(keep) = keep {
            self.set_event(keep, None);
        }
        // Also to one that was not told yet that it may stay: the first request may be lost. But that one may have been
        // heard as well, so this one counts as told: if it is taken back, `keep` must follow.
        self.tell_again(now, about, EventKind::TryRelease, u32::from(keep.is_some()));
    }

    /// Tells a holder that it need not release, unless it never heard that it should.
    fn take_back_request(&mut self, now: Timestamp, about: (u32, TaskId, Grant)) {
        if let Some((request, row)) = self.outbox.find(about, EventKind::TryRelease) {
            let heard = row.attempts > 0;
            self.set_event(request, None);
            if !heard {
                return;
            }
        }
        self.tell(now, about, EventKind::Keep);
    }
}

/// Whether the worst holder that can be asked is outside of the best, which never are. All holders count: those that can
/// be asked are better than the worst of them, and of the others some are.
fn may_ask(semaphore: &Semaphore, worst: TaskId) -> bool {
    let (line, protected) = (&semaphore.line, semaphore.record.options.protected());
    if line.unpinned() > protected {
        return true;
    }
    let missing = protected + 1 - line.unpinned();
    line.get(worst).is_some_and(|place| line.exempt_before(place.rank(), missing) == missing)
}

//! Serves waiting commands, and ends their waits.

use taskyard_core::{Error, Reply, Result, TubeName};

use crate::event_loop::{EventLoop, Origin, can_wait};
use crate::request::JobId;
use crate::waiters::{Side, WaiterId};

impl EventLoop {
    /// Builds the next batch: tasks to return, held commands, and the oldest waiters of every tube
    /// that has something for them.
    pub fn stage(&mut self) {
        if self.has_to_stage() {
            self.stage_batch();
        }
        self.send_finished();
    }

    /// Whether a batch follows the one that has just run. After most turns nothing does.
    fn has_to_stage(&self) -> bool {
        !self.returns.is_empty()
            || self.scheduler.has_fires()
            || self.listeners.new_events.any()
            || !self.takes.is_clear()
            || !self.puts.is_clear()
    }

    fn stage_batch(&mut self) {
        for command in std::mem::take(&mut self.returns) {
            self.batch.push(Origin::Return, command);
        }
        self.push_schedules();
        self.wake_listeners();
        // Takes come last, so that nothing in this batch becomes ready after a take found nothing.
        for side in [Side::Put, Side::Take] {
            self.admit_held(side);
            let wanted = &mut self.order_guard(side).wanted;
            if wanted.is_empty() {
                continue;
            }
            for (tube, amount) in std::mem::take(wanted) {
                self.wake(side, &tube, amount);
            }
        }
    }

    /// Adds the oldest waiters of a tube that has `amount` tasks or that much free capacity, or
    /// only the oldest if the amount is unknown. Waiters whose callers are gone are removed
    /// instead.
    fn wake(&mut self, side: Side, tube: &TubeName, amount: Option<u64>) {
        let mut left = amount.unwrap_or(u64::MAX);
        let mut gone = Vec::new();
        for (id, waiter) in self.waiters.queue(side, tube) {
            if left == 0 {
                break;
            }
            if self.jobs.is_abandoned(waiter.slot.job) {
                gone.push(id);
                continue;
            }
            let need = waiter.need();
            // If one does not fit, none behind it is tried: that would be overtaking.
            if need > left {
                break;
            }
            // Behind a put whose need is not known, none is tried either.
            let is_known = amount.is_some() && waiter.is_need_exact();
            left = if is_known { left - need } else { 0 };
            self.batch.push(Origin::Waiter(waiter.slot, id), waiter.command.clone());
        }
        for id in gone {
            self.end_wait(id);
        }
    }

    /// Records that a tube with waiting commands has this many tasks or this much free capacity;
    /// `None` when only a try can tell.
    pub fn want(&mut self, side: Side, tube: TubeName, amount: Option<u64>) {
        if amount == Some(0) || !self.waiters.has(side, &tube) {
            return;
        }
        let wanted = self.order_guard(side).wanted.entry(tube).or_default();
        *wanted = match (side, *wanted, amount) {
            // A take too many finds nothing and keeps waiting.
            (Side::Take, Some(before), Some(more)) => Some(before.saturating_add(more)),
            // The latest value is right: a put too many might be a smaller one that overtakes a
            // larger one.
            (_, before, latest) => latest.or(before),
        };
    }

    /// Answers a waiter whose command ran, unless it has to keep waiting.
    pub fn serve(&mut self, id: WaiterId, reply: Result<Reply>) {
        if can_wait(&reply) {
            return self.waiters.update_fallback(id, reply);
        }
        let Some(waiter) = self.waiters.remove(id) else { return };
        // A put may have left some capacity, and a failed take used up no task.
        if waiter.side == Side::Put || reply.is_err() {
            self.want(waiter.side, waiter.tube, None);
        }
        self.jobs.answer(waiter.slot, reply);
    }

    /// Ends the waits whose callers are gone, then those that have expired.
    pub fn end_cancelled_and_expired_waits(&mut self, gone: Vec<JobId>) {
        self.end_expired_listeners(!gone.is_empty());
        for id in gone {
            for waiter in self.jobs.waiters_of(id) {
                self.end_wait(waiter);
            }
        }
        while let Some(id) = self.waiters.expired(self.now) {
            self.end_wait(id);
        }
        self.send_finished();
    }

    /// Ends the waits that last only for this turn.
    pub fn end_same_turn_waits(&mut self) {
        for id in std::mem::take(&mut self.same_turn_waiters) {
            self.end_wait(id);
        }
        self.send_finished();
    }

    /// Answers all waiting commands, because the engine stops.
    pub fn end_all_waits(&mut self) {
        self.end_all_listeners();
        for id in self.waiters.ids() {
            let Some(waiter) = self.waiters.remove(id) else { continue };
            let reply = match waiter.side {
                Side::Take => waiter.fallback,
                Side::Put => Err(Error::ShuttingDown),
            };
            self.jobs.answer(waiter.slot, reply);
        }
        self.send_finished();
    }

    /// Ends a wait with its fallback reply.
    fn end_wait(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.remove(id) else { return };
        self.jobs.answer(waiter.slot, waiter.fallback);
        if waiter.side == Side::Put {
            // The next one may need less capacity.
            self.want(Side::Put, waiter.tube, None);
        }
    }
}

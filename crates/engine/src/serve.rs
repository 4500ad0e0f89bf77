//! How those who wait are served, and how they leave.

use taskyard_core::{Error, Reply, Result, TubeName};

use crate::inbox::JobId;
use crate::running::{Origin, Running, may_pass};
use crate::waiters::{Side, WaiterId};

impl Running {
    /// Puts the next batch together: what goes back, what was held, and the oldest waiters of every
    /// tube that has something for them.
    pub fn stage(&mut self) {
        for command in std::mem::take(&mut self.returns) {
            self.round.push(Origin::Return, command);
        }
        self.wake_listeners();
        // Takes come last, so that within this batch nothing becomes takeable after one of them
        // found nothing.
        for side in [Side::Put, Side::Take] {
            self.admit_held(side);
            let wanted = std::mem::take(&mut self.gate(side).wanted);
            for (tube, amount) in wanted {
                self.wake(side, &tube, amount);
            }
        }
        self.send_finished();
    }

    /// Wakes the oldest waiters of a tube that has `amount` tasks or that much room, or the oldest
    /// alone when that is not known. Those whose callers are gone leave instead.
    fn wake(&mut self, side: Side, tube: &TubeName, amount: Option<u64>) {
        let mut left = amount.unwrap_or(u64::MAX);
        let mut gone = Vec::new();
        for (id, waiter) in self.waiters.line(side, tube) {
            if left == 0 {
                break;
            }
            if self.jobs.is_abandoned(waiter.place.slot) {
                gone.push(id);
                continue;
            }
            let need = waiter.need();
            // Nobody behind one who does not fit is tried: that would be to overtake.
            if need > left {
                break;
            }
            left = if amount.is_some() { left - need } else { 0 };
            self.round.push(Origin::Waiter(waiter.place, id), waiter.command.clone());
        }
        for id in gone {
            self.dismiss(id);
        }
    }

    /// Notes that a tube where somebody waits has this many tasks or this much room; `None` when
    /// only a try can tell.
    pub fn want(&mut self, side: Side, tube: TubeName, amount: Option<u64>) {
        if amount == Some(0) || !self.waiters.has(side, &tube) {
            return;
        }
        let wanted = self.gate(side).wanted.entry(tube).or_default();
        *wanted = match (side, *wanted, amount) {
            // A take too many finds nothing and goes on waiting.
            (Side::Take, Some(before), Some(more)) => Some(before.saturating_add(more)),
            // The latest is right: a put too many might be a smaller one that overtakes a larger one.
            (_, before, latest) => latest.or(before),
        };
    }

    /// Answers a waiter whose command ran, unless it has to go on waiting.
    pub fn serve(&mut self, id: WaiterId, reply: Result<Reply>) {
        if may_pass(&reply) {
            return self.waiters.refused_again(id, reply);
        }
        let Some(waiter) = self.waiters.remove(id) else { return };
        // Of the room a put used some may be left, and a take that failed used up no task.
        if waiter.side == Side::Put || reply.is_err() {
            self.want(waiter.side, waiter.tube, None);
        }
        self.jobs.answer(waiter.place, reply);
    }

    /// Lets those go whose callers left, and then those whose time is over.
    pub fn let_go(&mut self, gone: Vec<JobId>) {
        self.let_listeners_go(!gone.is_empty());
        for id in gone {
            for waiter in self.jobs.waiters_of(id) {
                self.dismiss(waiter);
            }
        }
        while let Some(id) = self.waiters.expired(self.now) {
            self.dismiss(id);
        }
        self.send_finished();
    }

    /// Answers those who do not wait longer than this turn.
    pub fn dismiss_impatient(&mut self) {
        for id in std::mem::take(&mut self.impatient) {
            self.dismiss(id);
        }
        self.send_finished();
    }

    /// Answers everybody who waits, because the engine stops.
    pub fn dismiss_everybody(&mut self) {
        self.dismiss_listeners();
        for id in self.waiters.ids() {
            let Some(waiter) = self.waiters.remove(id) else { continue };
            let reply = match waiter.side {
                Side::Take => waiter.otherwise,
                Side::Put => Err(Error::ShuttingDown),
            };
            self.jobs.answer(waiter.place, reply);
        }
        self.send_finished();
    }

    /// Answers a waiter who gives up.
    fn dismiss(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.remove(id) else { return };
        self.jobs.answer(waiter.place, waiter.otherwise);
        if waiter.side == Side::Put {
            // The next one may need less room.
            self.want(Side::Put, waiter.tube, None);
        }
    }
}

//! Batches under way at a store that takes more than one at a time.
//!
//! While a batch is under way what arrives forms the next one, and where the store can begin that before it has answered the first, it is
//! given to it. This is only for commands that would be answered the same after the first batch: puts, takes and finishes which
//! nobody waits before. Whenever there is something else to do, those under way are waited for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};

use taskyard_core::{Command, News, TubeName};
use taskyard_store::{Executed, Pending, Store};

use crate::inbox::Job;
use crate::running::{Round, Running};
use crate::waiters::Side;

/// Most batches of one turn, so that what comes after them has its turn too.
const BATCHES_MAX: usize = 64;
/// A take that would wait finds something in a tube that has so many times what all under way want, and at least so much.
const PLENTY_TIMES: u64 = 2;
const PLENTY_MIN: u64 = 1_000;

/// A batch under way.
struct Flight<'a> {
    pending: Pending<'a, Executed>,
    round: Round,
    count: usize,
    /// Whether it has only commands beside which others may be under way.
    plain: bool,
    /// How many tasks its takes want.
    wanted: u64,
    /// Where commands of it may have to wait.
    tries: [HashMap<TubeName, usize>; 2],
}

impl Running {
    /// Runs the batch that was put together, and those that can follow it at once. Tells whether they did more than to let waiters try
    /// in vain.
    pub fn fly(&mut self) -> bool {
        let store = Arc::clone(&self.store);
        let (mut flights, mut begun, mut progress) = (VecDeque::new(), 1, false);
        flights.extend(self.take_off(&*store));
        let mut blocked = false;
        while let Some(first) = flights.front_mut() {
            if let Poll::Ready(executed) =
                first.pending.as_mut().poll(&mut Context::from_waker(&self.bell))
            {
                if let Some(Flight { round, count, .. }) = flights.pop_front() {
                    // Of several that were under way a later one may have been answered before.
                    let wanted = self.ticks.next().filter(|_| begun > 1);
                    progress |= self.land(round, count, executed);
                    wanted.into_iter().for_each(|moment| self.ticks.ask(moment));
                }
                blocked = false;
                continue;
            }
            let under_way: usize = flights.iter().map(|flight| flight.count).sum();
            let room = flights.len() < store.batches_max() && begun < BATCHES_MAX;
            if !room || blocked || !self.may_follow(&flights) {
                self.inbox.wait(usize::MAX);
                continue;
            }
            // As few as trickle in are not worth a batch.
            let worth = under_way.div_ceil(2);
            let jobs = self.inbox.pick_up_behind(worth, |job| self.can_follow(job, &flights));
            match jobs {
                None => self.inbox.wait(worth),
                Some(jobs) if jobs.is_empty() => blocked = true,
                Some(jobs) => {
                    jobs.into_iter().for_each(|job| self.admit(job));
                    flights.extend(self.take_off(&*store));
                    begun += 1;
                    self.send_finished();
                }
            }
        }
        self.takes.open();
        self.puts.open();
        self.send_finished();
        progress
    }

    /// Gives the batch that was put together to the store, if there is anything in it.
    fn take_off<'a>(&mut self, store: &'a dyn Store) -> Option<Flight<'a>> {
        let mut round = std::mem::take(&mut self.round);
        let commands = round.take_commands();
        let tries = [self.takes.take_tries(), self.puts.take_tries()];
        if commands.is_empty() {
            return None;
        }
        self.now = self.timeline.now();
        let (plain, count) = (commands.iter().all(is_plain), commands.len());
        let wanted = commands.iter().map(wants).sum();
        let pending = store.execute(self.timeline.to_store(self.now), commands);
        Some(Flight { pending, round, count, plain, wanted, tries })
    }

    fn land(&mut self, mut round: Round, count: usize, executed: Executed) -> bool {
        self.plenty.clone_from(&executed.effects.ready);
        let progress = self.take_in(&mut round, count, executed);
        self.send_finished();
        progress
    }

    /// Whether there is nothing else to do than to run what arrives.
    fn may_follow(&self, flights: &VecDeque<Flight<'_>>) -> bool {
        flights.iter().all(|flight| flight.plain)
            && !self.stopping
            && self.takes.is_clear()
            && self.puts.is_clear()
            && self.late_drops.is_empty()
            && self.impatient.is_empty()
            && self.returns.is_empty()
            && self.listeners.news == News::Nothing
            && self.next_deadline().is_none_or(|next| next > self.timeline.now())
    }

    /// Whether the commands of a job overtake nobody when they are begun beside these.
    fn can_follow(&self, job: &Job, flights: &VecDeque<Flight<'_>>) -> bool {
        let under_way: u64 = flights.iter().map(|flight| flight.wanted).sum();
        let wanted = under_way + job.commands.iter().map(wants).sum::<u64>();
        job.commands.iter().all(|command| match command {
            Command::Take(take) => {
                let tried = flights.iter().any(|flight| flight.tries[0].contains_key(&take.tube));
                !self.waiters.has(Side::Take, &take.tube)
                    && (!tried || self.has_plenty(&take.tube, wanted))
            }
            Command::Put { tube, .. } => {
                !self.waiters.has(Side::Put, tube)
                    && !flights.iter().any(|flight| flight.tries[1].contains_key(tube))
            }
            other => is_plain(other),
        })
    }

    /// Whether nobody can have found a tube empty who wants so many tasks: it had many more after the last batch.
    fn has_plenty(&self, tube: &TubeName, wanted: u64) -> bool {
        let ready = self.plenty.iter().find(|(name, _)| name == tube).map_or(0, |found| found.1);
        ready >= PLENTY_MIN.max(wanted.saturating_mul(PLENTY_TIMES))
    }
}

/// Whether a command neither needs others to be finished before it, nor others it.
fn is_plain(command: &Command) -> bool {
    matches!(command, Command::Put { .. } | Command::Take(_) | Command::Finish { .. })
}

fn wants(command: &Command) -> u64 {
    match command {
        Command::Take(take) => take.count as u64,
        _ => 0,
    }
}

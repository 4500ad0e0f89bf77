//! Runs several batches at once on a store that accepts a second batch before it has answered the
//! first.
//!
//! While a batch is in flight, arriving commands form the next one. Only commands whose reply does
//! not depend on the end of the first batch are dispatched early: puts, takes and finishes that
//! have no waiting command before them. Whenever there is anything else to do, the loop waits for
//! all batches in flight.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};

use taskyard_core::{Command, NewEvents, TubeName};
use taskyard_store::{Executed, Pending, Store};

use crate::event_loop::{Batch, EventLoop};
use crate::request::Job;
use crate::waiters::Side;

/// Maximum number of batches in one turn, so that everything else gets its turn.
const BATCHES_MAX: usize = 64;
/// A take that would otherwise wait finds tasks for sure if its tube has this many times the tasks
/// wanted by all batches in flight, and at least `SURPLUS_MIN`.
const SURPLUS_FACTOR: u64 = 2;
const SURPLUS_MIN: u64 = 1_000;

/// A batch in flight.
struct PipelinedBatch<'a> {
    pending: Pending<'a, Executed>,
    batch: Box<Batch>,
    count: usize,
    /// Whether all its commands may run beside other batches.
    plain: bool,
    /// The number of tasks that its takes want.
    wanted: u64,
    /// The tubes where its takes (0) and puts (1) may have to wait.
    parkable: [HashMap<TubeName, usize>; 2],
}

impl EventLoop {
    /// Runs the batch under construction and those that can follow it at once. Returns whether
    /// anything happened except fruitless tries of waiters.
    pub async fn run_pipelined(&mut self) -> bool {
        let store = Arc::clone(&self.store);
        let (mut inflight, mut begun, mut progress) = (VecDeque::new(), 1, false);
        inflight.extend(self.dispatch(&*store));
        let mut blocked = false;
        while let Some(first) = inflight.front_mut() {
            if let Poll::Ready(executed) =
                first.pending.as_mut().poll(&mut Context::from_waker(&self.waker))
            {
                if let Some(PipelinedBatch { batch, count, .. }) = inflight.pop_front() {
                    // Of several batches in flight a later one may have been answered earlier.
                    let wanted = self.ticks.next().filter(|_| begun > 1);
                    progress |= self.complete(batch, count, executed);
                    wanted.into_iter().for_each(|moment| self.ticks.request(moment));
                }
                blocked = false;
                continue;
            }
            let under_way: usize = inflight.iter().map(|batch| batch.count).sum();
            let room = inflight.len() < store.batches_max() && begun < BATCHES_MAX;
            if !room || blocked || !self.may_pipeline(&inflight) {
                self.waits.wait(&self.inbox, usize::MAX).await;
                continue;
            }
            // A few commands are not worth a batch.
            let worth = under_way.div_ceil(2);
            let jobs = self.inbox.pick_up_pipelined(worth, |job| self.can_pipeline(job, &inflight));
            match jobs {
                None => self.waits.wait(&self.inbox, worth).await,
                Some(jobs) if jobs.is_empty() => blocked = true,
                Some(jobs) => {
                    jobs.into_iter().for_each(|job| self.admit(job));
                    inflight.extend(self.dispatch(&*store));
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

    /// Gives the batch under construction to the store, unless it is empty.
    fn dispatch<'a>(&mut self, store: &'a dyn Store) -> Option<PipelinedBatch<'a>> {
        let mut batch = self.take_batch();
        let commands = batch.take_commands();
        let parkable = [self.takes.take_first_parkable(), self.puts.take_first_parkable()];
        if commands.is_empty() {
            self.spare_batch = Some(batch);
            return None;
        }
        self.now = self.timeline.now();
        self.note_commands(&commands, &mut batch);
        let (plain, count) = (commands.iter().all(is_plain), commands.len());
        let wanted = commands.iter().map(wants).sum();
        let pending = store.execute(self.timeline.to_store(self.now), commands);
        Some(PipelinedBatch { pending, batch, count, plain, wanted, parkable })
    }

    fn complete(&mut self, mut batch: Box<Batch>, count: usize, executed: Executed) -> bool {
        self.ready_counts.clone_from(&executed.effects.ready);
        let progress = self.apply_executed(&mut batch, count, executed);
        self.spare_batch = Some(batch);
        self.send_finished();
        progress
    }

    /// Whether there is nothing to do except to run what arrives.
    fn may_pipeline(&self, inflight: &VecDeque<PipelinedBatch<'_>>) -> bool {
        inflight.iter().all(|batch| batch.plain)
            && !self.stopping
            && self.takes.is_clear()
            && self.puts.is_clear()
            && self.late_drops.is_empty()
            && self.late_puts.is_empty()
            && self.same_turn_waiters.is_empty()
            && self.returns.is_empty()
            && self.scheduler.is_idle()
            && self.listeners.new_events == NewEvents::Nothing
            && self.next_deadline().is_none_or(|next| next > self.timeline.now())
    }

    /// Whether the commands of a job overtake no earlier command when they run beside these
    /// batches.
    fn can_pipeline(&self, job: &Job, inflight: &VecDeque<PipelinedBatch<'_>>) -> bool {
        let under_way: u64 = inflight.iter().map(|batch| batch.wanted).sum();
        let wanted = under_way + job.commands.as_slice().iter().map(wants).sum::<u64>();
        job.commands.as_slice().iter().all(|command| match command {
            Command::Take(take) => {
                let tried = inflight.iter().any(|batch| batch.parkable[0].contains_key(&take.tube));
                !self.waiters.has(Side::Take, &take.tube)
                    && (!tried || self.has_surplus(&take.tube, wanted))
            }
            Command::Put { tube, .. } => {
                !self.waiters.has(Side::Put, tube)
                    && !inflight.iter().any(|batch| batch.parkable[1].contains_key(tube))
            }
            other => is_plain(other),
        })
    }

    /// Whether a take of `wanted` tasks cannot have found the tube empty: it had many more after
    /// the last batch.
    fn has_surplus(&self, tube: &TubeName, wanted: u64) -> bool {
        let ready =
            self.ready_counts.iter().find(|(name, _)| name == tube).map_or(0, |found| found.1);
        ready >= SURPLUS_MIN.max(wanted.saturating_mul(SURPLUS_FACTOR))
    }
}

/// Whether a command neither depends on the end of other commands nor the reverse.
fn is_plain(command: &Command) -> bool {
    matches!(command, Command::Put { .. } | Command::Take(_) | Command::Finish { .. })
}

fn wants(command: &Command) -> u64 {
    match command {
        Command::Take(take) => take.count as u64,
        _ => 0,
    }
}

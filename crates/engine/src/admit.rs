//! Adds commands to a batch so that no command overtakes an earlier one that still waits.

use std::collections::{BTreeMap, HashMap};

use taskyard_core::{Command, Error, Reply, Result, SemaphoreCommand, Span, Take, TubeName};

use crate::event_loop::{EventLoop, Origin};
use crate::jobs::ReplySlot;
use crate::listeners::listens;
use crate::request::{Job, OneOrMany};
use crate::waiters::{Side, Waiter, needed_capacity};

/// Keeps the order of takes, or of puts, within a batch and from one batch to the next.
#[derive(Debug, Default)]
pub(crate) struct OrderGuard {
    /// The index in the batch of the first command for each tube that may have to wait.
    first_parkable: HashMap<TubeName, usize>,
    /// The index in the batch of the latest command that may let a waiting one succeed.
    changed_at: Option<usize>,
    /// Commands for the next batch: in this one they might overtake.
    pub held: Vec<(ReplySlot, Command)>,
    /// Tubes where waiting commands may succeed: the number of tasks or the free capacity, `None`
    /// when only a try can tell.
    pub wanted: BTreeMap<TubeName, Option<u64>>,
}

impl OrderGuard {
    /// Starts a new batch.
    pub fn open(&mut self) {
        self.first_parkable.clear();
        self.changed_at = None;
    }

    /// Starts a new batch and returns the tubes for which the dispatched one has commands that may
    /// have to wait.
    pub fn take_first_parkable(&mut self) -> HashMap<TubeName, usize> {
        self.changed_at = None;
        std::mem::take(&mut self.first_parkable)
    }

    /// Whether no command is held back and no waiter is to be served.
    pub fn is_clear(&self) -> bool {
        self.held.is_empty() && self.wanted.is_empty()
    }

    /// Records a command at this index of the batch that may have to wait.
    fn note_parkable(&mut self, tube: &TubeName, at: usize) {
        if !self.first_parkable.contains_key(tube) {
            self.first_parkable.insert(tube.clone(), at);
        }
    }

    /// Whether a command on this tube, added now, might get what an earlier one of the batch did
    /// not.
    fn would_overtake(&self, tube: &TubeName) -> bool {
        let Some(changed_at) = self.changed_at else { return false };
        self.first_parkable.get(tube).is_some_and(|first| *first < changed_at)
    }
}

impl EventLoop {
    /// Admits a job: its commands join the batch, are held for the next one, or wait.
    pub fn admit(&mut self, job: Job) {
        let Job { id, commands, takes, may_wait, reply, .. } = job;
        let has_takes = !takes.as_slice().is_empty();
        let count = commands.as_slice().len();
        let job = self.jobs.open(id, count, takes, may_wait, reply);
        let abandoned = has_takes && self.jobs.is_abandoned(job);
        match commands {
            OneOrMany::One(command) => {
                self.admit_command(ReplySlot { job, index: 0 }, command, abandoned);
            }
            OneOrMany::Many(mut commands) => {
                self.batch.reserve(count);
                for (index, command) in commands.drain(..).enumerate() {
                    self.admit_command(ReplySlot { job, index }, command, abandoned);
                }
                self.batch.reuse(commands);
            }
        }
    }

    fn admit_command(&mut self, slot: ReplySlot, mut command: Command, abandoned: bool) {
        if let Command::Schedule(schedule) = &mut command
            && let Err(refusal) = self.prepare_schedule(schedule)
        {
            return self.jobs.answer(slot, Err(refusal));
        }
        match &command {
            // No caller would receive the tasks.
            Command::Take(_) if abandoned => self.jobs.answer(slot, nothing_taken()),
            Command::Take(_) => self.admit_in_order(Side::Take, slot, command),
            Command::Put { .. } => {
                self.takes.changed_at = Some(self.batch.len());
                self.admit_in_order(Side::Put, slot, command);
            }
            Command::DropTube { tube } => {
                let tube = tube.clone();
                self.admit_drop(slot, command, tube);
            }
            _ => {
                if let Some(wait) = listens(&command) {
                    return self.admit_listener(slot, command, wait);
                }
                if changes_something(&command) {
                    self.mark_changed();
                }
                self.batch.push(Origin::Job(slot), command);
            }
        }
    }

    fn admit_in_order(&mut self, side: Side, slot: ReplySlot, command: Command) {
        let Some((tube, wait)) = queueing(&command) else {
            return self.batch.push(Origin::Job(slot), command);
        };
        if self.waiters.has(side, tube) {
            if may_need_no_capacity(&command) {
                // Those that wait have the first try at the capacity of this turn.
                self.late_puts.push((slot, command));
                return;
            }
            return self.park_behind(side, slot, command);
        }
        if self.order_guard(side).would_overtake(tube) {
            self.order_guard(side).held.push((slot, command));
        } else if wait.is_zero() {
            self.batch.push(Origin::Job(slot), command);
        } else {
            let at = self.batch.len();
            self.order_guard(side).note_parkable(tube, at);
            self.batch.push_parkable(slot, command);
        }
    }

    fn admit_drop(&mut self, slot: ReplySlot, command: Command, tube: TubeName) {
        if self.waiters.has(Side::Take, &tube) {
            self.jobs.answer(slot, Err(Error::TubeHasConsumers(tube)));
        } else if self.takes.first_parkable.contains_key(&tube) {
            // Whether a consumer will wait there is known only when this batch is done.
            self.late_drops.push((slot, command));
        } else {
            self.mark_changed();
            self.batch.push(Origin::Job(slot), command);
            // Producers that wait for capacity must learn that the tube is gone, including those in
            // this batch that are not parked yet.
            self.puts.wanted.insert(tube, None);
        }
    }

    /// Admits the postponed drops of tubes, now that the waiting consumers are known.
    pub fn admit_late_drops(&mut self) {
        if self.late_drops.is_empty() {
            return;
        }
        for (slot, command) in std::mem::take(&mut self.late_drops) {
            if let Command::DropTube { tube } = &command {
                let tube = tube.clone();
                self.admit_drop(slot, command, tube);
            }
        }
    }

    /// Admits the postponed puts, which may need no capacity although others wait for it. One that
    /// needs some and finds none waits behind the others.
    pub fn admit_late_puts(&mut self) {
        for (slot, command) in std::mem::take(&mut self.late_puts) {
            match queueing(&command) {
                Some((_, wait)) if !wait.is_zero() => self.batch.push_parkable(slot, command),
                _ => self.batch.push(Origin::Job(slot), command),
            }
        }
    }

    /// Admits held commands, or parks them behind those that wait by now.
    pub fn admit_held(&mut self, side: Side) {
        for (slot, command) in std::mem::take(&mut self.order_guard(side).held) {
            self.admit_in_order(side, slot, command);
        }
    }

    /// Parks a command that was refused temporarily. `refusal` is its reply if that does not
    /// change.
    pub fn park(&mut self, slot: ReplySlot, command: Command, refusal: Result<Reply>) {
        let Some((tube, wait)) = queueing(&command) else {
            return self.jobs.answer(slot, refusal);
        };
        let hopeless = never_fits(&command, &refusal);
        if hopeless || self.stopping || self.jobs.is_abandoned(slot.job) {
            return self.jobs.answer(slot, refusal);
        }
        let side = if matches!(command, Command::Take(_)) { Side::Take } else { Side::Put };
        // A command that does not wait is not counted against the limit of waiting ones.
        let instead = wait.is_zero().then(|| refusal.clone());
        let waiter = Waiter {
            slot,
            side,
            tube: tube.clone(),
            since: self.now,
            until: self.now + wait,
            fallback: refusal,
            command,
        };
        match self.waiters.park(waiter) {
            Ok(id) => {
                self.jobs.note_parked(slot.job, id);
                if wait.is_zero() {
                    self.same_turn_waiters.push(id);
                }
            }
            Err(error) => self.jobs.answer(slot, instead.unwrap_or(Err(error))),
        }
    }

    /// Parks a command without trying it: others already wait there.
    fn park_behind(&mut self, side: Side, slot: ReplySlot, command: Command) {
        if let Command::Take(Take { worker: Some(worker), tube, .. }) = &command
            && let Some(workers) = &mut self.workers
        {
            // No batch shows it to the list of workers while it waits.
            workers.see_waiting(self.now, worker, tube);
        }
        let refusal = match queueing(&command) {
            Some((tube, _)) => {
                self.waiters.queue(side, tube).next().map(|first| first.1.fallback.clone())
            }
            None => None,
        };
        self.park(slot, command, refusal.unwrap_or_else(nothing_taken));
    }

    /// The order guard of this side.
    pub fn order_guard(&mut self, side: Side) -> &mut OrderGuard {
        match side {
            Side::Take => &mut self.takes,
            Side::Put => &mut self.puts,
        }
    }

    fn mark_changed(&mut self) {
        let here = Some(self.batch.len());
        self.takes.changed_at = here;
        self.puts.changed_at = here;
    }
}

/// The tube that a command queues for and how long it waits there; `None` when waiting cannot help
/// it.
fn queueing(command: &Command) -> Option<(&TubeName, Span)> {
    match command {
        Command::Take(take) if take.count > 0 => Some((&take.tube, take.wait)),
        Command::Put { tube, tasks, wait } if !tasks.is_empty() => Some((tube, *wait)),
        _ => None,
    }
}

/// Whether a command may make tasks ready or free capacity.
fn changes_something(command: &Command) -> bool {
    match command {
        Command::Tubes { .. }
        | Command::Peek { .. }
        | Command::Deliveries { .. }
        | Command::List(_)
        | Command::Search(_)
        | Command::Positions { .. }
        | Command::JoinSession { .. } => false,
        Command::Semaphore(command) => changes_tasks(command),
        _ => true,
    }
}

/// Whether a semaphore command may admit or remove a task of a tube.
pub(crate) fn changes_tasks(command: &SemaphoreCommand) -> bool {
    !matches!(
        command,
        SemaphoreCommand::Peek { .. }
            | SemaphoreCommand::Members { .. }
            | SemaphoreCommand::List { .. }
            | SemaphoreCommand::Events { .. }
            | SemaphoreCommand::Acknowledge { .. }
    )
}

/// Whether a put is of tasks with unique keys only: if all keys are held, it adds nothing.
fn may_need_no_capacity(command: &Command) -> bool {
    matches!(command, Command::Put { tasks, .. } if needed_capacity(tasks) == 0)
}

/// Whether a put has more tasks than its tube can ever hold. A tube with a capacity of 0 accepts
/// nothing until it is altered, so puts wait for that, as they do in Tarantool's queue.
fn never_fits(command: &Command, refusal: &Result<Reply>) -> bool {
    match (command, refusal) {
        (Command::Put { tasks, .. }, Err(Error::TubeFull { capacity, .. })) => {
            *capacity > 0 && needed_capacity(tasks) > *capacity
        }
        _ => false,
    }
}

/// The answer to a take that finds nothing.
pub(crate) fn nothing_taken() -> Result<Reply> {
    Ok(Reply::Taken(Vec::new()))
}

//! How commands enter a batch: nobody overtakes those who came before and still wait.

use std::collections::{BTreeMap, HashMap};

use taskyard_core::{Command, Error, Reply, Result, SemaphoreCommand, Span, TubeName};

use crate::inbox::Job;
use crate::jobs::Place;
use crate::listeners::listens;
use crate::running::{Origin, Running};
use crate::waiters::{Side, Waiter};

/// Keeps the order of takes, or of puts, within a batch and from one batch to the next.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Where in the batch the first command of a tube stands that may have to wait.
    first_try: HashMap<TubeName, usize>,
    /// Where in the batch the latest command stands that may let a waiting one succeed.
    stirred_at: Option<usize>,
    /// Commands for the next batch: in this one they might overtake.
    pub held: Vec<(Place, Command)>,
    /// In which tubes there may be something for those who wait: how many tasks or how much room,
    /// `None` when only a try can tell.
    pub wanted: BTreeMap<TubeName, Option<u64>>,
}

impl Gate {
    /// Starts a new batch.
    pub fn open(&mut self) {
        self.first_try.clear();
        self.stirred_at = None;
    }

    /// Starts a new batch, while one with commands of these tubes that may have to wait is under way.
    pub fn take_tries(&mut self) -> HashMap<TubeName, usize> {
        self.stirred_at = None;
        std::mem::take(&mut self.first_try)
    }

    /// Whether nobody is to be served or let in.
    pub fn is_clear(&self) -> bool {
        self.held.is_empty() && self.wanted.is_empty()
    }

    /// Notes a command at this place of the batch that may have to wait.
    fn note_try(&mut self, tube: &TubeName, at: usize) {
        if !self.first_try.contains_key(tube) {
            self.first_try.insert(tube.clone(), at);
        }
    }

    /// Whether a command on this tube, now, might get what an earlier one of the batch did not.
    fn would_overtake(&self, tube: &TubeName) -> bool {
        let Some(stirred_at) = self.stirred_at else { return false };
        self.first_try.get(tube).is_some_and(|first| *first < stirred_at)
    }
}

impl Running {
    /// Lets a job in: its commands join the batch, are held for the next one, or wait.
    pub fn admit(&mut self, job: Job) {
        let takes = !job.takes.is_empty();
        let slot = self.jobs.open(job.id, job.commands.len(), job.takes, job.reply);
        self.round.reserve(job.commands.len());
        let abandoned = takes && self.jobs.is_abandoned(slot);
        for (index, command) in job.commands.into_iter().enumerate() {
            let place = Place { slot, index };
            match &command {
                // Nobody would receive what is taken.
                Command::Take(_) if abandoned => self.jobs.answer(place, nothing_taken()),
                Command::Take(_) => self.admit_in_order(Side::Take, place, command),
                Command::Put { .. } => {
                    self.takes.stirred_at = Some(self.round.len());
                    self.admit_in_order(Side::Put, place, command);
                }
                Command::DropTube { tube } => {
                    let tube = tube.clone();
                    self.admit_drop(place, command, tube);
                }
                _ => {
                    if let Some(wait) = listens(&command) {
                        self.admit_listener(place, command, wait);
                        continue;
                    }
                    if changes_something(&command) {
                        self.stir();
                    }
                    self.round.push(Origin::Job(place), command);
                }
            }
        }
    }

    fn admit_in_order(&mut self, side: Side, place: Place, command: Command) {
        let Some((tube, wait)) = queueing(&command) else {
            return self.round.push(Origin::Job(place), command);
        };
        if self.waiters.has(side, tube) {
            return self.park_behind(side, place, command);
        }
        if self.gate(side).would_overtake(tube) {
            self.gate(side).held.push((place, command));
        } else if wait.is_zero() {
            self.round.push(Origin::Job(place), command);
        } else {
            let at = self.round.len();
            self.gate(side).note_try(tube, at);
            self.round.push_try(place, command);
        }
    }

    fn admit_drop(&mut self, place: Place, command: Command, tube: TubeName) {
        if self.waiters.has(Side::Take, &tube) {
            self.jobs.answer(place, Err(Error::TubeHasConsumers(tube)));
        } else if self.takes.first_try.contains_key(&tube) {
            // Whether somebody will wait there shows only when this batch is done.
            self.late_drops.push((place, command));
        } else {
            self.stir();
            self.round.push(Origin::Job(place), command);
            // Producers who wait for room in it must learn that it is gone, also those of this batch
            // who are not parked yet.
            self.puts.wanted.insert(tube, None);
        }
    }

    /// Lets the held drops of tubes in, now that it is known who waits.
    pub fn admit_late_drops(&mut self) {
        for (place, command) in std::mem::take(&mut self.late_drops) {
            if let Command::DropTube { tube } = &command {
                let tube = tube.clone();
                self.admit_drop(place, command, tube);
            }
        }
    }

    /// Lets held commands in, or parks them behind those who wait by now.
    pub fn admit_held(&mut self, side: Side) {
        for (place, command) in std::mem::take(&mut self.gate(side).held) {
            self.admit_in_order(side, place, command);
        }
    }

    /// Parks a command that was refused for now. `refusal` is its answer if that does not change.
    pub fn park(&mut self, place: Place, command: Command, refusal: Result<Reply>) {
        let Some((tube, wait)) = queueing(&command) else {
            return self.jobs.answer(place, refusal);
        };
        let hopeless = never_fits(&command, &refusal);
        if hopeless || self.stopping || self.jobs.is_abandoned(place.slot) {
            return self.jobs.answer(place, refusal);
        }
        let side = if matches!(command, Command::Take(_)) { Side::Take } else { Side::Put };
        // For somebody who does not wait, there is always room in front of those who do.
        let instead = wait.is_zero().then(|| refusal.clone());
        let waiter = Waiter {
            place,
            side,
            tube: tube.clone(),
            since: self.now,
            until: self.now + wait,
            otherwise: refusal,
            command,
        };
        match self.waiters.park(waiter) {
            Ok(id) => {
                self.jobs.park(place.slot, id);
                if wait.is_zero() {
                    self.impatient.push(id);
                }
            }
            Err(error) => self.jobs.answer(place, instead.unwrap_or(Err(error))),
        }
    }

    /// Parks a command without trying it: others wait there already.
    fn park_behind(&mut self, side: Side, place: Place, command: Command) {
        let refusal = match queueing(&command) {
            Some((tube, _)) => {
                self.waiters.line(side, tube).next().map(|first| first.1.otherwise.clone())
            }
            None => None,
        };
        self.park(place, command, refusal.unwrap_or_else(nothing_taken));
    }

    /// The gate of this side.
    pub fn gate(&mut self, side: Side) -> &mut Gate {
        match side {
            Side::Take => &mut self.takes,
            Side::Put => &mut self.puts,
        }
    }

    fn stir(&mut self) {
        let here = Some(self.round.len());
        self.takes.stirred_at = here;
        self.puts.stirred_at = here;
    }
}

/// The tube a command queues for and how long it waits there; `None` when waiting cannot help it.
fn queueing(command: &Command) -> Option<(&TubeName, Span)> {
    match command {
        Command::Take(take) if take.count > 0 => Some((&take.tube, take.wait)),
        Command::Put { tube, tasks, wait } if !tasks.is_empty() => Some((tube, *wait)),
        _ => None,
    }
}

/// Whether a command may make tasks takeable or room free.
fn changes_something(command: &Command) -> bool {
    !matches!(
        command,
        Command::Tubes { .. }
            | Command::Peek { .. }
            | Command::Deliveries { .. }
            | Command::JoinSession { .. }
            // What the others do may let a task of a tube in.
            | Command::Semaphore(
                SemaphoreCommand::Look { .. }
                    | SemaphoreCommand::Members { .. }
                    | SemaphoreCommand::List { .. }
                    | SemaphoreCommand::Events { .. }
                    | SemaphoreCommand::Acknowledge { .. }
            )
    )
}

/// Whether a put has more tasks than its tube may ever hold.
fn never_fits(command: &Command, refusal: &Result<Reply>) -> bool {
    match (command, refusal) {
        (Command::Put { tasks, .. }, Err(Error::TubeFull { capacity, .. })) => {
            tasks.len() as u64 > *capacity
        }
        _ => false,
    }
}

/// The answer to a take that finds nothing.
pub(crate) fn nothing_taken() -> Result<Reply> {
    Ok(Reply::Taken(Vec::new()))
}

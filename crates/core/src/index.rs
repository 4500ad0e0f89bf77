//! The orders in which the tasks of one tube are found.

use std::collections::BTreeSet;

use crate::order::Order;
use crate::semaphore::gated::gated;
use crate::session::SessionId;
use crate::slots::{Slot, Standing};
use crate::stats::Counts;
use crate::subqueue::{Place, Subqueues};
use crate::task::TaskId;
use crate::time::Timestamp;
use crate::tube::TubeOptions;

/// What the tasks of all tubes share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// What each session holds: (session, tube number, task).
    pub held: BTreeSet<(SessionId, u32, TaskId)>,
    /// Tasks that are taken in tubes with a semaphore, by their numbers there.
    pub at_work: BTreeSet<TaskId>,
    /// Memory used by all bodies, in bytes.
    pub body_bytes: usize,
}

/// A task is in exactly the orders of its state.
#[derive(Debug)]
pub(crate) struct Indexes {
    number: u32,
    /// Whether the tube has a semaphore.
    is_gated: bool,
    /// Ready tasks, where the tube has no sub-queues.
    pub ready: Order,
    /// Ready tasks, where it has.
    pub subqueues: Option<Subqueues>,
    pub buried: BTreeSet<Place>,
    pub taken: BTreeSet<TaskId>,
    pub timers: BTreeSet<(Timestamp, TaskId)>,
    pub counts: Counts,
}

impl Indexes {
    pub fn new(number: u32, options: &TubeOptions) -> Self {
        let has_subqueues = options.kind.has_subqueues();
        Indexes {
            number,
            is_gated: options.semaphore.is_some(),
            ready: Order::default(),
            subqueues: has_subqueues.then(Subqueues::default),
            buried: BTreeSet::new(),
            taken: BTreeSet::new(),
            timers: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// Says whether it has, before any task is taken.
    pub fn set_gated(&mut self, is_gated: bool) {
        self.is_gated = is_gated;
    }

    /// Whether the tube has a semaphore.
    pub fn is_gated(&self) -> bool {
        self.is_gated
    }

    pub fn add(&mut self, slot: &Slot, shared: &mut Shared) {
        let place = (slot.pri, slot.id);
        match &slot.standing {
            Standing::Ready(_) => {
                self.counts.ready += 1;
                match &mut self.subqueues {
                    None => self.ready.insert(place),
                    Some(subqueues) => subqueues.add_ready(slot.subqueue, place),
                }
            }
            Standing::Delayed(_) | Standing::Scheduled(_) | Standing::Gated(_) => {
                self.counts.delayed += 1;
            }
            Standing::Taken(delivery) => {
                self.counts.taken += 1;
                self.taken.insert(slot.id);
                if let Some(subqueues) = &mut self.subqueues {
                    subqueues.start(slot.subqueue);
                }
                if let Some(session) = delivery.session {
                    shared.held.insert((session, self.number, slot.id));
                }
                if self.is_gated {
                    shared.at_work.insert(gated(self.number, slot.id));
                }
            }
            Standing::Buried { .. } => {
                self.counts.buried += 1;
                self.buried.insert(place);
            }
        }
        if slot.timer() != Timestamp::NEVER {
            self.timers.insert((slot.timer(), slot.id));
        }
    }

    /// The reverse of `add`. An expired task may have left the ready order before.
    pub fn remove(&mut self, slot: &Slot, shared: &mut Shared) {
        let place = (slot.pri, slot.id);
        match &slot.standing {
            Standing::Ready(_) => {
                self.counts.ready -= 1;
                self.remove_ready(slot.subqueue, place);
            }
            Standing::Delayed(_) | Standing::Scheduled(_) | Standing::Gated(_) => {
                self.counts.delayed -= 1;
            }
            Standing::Taken(delivery) => {
                self.counts.taken -= 1;
                self.taken.remove(&slot.id);
                if let Some(subqueues) = &mut self.subqueues {
                    subqueues.stop(slot.subqueue);
                }
                if let Some(session) = delivery.session {
                    shared.held.remove(&(session, self.number, slot.id));
                }
                if self.is_gated {
                    shared.at_work.remove(&gated(self.number, slot.id));
                }
            }
            Standing::Buried { .. } => {
                self.counts.buried -= 1;
                self.buried.remove(&place);
            }
        }
        if slot.timer() != Timestamp::NEVER {
            self.timers.remove(&(slot.timer(), slot.id));
        }
    }

    pub fn remove_ready(&mut self, subqueue: u32, place: Place) {
        match &mut self.subqueues {
            None => _ = self.ready.remove(place),
            Some(subqueues) => subqueues.remove_ready(subqueue, place),
        }
    }

    /// The first task in the order of delivery.
    pub fn first_ready(&self) -> Option<Place> {
        match &self.subqueues {
            None => self.ready.first(),
            Some(subqueues) => subqueues.first(),
        }
    }

    /// The one after this place, also when nothing is there any more.
    pub fn next_ready(&self, after: Place) -> Option<Place> {
        match &self.subqueues {
            None => self.ready.after(after),
            Some(subqueues) => subqueues.after(after),
        }
    }

    /// How many tasks could be taken now.
    pub fn takeable(&self) -> usize {
        match &self.subqueues {
            None => self.ready.len(),
            Some(subqueues) => subqueues.takeable(),
        }
    }
}

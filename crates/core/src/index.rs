//! The indexes of the tasks of one tube.

use std::collections::BTreeSet;

use crate::delayed_index::DelayedIndex;
use crate::order::Order;
use crate::semaphore::gated::gated;
use crate::session::SessionId;
use crate::slots::{Slot, SlotState};
use crate::stats::Counts;
use crate::subqueue::{OrderKey, Subqueues};
use crate::task::TaskId;
use crate::time::Timestamp;
use crate::tube::TubeOptions;

/// Indexes over the tasks of all tubes.
#[derive(Debug, Default)]
pub(crate) struct CrossTubeIndex {
    /// The deliveries of each session: (session, tube number, task).
    pub held: BTreeSet<(SessionId, u32, TaskId)>,
    /// Taken tasks of tubes with a semaphore, by their numbers in it.
    pub taken_tasks: BTreeSet<TaskId>,
    /// Memory used by all bodies, in bytes.
    pub body_bytes: usize,
}

/// The indexes of one tube. A task is in exactly the indexes of its state.
#[derive(Debug)]
pub(crate) struct Indexes {
    number: u32,
    /// Whether the tube has a semaphore.
    is_gated: bool,
    /// All ready tasks, whichever their sub-queue.
    pub ready: Order,
    /// The same by sub-queue, in a tube with sub-queues.
    pub subqueues: Option<Subqueues>,
    pub buried: BTreeSet<OrderKey>,
    pub taken: BTreeSet<TaskId>,
    /// When tasks are due that are delayed.
    pub delayed: DelayedIndex,
    /// When other tasks change.
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
            delayed: DelayedIndex::default(),
            timers: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// Sets whether the tube has a semaphore, before any task is taken.
    pub fn set_gated(&mut self, is_gated: bool) {
        self.is_gated = is_gated;
    }

    /// Whether the tube has a semaphore.
    pub fn is_gated(&self) -> bool {
        self.is_gated
    }

    pub fn add(&mut self, slot: &Slot, shared: &mut CrossTubeIndex) {
        let key = slot.order_key();
        match slot.details() {
            SlotState::Ready(_) => {
                self.counts.ready += 1;
                self.ready.insert(key);
                if let Some(subqueues) = &mut self.subqueues {
                    subqueues.add_ready(slot.subqueue, key);
                }
            }
            SlotState::Delayed(_) | SlotState::Scheduled(_) | SlotState::Gated(_) => {
                self.counts.delayed += 1;
            }
            SlotState::Taken(delivery) => {
                self.counts.taken += 1;
                self.taken.insert(slot.id);
                if let Some(subqueues) = &mut self.subqueues {
                    subqueues.start(slot.subqueue);
                }
                if let Some(session) = delivery.session {
                    shared.held.insert((session, self.number, slot.id));
                }
                if self.is_gated {
                    shared.taken_tasks.insert(gated(self.number, slot.id));
                }
            }
            SlotState::Buried { .. } => {
                self.counts.buried += 1;
                self.buried.insert(key);
            }
        }
        match slot.timer() {
            Timestamp::NEVER => {}
            due if slot.is_delayed() => self.delayed.insert(due, slot.id, slot.pri()),
            at => _ = self.timers.insert((at, slot.id)),
        }
    }

    /// The reverse of `add`. An expired task may have left the ready index before.
    pub fn remove(&mut self, slot: &Slot, shared: &mut CrossTubeIndex) {
        let key = slot.order_key();
        match slot.details() {
            SlotState::Ready(_) => {
                self.counts.ready -= 1;
                self.remove_ready(slot.subqueue, key);
            }
            SlotState::Delayed(_) | SlotState::Scheduled(_) | SlotState::Gated(_) => {
                self.counts.delayed -= 1;
            }
            SlotState::Taken(delivery) => {
                self.counts.taken -= 1;
                self.taken.remove(&slot.id);
                if let Some(subqueues) = &mut self.subqueues {
                    subqueues.stop(slot.subqueue);
                }
                if let Some(session) = delivery.session {
                    shared.held.remove(&(session, self.number, slot.id));
                }
                if self.is_gated {
                    shared.taken_tasks.remove(&gated(self.number, slot.id));
                }
            }
            SlotState::Buried { .. } => {
                self.counts.buried -= 1;
                self.buried.remove(&key);
            }
        }
        match slot.timer() {
            Timestamp::NEVER => {}
            due if slot.is_delayed() => self.delayed.remove(due, slot.id, slot.pri()),
            at => _ = self.timers.remove(&(at, slot.id)),
        }
    }

    /// The task whose next change is due first.
    pub fn next_timer(&self) -> Option<(Timestamp, TaskId)> {
        self.timers.first().copied().into_iter().chain(self.delayed.first()).min()
    }

    pub fn remove_ready(&mut self, subqueue: u32, key: OrderKey) {
        self.ready.remove(key);
        if let Some(subqueues) = &mut self.subqueues {
            subqueues.remove_ready(subqueue, key);
        }
    }

    /// The first task in the order of delivery.
    pub fn first_ready(&self) -> Option<OrderKey> {
        match &self.subqueues {
            None => self.ready.first(),
            Some(subqueues) => subqueues.first(),
        }
    }

    /// The first task after this key, which need not exist any more.
    pub fn next_ready(&self, after: OrderKey) -> Option<OrderKey> {
        match &self.subqueues {
            None => self.ready.after(after),
            Some(subqueues) => subqueues.after(after),
        }
    }

    /// The number of tasks that could be taken now.
    pub fn takeable(&self) -> usize {
        match &self.subqueues {
            None => self.ready.len(),
            Some(subqueues) => subqueues.takeable(),
        }
    }
}

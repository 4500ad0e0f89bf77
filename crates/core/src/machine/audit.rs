//! Recounts everything the machine keeps redundantly: its indexes must agree with its slots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::semaphore::Status;
use crate::semaphore::gated::gated;
use crate::slots::{Slot, SlotState};
use crate::stats::Counts;
use crate::subqueue::{OrderKey, Subqueues};
use crate::task::Body;
use crate::time::Timestamp;

use super::Machine;
use super::tubes::Tube;

impl Machine {
    /// Recounts everything and panics if anything differs.
    pub(super) fn audit(&self) {
        let now = self.now.unwrap_or(Timestamp::EPOCH);
        for (number, tube) in self.tubes.iter() {
            assert_eq!(self.tubes.number(&tube.name), Some(number));
            tube.audit(now);
        }
        assert_eq!(self.tubes.iter().count(), self.tubes.len());
        self.audit_shared();
        self.audit_wakeups();
        self.audit_signals();
        self.audit_gates();
    }

    /// A task is in the semaphore of its tube exactly while it is ready, taken, or would be ready.
    fn audit_gates(&self) {
        let mut taken_tasks = BTreeSet::new();
        let mut stand = BTreeSet::new();
        for (number, tube) in self.tubes.iter() {
            let Some(gate) = self.gate(number) else { continue };
            for slot in tube.tasks.parts().0.iter() {
                let task = gated(number, slot.id);
                let status = self.semaphores.status(gate, task);
                stand.extend(status.map(|_| (gate, task)));
                let fits = match slot.details() {
                    SlotState::Ready(_) => status == Some(Status::Acquired),
                    SlotState::Gated(_) => matches!(status, Some(Status::Wait | Status::Delayed)),
                    SlotState::Taken(_) => taken_tasks.insert(task),
                    SlotState::Delayed(_) | SlotState::Scheduled(_) | SlotState::Buried { .. } => {
                        status.is_none()
                    }
                };
                assert!(fits || self.to_repair.contains(&(gate, task)), "{slot:?} is {status:?}");
            }
        }
        assert_eq!(self.shared.taken_tasks, taken_tasks);
        let places = self.semaphores.gated_tasks().filter(|key| !self.to_repair.contains(key));
        for key in places {
            assert!(stand.contains(&key), "{key:?} has no task");
        }
    }

    /// The indexes over all tubes.
    fn audit_shared(&self) {
        let mut held = BTreeSet::new();
        let mut body_bytes = 0;
        for (number, tube) in self.tubes.iter() {
            for done in tube.tasks.done().range(crate::task::TaskId(0)..) {
                body_bytes += done.record.body.as_ref().map_or(0, Body::footprint);
            }
            for slot in tube.tasks.parts().0.iter() {
                body_bytes += slot.body.as_ref().map_or(0, Body::footprint);
                let session = slot.delivery().and_then(|delivery| delivery.session);
                held.extend(session.map(|session| (session, number, slot.id)));
            }
        }
        assert_eq!(self.shared.held, held);
        assert_eq!(self.shared.body_bytes, body_bytes);
        for (session, ..) in held {
            assert!(self.sessions.contains_key(&session), "{session} holds tasks and is gone");
        }
    }

    /// The next wake-up is the nearest of all deadlines.
    fn audit_wakeups(&self) {
        let ends = self.sessions.values().filter_map(|session| session.ends);
        let tubes = self.tubes.iter().filter_map(|(_, tube)| tube.wakeup);
        let deadlines = ends.chain(tubes).filter(|at| *at != Timestamp::NEVER);
        let detached = self.needs_repair().then_some(Timestamp::EPOCH);
        let others = self.semaphores.next_wakeup().into_iter().chain(detached);
        assert_eq!(self.next_wakeup(), deadlines.chain(others).min());
        let wakeups = self.tubes.iter().filter_map(|(number, tube)| {
            let deadlines = tube.tasks.parts().0.iter().map(deadline).chain(tube.dues());
            let nearest = deadlines.filter(|at| *at != Timestamp::NEVER).min();
            // The moment of the next token is forgotten by the first change after it.
            let token = tube.next_token();
            let with_token = token.into_iter().chain(nearest).min();
            let is_past = token.is_none_or(|token| self.now.is_some_and(|now| token <= now));
            assert!(tube.wakeup == with_token || is_past && tube.wakeup == nearest, "{tube:?}");
            Some((tube.wakeup?, number))
        });
        assert_eq!(self.wakeups, wakeups.collect());
        let ends = self.sessions.iter().filter_map(|(id, session)| {
            assert_eq!(session.ends.is_some(), session.connections == 0);
            Some((session.ends.filter(|ends| *ends != Timestamp::NEVER)?, *id))
        });
        assert_eq!(self.session_ends, ends.collect());
    }

    /// A tube is in a list of effects exactly when its signal is set.
    fn audit_signals(&self) {
        let marked = |mark: fn(&Tube) -> bool| -> Vec<u32> {
            let marked = self.tubes.iter().filter(|(_, tube)| mark(tube));
            marked.map(|(number, _)| number).collect()
        };
        let sorted = |list: &[u32]| {
            let mut list = list.to_vec();
            list.sort_unstable();
            list
        };
        assert_eq!(sorted(&self.ready), marked(|tube| tube.signals.ready));
        assert_eq!(sorted(&self.room), marked(|tube| tube.signals.room));
    }
}

impl Tube {
    /// When done tasks and keys have to be removed.
    fn dues(&self) -> impl Iterator<Item = Timestamp> {
        self.done_due().into_iter().chain(self.tasks.keys().due())
    }

    /// When the rate limit allows the next delivery of a waiting task, if it allowed none after the
    /// last one.
    fn next_token(&self) -> Option<Timestamp> {
        let waits = !self.options.paused && self.tasks.takeable() > 0;
        let (rate, bucket) = (self.options.rate.as_ref()?, self.bucket?);
        rate.next_token(bucket).filter(|_| waits)
    }

    /// When done tasks have to be removed, from a recount.
    fn done_due(&self) -> Option<Timestamp> {
        let done: Vec<_> = self.tasks.done().range(crate::task::TaskId(0)..).collect();
        assert_eq!(done.len(), self.tasks.done().len());
        let oldest = done.iter().map(|done| (done.at, done.record.id)).min()?;
        assert_eq!(self.tasks.done().oldest(), Some(oldest));
        assert!(done.iter().all(|done| self.tasks.get(done.record.id).is_none()));
        self.tasks.done().due(&self.options)
    }

    fn audit(&self, now: Timestamp) {
        let (slots, indexes) = self.tasks.parts();
        slots.audit();
        self.tasks.keys().audit(self.tasks.parts().0);
        let mut counts = Counts::default();
        let (mut buried, mut taken, mut timers) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut ready, mut delayed) = (Vec::new(), Vec::new());
        for slot in slots.iter() {
            assert!(slot.id.0 < self.next_id);
            match slot.details() {
                SlotState::Ready(_) => {
                    counts.ready += 1;
                    ready.push(slot);
                }
                SlotState::Delayed(_) | SlotState::Scheduled(_) | SlotState::Gated(_) => {
                    counts.delayed += 1;
                }
                SlotState::Taken(_) => {
                    counts.taken += 1;
                    taken.insert(slot.id);
                }
                SlotState::Buried { .. } => {
                    counts.buried += 1;
                    buried.insert(slot.order_key());
                }
            }
            if deadline(slot) != Timestamp::NEVER && slot.is_delayed() {
                delayed.push((deadline(slot), slot.id, slot.pri()));
            } else if deadline(slot) != Timestamp::NEVER {
                timers.insert((deadline(slot), slot.id));
            }
        }
        assert_eq!(indexes.counts, counts);
        assert_eq!(indexes.buried, buried);
        assert_eq!(indexes.taken, taken);
        assert_eq!(indexes.timers, timers);
        indexes.delayed.audit(delayed);
        assert_eq!(indexes.subqueues.is_some(), self.options.kind.has_subqueues());
        let kept: BTreeSet<_> = indexes.ready.iter().collect();
        audit_ready(now, &kept, &ready);
        if let Some(subqueues) = &indexes.subqueues {
            let of_all = subqueues.audit().into_values().flat_map(|of_one| of_one.0);
            assert_eq!(kept, of_all.collect());
            self.audit_subqueues(now, subqueues);
        }
    }

    fn audit_subqueues(&self, now: Timestamp, subqueues: &Subqueues) {
        let mut members: BTreeMap<Arc<str>, Vec<&Slot>> = BTreeMap::new();
        for slot in self.tasks.parts().0.iter() {
            let key = self.tasks.subqueue_of(slot).expect("every task here is in a sub-queue");
            members.entry(key).or_default().push(slot);
        }
        let kept = subqueues.audit();
        assert_eq!(kept.len(), members.len());
        for (key, slots) in members {
            let (ready, running, count) = &kept[&key];
            assert_eq!(*count as usize, slots.len());
            let runs = slots.iter().filter(|slot| slot.delivery().is_some()).count();
            assert_eq!(*running as usize, runs);
            assert!(runs <= 1, "two tasks of {key} run");
            let all: Vec<_> = slots
                .into_iter()
                .filter(|slot| matches!(slot.details(), SlotState::Ready(_)))
                .collect();
            audit_ready(now, ready, &all);
        }
    }
}

/// The index of ready tasks has no others, and misses only expired ones.
fn audit_ready(now: Timestamp, kept: &BTreeSet<OrderKey>, ready: &[&Slot]) {
    let all: BTreeSet<OrderKey> = ready.iter().map(|slot| slot.order_key()).collect();
    assert!(kept.is_subset(&all), "{kept:?} has more than {all:?}");
    for slot in ready.iter().filter(|slot| !kept.contains(&slot.order_key())) {
        assert!(slot.expires() <= now, "{slot:?} cannot be found");
    }
}

/// The deadline of the task, computed independently.
fn deadline(slot: &Slot) -> Timestamp {
    match slot.details() {
        SlotState::Delayed(due) | SlotState::Scheduled(due) => due,
        SlotState::Taken(delivery) => delivery.until,
        SlotState::Ready(_) | SlotState::Gated(_) | SlotState::Buried { .. } => slot.expires(),
    }
}

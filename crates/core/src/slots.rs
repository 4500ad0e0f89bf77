//! Storage for the tasks of one tube: compact slots, found by id.

use std::sync::Arc;

use crate::chunks::Chunks;
use crate::failure::Failures;
use crate::id_index::IdIndex;
use crate::lease::Lease;
use crate::record::{Record, StoredState};
use crate::semaphore::Priority;
use crate::session::SessionId;
use crate::state::State;
use crate::subqueue::{NO_SUBQUEUE, OrderKey};
use crate::task::{Body, TaskId};
use crate::time::{Span, Timestamp};

/// The bookkeeping of one task. Millions of these are in memory, so it is kept small.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub id: TaskId,
    pub created: Timestamp,
    /// Absent while all of them have their defaults, as those of most tasks have.
    options: Option<Box<SlotOptions>>,
    pub body: Option<Body>,
    /// Of a taken task.
    delivery: Option<Box<Delivery>>,
    /// The state of a task that is not taken.
    tag: StateTag,
    /// The size of its body, also when that is on disk only.
    pub body_bytes: u32,
    /// Index of its sub-queue, or `NO_SUBQUEUE`.
    pub subqueue: u32,
    /// The last batch that recorded this slot in the journal.
    pub noted: u32,
}

/// What a task need not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotOptions {
    pub pri: u64,
    pub expires: Timestamp,
    pub ttr: Span,
    /// When it had become ready for the latest delivery that was released; `NEVER` when none was.
    pub previous_start: Timestamp,
    /// The moment of the state, or [`AT_PUT`].
    moment: Timestamp,
    pub attempts: u32,
}

/// The moment of its state is that of its put.
const AT_PUT: Timestamp = Timestamp::from_micros(i64::MIN);

/// The state of a task that is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateTag {
    Ready,
    Delayed,
    Scheduled,
    Gated,
    Buried,
    DeadLetter,
}

/// The state of a task, with the data of that state. `D` is its delivery, owned or borrowed.
#[derive(Clone, Debug)]
pub(crate) enum SlotState<D> {
    /// Ready since this moment.
    Ready(Timestamp),
    Delayed(Timestamp),
    /// Delayed until a moment that its put named: moved when the wall clock is set.
    Scheduled(Timestamp),
    /// Waits for the semaphore of its tube, since this moment; shown as delayed.
    Gated(Timestamp),
    Taken(D),
    Buried {
        dead_letter: bool,
    },
}

/// A delivery in progress.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub lease: Lease,
    pub session: Option<SessionId>,
    /// Since when the task had been ready.
    pub since: Timestamp,
    pub start: Timestamp,
    pub until: Timestamp,
    /// Whether the take set the lease time.
    pub explicit: bool,
    /// The name of the worker, if it gave one.
    pub worker: Option<Arc<str>>,
}

impl SlotOptions {
    const DEFAULT: SlotOptions = SlotOptions {
        pri: 0,
        expires: Timestamp::NEVER,
        ttr: Span::FOREVER,
        previous_start: Timestamp::NEVER,
        moment: AT_PUT,
        attempts: 0,
    };
}

impl SlotState<&Delivery> {
    pub fn into_owned(self) -> SlotState<Box<Delivery>> {
        match self {
            SlotState::Ready(since) => SlotState::Ready(since),
            SlotState::Delayed(due) => SlotState::Delayed(due),
            SlotState::Scheduled(due) => SlotState::Scheduled(due),
            SlotState::Gated(since) => SlotState::Gated(since),
            SlotState::Taken(delivery) => SlotState::Taken(Box::new(delivery.clone())),
            SlotState::Buried { dead_letter } => SlotState::Buried { dead_letter },
        }
    }
}

impl Slot {
    /// The slot of a task that is ready, with default options.
    pub fn new(id: TaskId, created: Timestamp, body: Option<Body>, body_bytes: u32) -> Self {
        Slot {
            id,
            created,
            options: None,
            body,
            delivery: None,
            tag: StateTag::Ready,
            body_bytes,
            subqueue: NO_SUBQUEUE,
            noted: 0,
        }
    }

    #[inline]
    pub fn options(&self) -> &SlotOptions {
        self.options.as_deref().unwrap_or(&SlotOptions::DEFAULT)
    }

    pub fn change_options(&mut self, change: impl FnOnce(&mut SlotOptions)) {
        let mut options = *self.options();
        change(&mut options);
        self.set_options(options);
    }

    fn set_options(&mut self, options: SlotOptions) {
        match &mut self.options {
            _ if options == SlotOptions::DEFAULT => self.options = None,
            Some(own) => **own = options,
            None => self.options = Some(Box::new(options)),
        }
    }

    #[inline]
    pub fn pri(&self) -> u64 {
        self.options().pri
    }

    #[inline]
    pub fn expires(&self) -> Timestamp {
        self.options().expires
    }

    /// Its state with the data of that state.
    #[inline]
    pub fn details(&self) -> SlotState<&Delivery> {
        if let Some(delivery) = &self.delivery {
            return SlotState::Taken(delivery);
        }
        match self.tag {
            StateTag::Ready => SlotState::Ready(self.moment()),
            StateTag::Delayed => SlotState::Delayed(self.moment()),
            StateTag::Scheduled => SlotState::Scheduled(self.moment()),
            StateTag::Gated => SlotState::Gated(self.moment()),
            StateTag::Buried => SlotState::Buried { dead_letter: false },
            StateTag::DeadLetter => SlotState::Buried { dead_letter: true },
        }
    }

    pub fn set_state(&mut self, state: SlotState<Box<Delivery>>) {
        let (tag, moment, delivery) = match state {
            SlotState::Ready(since) => (StateTag::Ready, since, None),
            SlotState::Delayed(due) => (StateTag::Delayed, due, None),
            SlotState::Scheduled(due) => (StateTag::Scheduled, due, None),
            SlotState::Gated(since) => (StateTag::Gated, since, None),
            SlotState::Taken(delivery) => (StateTag::Ready, AT_PUT, Some(delivery)),
            SlotState::Buried { dead_letter: false } => (StateTag::Buried, AT_PUT, None),
            SlotState::Buried { dead_letter: true } => (StateTag::DeadLetter, AT_PUT, None),
        };
        (self.tag, self.delivery) = (tag, delivery);
        let moment = if moment == self.created { AT_PUT } else { moment };
        if moment != self.options().moment {
            self.change_options(|options| options.moment = moment);
        }
    }

    /// The moment of its state.
    #[inline]
    fn moment(&self) -> Timestamp {
        let moment = self.options().moment;
        if moment == AT_PUT { self.created } else { moment }
    }

    #[inline]
    pub fn attempts(&self) -> u32 {
        self.options().attempts
    }

    pub fn set_attempts(&mut self, attempts: u32) {
        if attempts != self.attempts() {
            self.change_options(|options| options.attempts = attempts);
        }
    }

    pub fn set_expires(&mut self, expires: Timestamp) {
        if expires != self.expires() {
            self.change_options(|options| options.expires = expires);
        }
    }

    /// Its place among ready tasks.
    #[inline]
    pub fn order_key(&self) -> OrderKey {
        (self.pri(), self.id)
    }

    pub fn state(&self) -> State {
        match self.details() {
            SlotState::Ready(_) => State::Ready,
            SlotState::Delayed(_) | SlotState::Scheduled(_) | SlotState::Gated(_) => State::Delayed,
            SlotState::Taken(_) => State::Taken,
            SlotState::Buried { .. } => State::Buried,
        }
    }

    /// When the next change of this task is due.
    pub fn timer(&self) -> Timestamp {
        match self.details() {
            SlotState::Ready(_) | SlotState::Gated(_) | SlotState::Buried { .. } => self.expires(),
            SlotState::Delayed(due) | SlotState::Scheduled(due) => due,
            SlotState::Taken(delivery) => delivery.until,
        }
    }

    /// Whether it will be ready at a time, without regard to a semaphore.
    pub fn is_delayed(&self) -> bool {
        matches!(self.details(), SlotState::Delayed(_) | SlotState::Scheduled(_))
    }

    pub fn delivery(&self) -> Option<&Delivery> {
        self.delivery.as_deref()
    }

    pub fn delivery_mut(&mut self) -> Option<&mut Delivery> {
        self.delivery.as_deref_mut()
    }

    /// Since when it could be, or could have been, taken. A task that is not ready yet has not
    /// begun to wait.
    pub fn since(&self) -> Timestamp {
        match self.details() {
            SlotState::Ready(since)
            | SlotState::Gated(since)
            | SlotState::Delayed(since)
            | SlotState::Scheduled(since) => since,
            SlotState::Taken(delivery) => delivery.since,
            SlotState::Buried { .. } => self.created,
        }
    }

    /// The state after a crash.
    pub fn stored_state(&self) -> StoredState {
        match self.details() {
            // The semaphore stores whether it holds a grant.
            SlotState::Ready(since) | SlotState::Gated(since) => StoredState::Ready(since),
            SlotState::Taken(delivery) => StoredState::Ready(delivery.since),
            SlotState::Delayed(due) => StoredState::Delayed(due),
            SlotState::Scheduled(due) => StoredState::Scheduled(due),
            SlotState::Buried { dead_letter: false } => StoredState::Buried,
            SlotState::Buried { dead_letter: true } => StoredState::DeadLetter,
        }
    }

    /// Whether the change from `before` need not be stored.
    pub fn stored_alike(&self, before: &Slot) -> bool {
        // The moments of the states are compared as they are stored.
        let options = SlotOptions { moment: before.options().moment, ..*self.options() };
        self.stored_state() == before.stored_state() && options == *before.options()
    }

    /// Whether a put replaced the body since `before`. Bodies are loaded and dropped between batches
    /// only.
    pub fn is_replaced(&self, before: &Slot) -> bool {
        is_other_body(self.body.as_ref(), before.body.as_ref())
    }

    /// The stored form without the key; `wall_ahead` is how far the wall clock is ahead.
    pub fn record(
        &self,
        subqueue: Option<Arc<str>>,
        semaphore_priority: Option<Priority>,
        attempts_max: Option<u32>,
        failures: Option<Failures>,
        wall_ahead: i64,
    ) -> Record {
        let SlotOptions { pri, expires, ttr, previous_start, attempts, .. } = *self.options();
        let mut record = Record {
            id: self.id,
            state: self.stored_state(),
            pri,
            created: self.created,
            expires,
            ttr,
            attempts,
            previous_start: (previous_start != Timestamp::NEVER).then_some(previous_start),
            subqueue,
            semaphore_priority,
            attempts_max,
            failures,
            finished: None,
            key: None,
            body_bytes: self.body_bytes,
            body: self.body.clone(),
        };
        move_scheduled(&mut record, wall_ahead);
        record
    }

    pub fn from_record(mut record: Record, wall_ahead: i64) -> Self {
        move_scheduled(&mut record, wall_ahead.saturating_neg());
        let mut slot = Slot::new(record.id, record.created, record.body, record.body_bytes);
        slot.set_options(SlotOptions {
            pri: record.pri,
            expires: record.expires,
            ttr: record.ttr,
            previous_start: record.previous_start.unwrap_or(Timestamp::NEVER),
            attempts: record.attempts,
            ..SlotOptions::DEFAULT
        });
        slot.set_state(match record.state {
            StoredState::Ready(since) => SlotState::Ready(since),
            StoredState::Delayed(due) => SlotState::Delayed(due),
            StoredState::Scheduled(due) => SlotState::Scheduled(due),
            StoredState::Buried => SlotState::Buried { dead_letter: false },
            StoredState::DeadLetter => SlotState::Buried { dead_letter: true },
            // Done tasks have no slot; the callers keep them apart.
            StoredState::Done => SlotState::Buried { dead_letter: false },
        });
        slot
    }
}

/// Whether the first body is in memory and not the second one.
pub(crate) fn is_other_body(body: Option<&Body>, before: Option<&Body>) -> bool {
    body.is_some_and(|body| before.is_none_or(|before| !body.is_same(before)))
}

/// Moves the wall times of a record.
fn move_scheduled(record: &mut Record, by: i64) {
    if let StoredState::Scheduled(due) = &mut record.state {
        *due = due.moved(by);
        record.expires = record.expires.moved(by);
    }
}

/// Slots found by id. A free slot is reused.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Chunks<Slot>,
    vacant: Vec<u32>,
    by_id: IdIndex,
}

/// An empty tube keeps at most this many slots.
const KEPT_WHEN_EMPTY: usize = 4096;

impl Slots {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn get(&self, id: TaskId) -> Option<&Slot> {
        self.slots.get(self.by_id.get(id)?).as_ref()
    }

    /// Where the slot of a task is, for what is kept beside it.
    pub fn place(&self, id: TaskId) -> Option<u32> {
        self.by_id.get(id)
    }

    pub fn get_mut(&mut self, id: TaskId) -> Option<&mut Slot> {
        let index = self.by_id.get(id)?;
        self.slots.get_mut(index).as_mut()
    }

    /// Adds a slot, and returns its place.
    pub fn insert(&mut self, slot: Slot) -> u32 {
        let id = slot.id;
        let index = match self.vacant.pop() {
            Some(index) => {
                *self.slots.get_mut(index) = Some(slot);
                index
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).expect("a tube holds less than 2^32 tasks")
            }
        };
        self.by_id.insert(id, index);
        index
    }

    pub fn remove(&mut self, id: TaskId) -> Option<Slot> {
        let index = self.by_id.remove(id)?;
        self.vacant.push(index);
        let slot = self.slots.get_mut(index).take();
        if self.by_id.is_empty() && self.slots.len() > KEPT_WHEN_EMPTY {
            *self = Slots::default();
        }
        slot
    }

    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().flatten()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut().flatten()
    }
}

#[cfg(test)]
impl Slots {
    /// Panics if the bookkeeping is inconsistent.
    pub fn audit(&self) {
        for slot in self.iter() {
            assert_eq!(self.get(slot.id).map(|found| found.id), Some(slot.id));
        }
        assert_eq!(self.iter().count(), self.len());
        let mut vacant = self.vacant.clone();
        vacant.sort_unstable();
        let empty = (0..).zip(self.slots.iter()).filter(|(_, slot)| slot.is_none());
        assert_eq!(vacant, empty.map(|(index, _)| index).collect::<Vec<u32>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten million tasks must fit beside their payloads: this test notices a slot that grows.
    #[test]
    fn a_slot_stays_small() {
        assert_eq!(size_of::<Option<Slot>>(), 56);
    }
}

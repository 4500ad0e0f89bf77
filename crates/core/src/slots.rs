//! Where the tasks of one tube are kept: compact slots, found by id.

use std::sync::Arc;

use hashbrown::HashTable;

use crate::lease::Lease;
use crate::record::{Record, StoredState};
use crate::semaphore::Priority;
use crate::session::SessionId;
use crate::state::State;
use crate::subqueue::NO_SUBQUEUE;
use crate::task::{Body, TaskId};
use crate::time::{Span, Timestamp};

/// The bookkeeping of one task. Millions of these are in memory, so it is kept small.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub id: TaskId,
    pub pri: u64,
    pub created: Timestamp,
    pub expires: Timestamp,
    pub ttr: Span,
    /// When it had become ready for the latest delivery that was given back; `NEVER` when none was yet.
    pub previous_start: Timestamp,
    pub body: Option<Body>,
    pub standing: Standing,
    pub attempts: u32,
    /// How large its body is, also when that is on disk only.
    pub body_bytes: u32,
    /// Index of its sub-queue, or `NO_SUBQUEUE`.
    pub subqueue: u32,
    /// The batch that last noted this slot in the journal.
    pub noted: u32,
}

/// Where a task stands, with what belongs to that state.
#[derive(Clone, Debug)]
pub(crate) enum Standing {
    /// Since this moment.
    Ready(Timestamp),
    Delayed(Timestamp),
    /// Delayed until a moment that its put named: moved when the wall clock is set.
    Scheduled(Timestamp),
    /// Waits for the semaphore before its tube, since this moment; for everybody else it is delayed.
    Gated(Timestamp),
    Taken(Box<Delivery>),
    Buried {
        dead_letter: bool,
    },
}

/// One delivery under way.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub lease: Lease,
    pub session: Option<SessionId>,
    /// Since when the task had been ready.
    pub since: Timestamp,
    pub start: Timestamp,
    pub until: Timestamp,
    /// Whether the taker named the lease time itself.
    pub explicit: bool,
}

impl Slot {
    pub fn state(&self) -> State {
        match self.standing {
            Standing::Ready(_) => State::Ready,
            Standing::Delayed(_) | Standing::Scheduled(_) | Standing::Gated(_) => State::Delayed,
            Standing::Taken(_) => State::Taken,
            Standing::Buried { .. } => State::Buried,
        }
    }

    /// When time alone next moves this task.
    pub fn timer(&self) -> Timestamp {
        match &self.standing {
            Standing::Ready(_) | Standing::Gated(_) | Standing::Buried { .. } => self.expires,
            Standing::Delayed(due) | Standing::Scheduled(due) => *due,
            Standing::Taken(delivery) => delivery.until,
        }
    }

    pub fn delivery(&self) -> Option<&Delivery> {
        match &self.standing {
            Standing::Taken(delivery) => Some(delivery),
            _ => None,
        }
    }

    /// Since when it could be, or could have been, taken. What is not ready yet has not begun to wait.
    pub fn since(&self) -> Timestamp {
        match &self.standing {
            Standing::Ready(since)
            | Standing::Gated(since)
            | Standing::Delayed(since)
            | Standing::Scheduled(since) => *since,
            Standing::Taken(delivery) => delivery.since,
            Standing::Buried { .. } => self.created,
        }
    }

    /// What would be found after a crash.
    pub fn stored_state(&self) -> StoredState {
        match &self.standing {
            // Where the semaphore has it is written down there.
            Standing::Ready(since) | Standing::Gated(since) => StoredState::Ready(*since),
            Standing::Taken(delivery) => StoredState::Ready(delivery.since),
            Standing::Delayed(due) => StoredState::Delayed(*due),
            Standing::Scheduled(due) => StoredState::Scheduled(*due),
            Standing::Buried { dead_letter: false } => StoredState::Buried,
            Standing::Buried { dead_letter: true } => StoredState::DeadLetter,
        }
    }

    /// Whether disk need not know of the way from `before` to here.
    pub fn stored_alike(&self, before: &Slot) -> bool {
        self.stored_state() == before.stored_state()
            && self.attempts == before.attempts
            && self.expires == before.expires
            && self.ttr == before.ttr
            && self.previous_start == before.previous_start
    }

    /// As it is written down, when wall time is so far ahead.
    pub fn record(
        &self,
        subqueue: Option<Arc<str>>,
        semaphore_priority: Option<Priority>,
        wall_ahead: i64,
    ) -> Record {
        let mut record = Record {
            id: self.id,
            standing: self.stored_state(),
            pri: self.pri,
            created: self.created,
            expires: self.expires,
            ttr: self.ttr,
            attempts: self.attempts,
            previous_start: (self.previous_start != Timestamp::NEVER)
                .then_some(self.previous_start),
            subqueue,
            semaphore_priority,
            body_bytes: self.body_bytes,
            body: self.body.clone(),
        };
        move_scheduled(&mut record, wall_ahead);
        record
    }

    pub fn from_record(mut record: Record, wall_ahead: i64) -> Self {
        move_scheduled(&mut record, wall_ahead.saturating_neg());
        Slot {
            id: record.id,
            pri: record.pri,
            created: record.created,
            expires: record.expires,
            ttr: record.ttr,
            previous_start: record.previous_start.unwrap_or(Timestamp::NEVER),
            body: record.body,
            standing: match record.standing {
                StoredState::Ready(since) => Standing::Ready(since),
                StoredState::Delayed(due) => Standing::Delayed(due),
                StoredState::Scheduled(due) => Standing::Scheduled(due),
                StoredState::Buried => Standing::Buried { dead_letter: false },
                StoredState::DeadLetter => Standing::Buried { dead_letter: true },
            },
            attempts: record.attempts,
            body_bytes: record.body_bytes,
            subqueue: NO_SUBQUEUE,
            noted: 0,
        }
    }
}

/// Moves what is wall time in a record.
fn move_scheduled(record: &mut Record, by: i64) {
    if let StoredState::Scheduled(due) = &mut record.standing {
        *due = due.moved(by);
        record.expires = record.expires.moved(by);
    }
}

/// Slots found by id. A vacated slot is used again.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    places: Places,
    vacant: Vec<u32>,
    by_id: HashTable<u32>,
}

/// Slots by place, in chunks: a tube that grows never copies what it has, nor needs room for it twice.
#[derive(Debug, Default)]
struct Places {
    chunks: Vec<Vec<Option<Slot>>>,
}

/// Slots in a chunk.
const CHUNK: usize = 4096;

impl Places {
    fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    fn push(&mut self, slot: Slot) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(Some(slot)),
            // The first chunk grows as it is needed, for the sake of small tubes.
            None => self.chunks.push(vec![Some(slot)]),
            Some(_) => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(Some(slot));
                self.chunks.push(chunk);
            }
        }
    }

    fn at(&self, place: u32) -> &Option<Slot> {
        &self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    fn at_mut(&mut self, place: u32) -> &mut Option<Slot> {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    fn holds(&self, place: u32, id: TaskId) -> bool {
        matches!(self.at(place), Some(slot) if slot.id == id)
    }
}

/// Ids only grow, so neighbours in time land in neighbouring buckets, which the cache likes; the
/// factor fills the upper bits that the table uses as tags.
fn hash(id: TaskId) -> u64 {
    id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A tube that ran empty keeps at most this many slots.
const KEPT_WHEN_EMPTY: usize = 4096;

impl Slots {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn get(&self, id: TaskId) -> Option<&Slot> {
        self.places.at(self.find(id)?).as_ref()
    }

    pub fn get_mut(&mut self, id: TaskId) -> Option<&mut Slot> {
        let place = self.find(id)?;
        self.places.at_mut(place).as_mut()
    }

    pub fn insert(&mut self, slot: Slot) {
        let id = slot.id;
        let place = match self.vacant.pop() {
            Some(place) => {
                *self.places.at_mut(place) = Some(slot);
                place
            }
            None => {
                self.places.push(slot);
                u32::try_from(self.places.len() - 1).expect("a tube holds less than 2^32 tasks")
            }
        };
        let places = &self.places;
        self.by_id.insert_unique(hash(id), place, |&place| match places.at(place) {
            Some(slot) => hash(slot.id),
            None => 0,
        });
    }

    pub fn remove(&mut self, id: TaskId) -> Option<Slot> {
        let places = &self.places;
        let found = self.by_id.find_entry(hash(id), |&place| places.holds(place, id)).ok()?;
        let (place, _) = found.remove();
        self.vacant.push(place);
        let slot = self.places.at_mut(place).take();
        if self.by_id.is_empty() && self.places.len() > KEPT_WHEN_EMPTY {
            *self = Slots::default();
        }
        slot
    }

    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.places.chunks.iter().flatten().flatten()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.places.chunks.iter_mut().flatten().flatten()
    }

    fn find(&self, id: TaskId) -> Option<u32> {
        self.by_id.find(hash(id), |&place| self.places.holds(place, id)).copied()
    }
}

#[cfg(test)]
impl Slots {
    /// Panics where the bookkeeping contradicts itself.
    pub fn audit(&self) {
        for slot in self.iter() {
            assert_eq!(self.get(slot.id).map(|found| found.id), Some(slot.id));
        }
        assert_eq!(self.iter().count(), self.len());
        let mut vacant = self.vacant.clone();
        vacant.sort_unstable();
        let places = self.places.chunks.iter().flatten();
        let empty = (0..).zip(places).filter(|(_, slot)| slot.is_none());
        assert_eq!(vacant, empty.map(|(place, _)| place).collect::<Vec<u32>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten million tasks must fit beside their payloads: a slot that grows is noticed here.
    #[test]
    fn a_slot_stays_small() {
        assert_eq!(size_of::<Option<Slot>>(), 96);
    }
}

//! What a batch counted and whom it concerns.

use std::collections::{BTreeMap, HashMap};

use taskyard_core::{Calls, Effects, News, SemaphoreKey, Timestamp, TubeName};

/// What was done to one tube.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub calls: Calls,
    pub done: u64,
}

/// What one batch did, until it is certain.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counted: HashMap<u32, Counted>,
    dropped: Vec<u32>,
    ready: BTreeMap<TubeName, u64>,
    room: BTreeMap<TubeName, u64>,
    /// Tubes to which tasks came back.
    pub back: Vec<TubeName>,
    /// The best priority of the latest put.
    pub best_put: Option<i64>,
    /// The earliest deadline that was set, by the clock of the tasks.
    pub deadline: Option<i64>,
    /// Of which semaphores there are new events.
    pub events: News,
    /// The earliest of all deadlines, where the batch asked.
    pub exact: Option<Exact>,
}

/// What a tick says about the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exact {
    pub deadline: Option<i64>,
    /// The clock of the tasks at the tick.
    pub clock: i64,
}

impl Counted {
    /// Both together.
    pub fn plus(self, other: Counted) -> Counted {
        let (a, b) = (self.calls, other.calls);
        let calls = Calls {
            ack: a.ack + b.ack,
            bury: a.bury + b.bury,
            delete: a.delete + b.delete,
            kick: a.kick + b.kick,
            put: a.put + b.put,
            release: a.release + b.release,
            take: a.take + b.take,
            touch: a.touch + b.touch,
            ttl: a.ttl + b.ttl,
            ttr: a.ttr + b.ttr,
            delay: a.delay + b.delay,
        };
        Counted { calls, done: self.done + other.done }
    }
}

impl Tally {
    /// What is counted of a tube.
    pub fn of(&mut self, number: u32) -> &mut Counted {
        self.counted.entry(number).or_default()
    }

    /// What is counted, by tube number.
    pub fn counted(&self) -> &HashMap<u32, Counted> {
        &self.counted
    }

    /// The tubes that are gone.
    pub fn dropped_tubes(&self) -> &[u32] {
        &self.dropped
    }

    /// A tube is gone, and with it what was counted.
    pub fn dropped(&mut self, number: u32) {
        self.counted.remove(&number);
        self.dropped.push(number);
    }

    /// This many more tasks of a tube can be taken.
    pub fn ready(&mut self, tube: &TubeName, more: u64) {
        if more > 0 {
            *self.ready.entry(tube.clone()).or_default() += more;
        }
    }

    /// This many tasks came back to a tube.
    pub fn back(&mut self, tube: &TubeName, count: u64) {
        self.back.push(tube.clone());
        self.ready(tube, count);
    }

    /// A tube has this much room now.
    pub fn room(&mut self, tube: &TubeName, room: Option<u64>) {
        if let Some(room) = room {
            self.room.insert(tube.clone(), room);
        }
    }

    /// There may be new events of this semaphore, or of any.
    pub fn news(&mut self, are_there: bool, key: Option<&SemaphoreKey>) {
        if are_there {
            self.events.add(key.cloned().map_or(News::All, News::of));
        }
    }

    /// A deadline was set.
    pub fn deadline(&mut self, deadline: Option<i64>) {
        self.deadline = self.deadline.into_iter().chain(deadline).min();
    }

    /// The tubes in which others may find something now.
    pub fn concerned(&self) -> impl Iterator<Item = &TubeName> {
        self.ready.keys().chain(self.room.keys())
    }

    /// What others may be waiting for.
    pub fn into_effects(self, next_wakeup: Option<Timestamp>) -> Effects {
        Effects {
            ready: self.ready.into_iter().collect(),
            room: self.room.into_iter().filter(|(_, room)| *room > 0).collect(),
            events: self.events,
            next_wakeup,
        }
    }
}

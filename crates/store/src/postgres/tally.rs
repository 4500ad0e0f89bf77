//! What a batch counted and whom it concerns.

use std::collections::{BTreeMap, HashMap};

use taskyard_core::{Calls, Effects, Timestamp, TubeName, TubeStats};

/// What was done since the store was opened, by tube number. Kept in memory: each server counts what it
/// did itself, so that no row is touched by everybody.
#[derive(Debug, Default)]
pub(super) struct Counters {
    tubes: HashMap<u32, Counted>,
}

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
    /// The place of the last task of the latest take.
    pub last_taken: Option<(i64, i64)>,
    /// The best priority of the latest put.
    pub best_put: Option<i64>,
    /// The earliest deadline that was set, by the clock of the tasks.
    pub deadline: Option<i64>,
    /// There are new events of semaphores.
    pub events: bool,
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

impl Counters {
    /// Takes in what a batch did.
    pub fn add(&mut self, tally: &Tally) {
        for (number, more) in &tally.counted {
            let counted = self.tubes.entry(*number).or_default();
            *counted = sum(*counted, *more);
        }
        for number in &tally.dropped {
            self.tubes.remove(number);
        }
    }

    /// Fills in what was done to a tube, this batch included.
    pub fn show(&self, number: u32, tally: &Tally, stats: &mut TubeStats) {
        let before = self.tubes.get(&number).copied().unwrap_or_default();
        let now = tally.counted.get(&number).copied().unwrap_or_default();
        let Counted { calls, done } = sum(before, now);
        stats.calls = calls;
        stats.tasks.done = done;
    }
}

fn sum(a: Counted, b: Counted) -> Counted {
    let calls = Calls {
        ack: a.calls.ack + b.calls.ack,
        bury: a.calls.bury + b.calls.bury,
        delete: a.calls.delete + b.calls.delete,
        kick: a.calls.kick + b.calls.kick,
        put: a.calls.put + b.calls.put,
        release: a.calls.release + b.calls.release,
        take: a.calls.take + b.calls.take,
        touch: a.calls.touch + b.calls.touch,
        ttl: a.calls.ttl + b.calls.ttl,
        ttr: a.calls.ttr + b.calls.ttr,
        delay: a.calls.delay + b.calls.delay,
    };
    Counted { calls, done: a.done + b.done }
}

impl Tally {
    /// What is counted of a tube.
    pub fn of(&mut self, number: u32) -> &mut Counted {
        self.counted.entry(number).or_default()
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

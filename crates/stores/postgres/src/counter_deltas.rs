//! Collects what a batch did: counts per tube, effects on waiting callers, and failures that no caller reported.

use std::collections::{BTreeMap, HashMap};

use taskyard_core::{Calls, Effects, NewEvents, SemaphoreKey, Timestamp, TubeName};

/// The operations of one tube.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TubeCounts {
    pub calls: Calls,
    pub done: u64,
}

/// What one batch did.
#[derive(Debug, Default)]
pub(super) struct CounterDeltas {
    counted: HashMap<u32, TubeCounts>,
    dropped: Vec<u32>,
    ready: BTreeMap<TubeName, u64>,
    room: BTreeMap<TubeName, u64>,
    failed: BTreeMap<TubeName, u64>,
    /// Tubes to which tasks returned.
    pub back: Vec<TubeName>,
    /// The best priority of the latest put.
    pub best_put: Option<i64>,
    /// The earliest deadline that was set, by the clock of the tasks.
    pub deadline: Option<i64>,
    /// The semaphores that have new events.
    pub events: NewEvents,
    /// The earliest of all deadlines, if the batch has a tick.
    pub exact: Option<TickTimes>,
    /// When the first of the schedules is due that the batch set or showed.
    pub next_schedule: Option<i64>,
    /// When the first of all schedules is due, if the batch has asked for it.
    pub exact_schedule: Option<Option<i64>>,
    /// How many keys of ended tasks were freed before their time.
    pub keys_freed_early: u64,
}

/// The times that a tick reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct TickTimes {
    pub deadline: Option<i64>,
    /// The clock of the tasks at the tick.
    pub clock: i64,
}

impl TubeCounts {
    /// The sum.
    pub fn plus(self, other: TubeCounts) -> TubeCounts {
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
        TubeCounts { calls, done: self.done + other.done }
    }
}

impl CounterDeltas {
    /// The counts of a tube.
    pub fn of(&mut self, number: u32) -> &mut TubeCounts {
        self.counted.entry(number).or_default()
    }

    /// The counts by tube number.
    pub fn counted(&self) -> &HashMap<u32, TubeCounts> {
        &self.counted
    }

    /// The dropped tubes.
    pub fn dropped_tubes(&self) -> &[u32] {
        &self.dropped
    }

    /// Notes that a tube was dropped, and with it its counts.
    pub fn dropped(&mut self, number: u32) {
        self.counted.remove(&number);
        self.dropped.push(number);
    }

    /// Notes that this many more tasks of a tube can be taken.
    pub fn ready(&mut self, tube: &TubeName, more: u64) {
        if more > 0 {
            *self.ready.entry(tube.clone()).or_default() += more;
        }
    }

    /// Notes that this many tasks returned to a tube.
    pub fn back(&mut self, tube: &TubeName, count: u64) {
        self.back.push(tube.clone());
        self.ready(tube, count);
    }

    /// Notes that deliveries of a tube failed without a command for them.
    pub fn failed(&mut self, tube: &TubeName, count: u64) {
        if count > 0 {
            *self.failed.entry(tube.clone()).or_default() += count;
        }
    }

    /// Notes how much room a tube has now.
    pub fn room(&mut self, tube: &TubeName, room: Option<u64>) {
        if let Some(room) = room {
            self.room.insert(tube.clone(), room);
        }
    }

    /// Notes that there may be new events of this semaphore, or of any.
    pub fn news(&mut self, are_there: bool, key: Option<&SemaphoreKey>) {
        if are_there {
            self.events.add(key.cloned().map_or(NewEvents::All, NewEvents::of));
        }
    }

    /// Notes that a deadline was set.
    pub fn deadline(&mut self, deadline: Option<i64>) {
        self.deadline = self.deadline.into_iter().chain(deadline).min();
    }

    /// Notes when a schedule is due.
    pub fn schedule(&mut self, due: Option<Timestamp>) {
        let due = due.map(Timestamp::as_micros);
        self.next_schedule = self.next_schedule.into_iter().chain(due).min();
    }

    /// Notes when the first of all schedules is due.
    pub fn all_schedules(&mut self, first: Option<i64>) {
        (self.exact_schedule, self.next_schedule) = (Some(first), None);
    }

    /// The tubes that have more tasks or room now.
    pub fn changed_tubes(&self) -> impl Iterator<Item = &TubeName> {
        self.ready.keys().chain(self.room.keys())
    }

    /// The effects of the batch.
    pub fn into_effects(
        self,
        next_wakeup: Option<Timestamp>,
        next_schedule: Option<Timestamp>,
    ) -> Effects {
        Effects {
            ready: self.ready.into_iter().collect(),
            room: self.room.into_iter().filter(|(_, room)| *room > 0).collect(),
            failed: self.failed.into_iter().collect(),
            events: self.events,
            next_wakeup,
            next_schedule,
            keys_freed_early: self.keys_freed_early,
        }
    }
}

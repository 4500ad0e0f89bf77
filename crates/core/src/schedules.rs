//! The schedules of a store, by name and by their next time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::stored_schedule::{ScheduleName, StoredSchedule};
use crate::time::Timestamp;

/// The schedules of a store.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    by_name: BTreeMap<ScheduleName, Box<StoredSchedule>>,
    /// Those that are neither paused nor over.
    by_time: BTreeSet<(Timestamp, ScheduleName)>,
}

impl Schedules {
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn get(&self, name: &ScheduleName) -> Option<&StoredSchedule> {
        self.by_name.get(name).map(|schedule| &**schedule)
    }

    /// Sets or, with `None`, removes a schedule; returns the previous one.
    pub fn replace(
        &mut self,
        name: &ScheduleName,
        schedule: Option<Box<StoredSchedule>>,
    ) -> Option<Box<StoredSchedule>> {
        let due = schedule.as_ref().and_then(|schedule| schedule.due());
        let before = match schedule {
            Some(schedule) => self.by_name.insert(name.clone(), schedule),
            None => self.by_name.remove(name),
        };
        if let Some(old) = before.as_ref().and_then(|schedule| schedule.due()) {
            self.by_time.remove(&(old, name.clone()));
        }
        if let Some(due) = due {
            self.by_time.insert((due, name.clone()));
        }
        before
    }

    /// Schedules by name, after this one.
    pub fn after(&self, name: Option<&ScheduleName>) -> impl Iterator<Item = &StoredSchedule> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.by_name.range::<ScheduleName, _>((from, Bound::Unbounded));
        range.map(|(_, schedule)| &**schedule)
    }

    /// Schedules whose time has come at this moment of wall time, by time.
    pub fn due(&self, wall: Timestamp) -> impl Iterator<Item = &StoredSchedule> {
        let due = self.by_time.iter().take_while(move |(at, _)| *at <= wall);
        due.filter_map(|(_, name)| self.get(name))
    }

    /// The first time after this moment of wall time.
    pub fn next_after(&self, wall: Timestamp) -> Option<Timestamp> {
        let later = (wall.moved(1), ScheduleName::least());
        self.by_time.range(later..).next().map(|first| first.0)
    }

    /// The next time of all.
    pub fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|first| first.0)
    }
}

//! What was done to tubes, by all servers.
//!
//! Each server counts in memory what its own batches did and adds it to the database with the first batch
//! of each second, in the same transaction. What is shown is what the database has and what is not added yet.

use std::collections::HashMap;

use taskyard_core::{Calls, TubeStats};
use tokio_postgres::Row;

use super::codec::{self, Unreadable, count_from_sql, count_to_sql, get};
use super::plan::{Ask, Step};
use super::statements::{self as sql, Call, param};
use super::tally::{Counted, Tally};

/// How long a count may be known to this server alone, in microseconds.
const KEPT_MAX: i64 = 1_000_000;

/// What was done, by tube number.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// What only this server knows.
    own: HashMap<u32, Counted>,
    /// Tubes that are gone, which the database does not know.
    dropped: Vec<u32>,
    /// What the database knew when it was last asked.
    total: HashMap<u32, Counted>,
    /// When the last was added.
    added: i64,
}

/// What goes with a batch for the sake of counters, behind its own calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    adds: bool,
    shows: bool,
}

impl Counters {
    /// Lets what is to be added and what is to be shown go with a batch.
    pub fn go_along(&self, steps: &[Step], calls: &mut Vec<Call>, now: i64) -> Extras {
        let mut extras = Extras::default();
        if now.saturating_sub(self.added) >= KEPT_MAX && !calls.is_empty() {
            let adding = self.adding();
            extras.adds = adding.is_some();
            calls.extend(adding);
        }
        let mut names = Vec::new();
        for step in steps {
            match &step.ask {
                Ask::Tubes { tube: None } => {
                    calls.push(Call::new(&sql::ALL_COUNTERS, []));
                    extras.shows = true;
                    return extras;
                }
                Ask::Tubes { tube: Some(tube) } | Ask::Alter { tube, .. } => {
                    names.push(tube.as_str().to_owned());
                }
                Ask::Name { name, .. } => names.push(name.as_str().to_owned()),
                _ => {}
            }
        }
        if !names.is_empty() {
            calls.push(Call::new(&sql::COUNTERS, [param(names)]));
            extras.shows = true;
        }
        extras
    }

    /// The call that adds what only this server knows, if there is anything.
    pub fn adding(&self) -> Option<Call> {
        if self.own.is_empty() && self.dropped.is_empty() {
            return None;
        }
        let tubes: Vec<i32> = self.own.keys().map(|tube| *tube as i32).collect();
        let more: Vec<i64> =
            self.own.values().flat_map(Counted::numbers).map(count_to_sql).collect();
        let dropped: Vec<i32> = self.dropped.iter().map(|tube| *tube as i32).collect();
        Some(Call::new(&sql::ADD_COUNTERS, [param(tubes), param(more), param(dropped)]))
    }

    /// Takes in what came back of what went along, and leaves the answers to the batch itself.
    pub fn come_back(
        &mut self,
        extras: Extras,
        rows: &mut Vec<Vec<Row>>,
        now: i64,
    ) -> Result<(), Unreadable> {
        if extras.shows {
            for row in rows.pop().unwrap_or_default() {
                self.total.insert(codec::number(&row, 0)?, counted(&row)?);
            }
        }
        if extras.adds {
            rows.pop();
            if !extras.shows {
                // What was added is seen when somebody asks.
                for (tube, own) in &self.own {
                    let total = self.total.entry(*tube).or_default();
                    *total = total.plus(*own);
                }
            }
            self.own.clear();
            self.dropped.clear();
            self.added = now;
        }
        Ok(())
    }

    /// Takes in what a batch did.
    pub fn add(&mut self, tally: &Tally) {
        for (number, more) in tally.counted() {
            let own = self.own.entry(*number).or_default();
            *own = own.plus(*more);
        }
        for number in tally.dropped_tubes() {
            self.own.remove(number);
            self.total.remove(number);
            self.dropped.push(*number);
        }
    }

    /// Fills in what was done to a tube, this batch included.
    pub fn show(&self, number: u32, tally: &Tally, stats: &mut TubeStats) {
        let of = |counts: &HashMap<u32, Counted>| counts.get(&number).copied().unwrap_or_default();
        let sum = of(&self.total).plus(of(&self.own)).plus(of(tally.counted()));
        stats.calls = sum.calls;
        stats.tasks.done = sum.done;
    }
}

/// What was done to a tube, in a row of the table of counters.
pub(super) fn counted(row: &Row) -> Result<Counted, Unreadable> {
    let at = |place| get::<i64>(row, place).map(count_from_sql);
    let calls = Calls {
        ack: at(1)?,
        bury: at(2)?,
        delete: at(3)?,
        kick: at(4)?,
        put: at(5)?,
        release: at(6)?,
        take: at(7)?,
        touch: at(8)?,
        ttl: at(9)?,
        ttr: at(10)?,
        delay: at(11)?,
    };
    Ok(Counted { calls, done: at(12)? })
}

impl Counted {
    /// All numbers, in the order of the columns.
    fn numbers(&self) -> [u64; 12] {
        let mut numbers = [self.done; 12];
        for (number, (_, count)) in numbers.iter_mut().zip(self.calls.named()) {
            *number = count;
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(number: u32, count: u64) -> Tally {
        let mut tally = Tally::default();
        tally.of(number).calls.put = count;
        tally
    }

    #[test]
    fn what_is_counted_goes_along_once_a_second() {
        let mut counters = Counters::default();
        let mut calls = vec![Call::new(&sql::ALL_COUNTERS, [])];
        assert_eq!(counters.go_along(&[], &mut calls, KEPT_MAX), Extras::default());
        counters.add(&put(7, 2));
        let extras = counters.go_along(&[], &mut calls, KEPT_MAX);
        assert!(extras.adds && calls.len() == 2);
        counters.come_back(extras, &mut vec![Vec::new(); 2], KEPT_MAX).unwrap();
        counters.add(&put(7, 3));
        let soon = counters.go_along(&[], &mut calls, KEPT_MAX + 1);
        assert!(!soon.adds);
        let mut stats = TubeStats::default();
        counters.show(7, &put(7, 10), &mut stats);
        assert_eq!(stats.calls.put, 15);
    }

    #[test]
    fn the_last_number_is_what_is_done() {
        let mut counted = Counted { done: 12, ..Counted::default() };
        (counted.calls.ack, counted.calls.delay) = (1, 11);
        let numbers = counted.numbers();
        assert_eq!((numbers[0], numbers[10], numbers[11]), (1, 11, 12));
    }
}

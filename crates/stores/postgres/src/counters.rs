//! Counts operations per tube, for all servers together.
//!
//! Each server counts the operations of its own batches in memory and adds them to the database with the first batch of
//! each second, in the same transaction. Statistics show the sum of the database and of what is not added yet.

use std::collections::HashMap;

use taskyard_core::{Calls, Command, TubeStats};
use tokio_postgres::Row;

use super::codec::{self, DecodeError, count_from_sql, count_to_sql, get};
use super::counter_deltas::{CounterDeltas, TubeCounts};
use super::plan::Step;
use super::statements::{self as sql, Call, param};

/// How long a count may stay in memory before it is added to the database, in microseconds.
const KEPT_MAX: i64 = 1_000_000;

/// The operations of each tube, by its number.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// What is not added to the database yet.
    own: PendingCounts,
    /// What a batch under way adds: the other half of the batch may count meanwhile.
    sent: Option<PendingCounts>,
    /// The counters of the database when they were last read.
    total: HashMap<u32, TubeCounts>,
    /// When counts were last added.
    added: i64,
}

/// Counts that the database does not have.
#[derive(Debug, Default)]
struct PendingCounts {
    tubes: HashMap<u32, TubeCounts>,
    /// Dropped tubes whose counters the database still has.
    dropped: Vec<u32>,
}

/// Which calls for counters follow the calls of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CounterCalls {
    adds: bool,
    shows: bool,
}

impl Counters {
    /// Appends the calls that add counts and read counters to those of a batch.
    pub fn append_calls(
        &mut self,
        steps: &[Step],
        calls: &mut Vec<Call>,
        now: i64,
    ) -> CounterCalls {
        let mut counter_calls = CounterCalls::default();
        if now.saturating_sub(self.added) >= KEPT_MAX && !calls.is_empty() {
            let flush_call = self.flush_call();
            counter_calls.adds = flush_call.is_some();
            calls.extend(flush_call);
        }
        let mut names = Vec::new();
        for step in steps {
            match step.command() {
                Some(Command::Tubes { tube: None }) => {
                    calls.push(Call::new(&sql::ALL_COUNTERS, []));
                    counter_calls.shows = true;
                    return counter_calls;
                }
                Some(Command::Tubes { tube: Some(tube) } | Command::AlterTube { tube, .. }) => {
                    names.push(tube.as_str().to_owned());
                }
                Some(Command::NameTube { name, .. }) => names.push(name.as_str().to_owned()),
                _ => {}
            }
        }
        if !names.is_empty() {
            calls.push(Call::new(&sql::COUNTERS, [param(names)]));
            counter_calls.shows = true;
        }
        counter_calls
    }

    /// The call that adds counts to the database, if there are any and none is under way. They are kept until it is
    /// answered.
    pub fn flush_call(&mut self) -> Option<Call> {
        if self.sent.is_some() || self.own.is_empty() {
            return None;
        }
        let PendingCounts { tubes, dropped } = self.sent.insert(std::mem::take(&mut self.own));
        let more: Vec<i64> =
            tubes.values().flat_map(TubeCounts::numbers).map(count_to_sql).collect();
        let tubes: Vec<i32> = tubes.keys().map(|tube| *tube as i32).collect();
        let dropped: Vec<i32> = dropped.iter().map(|tube| *tube as i32).collect();
        Some(Call::new(&sql::ADD_COUNTERS, [param(tubes), param(more), param(dropped)]))
    }

    /// Keeps the counts that a failed batch would have added for a later one.
    pub fn keep_unsent(&mut self, counter_calls: CounterCalls) {
        if !counter_calls.adds {
            return;
        }
        let PendingCounts { tubes, dropped } = self.sent.take().unwrap_or_default();
        add_counts(&mut self.own.tubes, &tubes);
        self.own.dropped.extend(dropped);
    }

    /// Removes the answers of the calls for counters from those of a batch, and notes them.
    pub fn absorb_answers(
        &mut self,
        counter_calls: CounterCalls,
        rows: &mut Vec<Vec<Row>>,
        now: i64,
    ) -> Result<(), DecodeError> {
        let shown = if counter_calls.shows { rows.pop() } else { None };
        if counter_calls.adds {
            rows.pop();
            let sent = self.sent.take().unwrap_or_default();
            if !counter_calls.shows {
                // The counters of the database are read when they are shown.
                add_counts(&mut self.total, &sent.tubes);
            }
            self.added = now;
        }
        for row in shown.unwrap_or_default() {
            self.total.insert(codec::number(&row, 0)?, counted(&row)?);
        }
        Ok(())
    }

    /// Adds what a batch did.
    pub fn add(&mut self, deltas: &CounterDeltas) {
        add_counts(&mut self.own.tubes, deltas.counted());
        for number in deltas.dropped_tubes() {
            self.own.tubes.remove(number);
            if let Some(sent) = &mut self.sent {
                sent.tubes.remove(number);
            }
            self.total.remove(number);
            self.own.dropped.push(*number);
        }
    }

    /// Fills in the counters of a tube, this batch included.
    pub fn show(&self, number: u32, deltas: &CounterDeltas, stats: &mut TubeStats) {
        let of =
            |counts: &HashMap<u32, TubeCounts>| counts.get(&number).copied().unwrap_or_default();
        let sent = self.sent.as_ref().map_or_else(TubeCounts::default, |sent| of(&sent.tubes));
        let pending = of(&self.own.tubes).plus(sent);
        let sum = of(&self.total).plus(pending).plus(of(deltas.counted()));
        stats.calls = sum.calls;
        stats.tasks.done = sum.done;
    }
}

impl PendingCounts {
    fn is_empty(&self) -> bool {
        self.tubes.is_empty() && self.dropped.is_empty()
    }
}

/// Adds counts to those of the same tubes.
fn add_counts(counts: &mut HashMap<u32, TubeCounts>, more: &HashMap<u32, TubeCounts>) {
    for (number, more) in more {
        let sum = counts.entry(*number).or_default();
        *sum = sum.plus(*more);
    }
}

/// The operations of a tube, in a row of the table of counters.
pub(super) fn counted(row: &Row) -> Result<TubeCounts, DecodeError> {
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
    Ok(TubeCounts { calls, done: at(12)? })
}

impl TubeCounts {
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

    fn put(number: u32, count: u64) -> CounterDeltas {
        let mut deltas = CounterDeltas::default();
        deltas.of(number).calls.put = count;
        deltas
    }

    #[test]
    fn counts_are_added_once_a_second() {
        let mut counters = Counters::default();
        let mut calls = vec![Call::new(&sql::ALL_COUNTERS, [])];
        assert_eq!(counters.append_calls(&[], &mut calls, KEPT_MAX), CounterCalls::default());
        counters.add(&put(7, 2));
        let counter_calls = counters.append_calls(&[], &mut calls, KEPT_MAX);
        assert!(counter_calls.adds && calls.len() == 2);
        counters.absorb_answers(counter_calls, &mut vec![Vec::new(); 2], KEPT_MAX).unwrap();
        counters.add(&put(7, 3));
        let soon = counters.append_calls(&[], &mut calls, KEPT_MAX + 1);
        assert!(!soon.adds);
        let mut stats = TubeStats::default();
        counters.show(7, &put(7, 10), &mut stats);
        assert_eq!(stats.calls.put, 15);
    }

    /// The puts of a tube, as statistics show them.
    fn shown_puts(counters: &Counters, number: u32) -> u64 {
        let mut stats = TubeStats::default();
        counters.show(number, &CounterDeltas::default(), &mut stats);
        stats.calls.put
    }

    // The counts of the second connection of a split batch were cleared with those that the first one added.
    #[test]
    fn counts_that_arrive_while_others_are_added_stay() {
        let mut calls = vec![Call::new(&sql::ALL_COUNTERS, [])];
        for succeeds in [true, false] {
            let mut counters = Counters::default();
            for number in [7, 8] {
                counters.add(&put(number, 2));
            }
            let counter_calls = counters.append_calls(&[], &mut calls, KEPT_MAX);
            counters.add(&put(7, 3));
            let mut dropped = CounterDeltas::default();
            dropped.dropped(8);
            counters.add(&dropped);
            assert_eq!(shown_puts(&counters, 7), 5);
            // A put that the other half repeats does not add them again.
            let repeated = counters.append_calls(&[], &mut calls, KEPT_MAX);
            assert!(counter_calls.adds && !repeated.adds);
            counters.keep_unsent(repeated);
            match succeeds {
                true => counters
                    .absorb_answers(counter_calls, &mut vec![Vec::new(); 2], KEPT_MAX)
                    .unwrap(),
                false => counters.keep_unsent(counter_calls),
            }
            assert_eq!((shown_puts(&counters, 7), shown_puts(&counters, 8)), (5, 0));
            let pending = if succeeds { 3 } else { 5 };
            assert_eq!(counters.own.tubes[&7].calls.put, pending);
            assert_eq!((counters.own.tubes.len(), &*counters.own.dropped), (1, &[8][..]));
            assert!(counters.sent.is_none());
        }
    }

    #[test]
    fn the_last_number_counts_finished_tasks() {
        let mut counted = TubeCounts { done: 12, ..TubeCounts::default() };
        (counted.calls.ack, counted.calls.delay) = (1, 11);
        let numbers = counted.numbers();
        assert_eq!((numbers[0], numbers[10], numbers[11]), (1, 11, 12));
    }
}

//! The delayed tasks of a tube by the time at which they are due, and how many of them go before another task.
//!
//! Tasks are in chunks by time. A chunk that was asked for has its tasks in the order of delivery, too: of one whose tasks are all due
//! in the same period, those that go first are found by one search, or by none if all or none of them do. Only the few chunks in
//! which a period ends are compared task by task. So an answer costs a step for each chunk, and much less than that for each further
//! task of the same command. The first answers cost more: each sorts a few chunks and compares the tasks of the others. Tubes that
//! are never asked do not pay for an order. Nor are tasks of a chunk sorted by time before they are the next that are due.

use std::cell::OnceCell;
use std::collections::VecDeque;

use crate::estimate::{DELAYED_PERIODS, delayed_ahead};
use crate::steps;
use crate::subqueue::OrderKey;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

/// The most tasks of a chunk.
const CHUNK_MAX: usize = 256;
/// How many chunks one answer sorts.
const SORTED_MAX: usize = 32;

/// A delayed task: when it is due, and its key in the order of delivery.
type Delayed = (Timestamp, TaskId, u64);

/// The delayed tasks of one tube.
#[derive(Debug, Default)]
pub(crate) struct DelayedIndex {
    /// By time; no chunk is empty.
    chunks: VecDeque<Chunk>,
}

#[derive(Debug)]
struct Chunk {
    /// The tasks that are due first and last, and keys that no task is before and behind: most chunks are not read for more than these.
    first: Delayed,
    last: Delayed,
    ends: (OrderKey, OrderKey),
    /// In the order of their times if `is_ordered`.
    tasks: VecDeque<Delayed>,
    is_ordered: bool,
    /// The same tasks in the order of delivery, if they were asked for.
    keys: OnceCell<Vec<OrderKey>>,
}

impl DelayedIndex {
    /// The task that is due first.
    pub fn first(&self) -> Option<(Timestamp, TaskId)> {
        self.chunks.front().map(|chunk| (chunk.first.0, chunk.first.1))
    }

    /// Adds a task that is not here.
    pub fn insert(&mut self, due: Timestamp, id: TaskId, pri: u64) {
        let task = (due, id, pri);
        let mut at = self.chunk_of(&task);
        let Some(chunk) = self.chunks.get(at) else {
            return self.chunks.push_back(Chunk::new([task].into(), true, false));
        };
        if chunk.tasks.len() == CHUNK_MAX {
            if at + 1 == self.chunks.len() && chunk.last < task {
                let is_asked = chunk.is_asked();
                return self.chunks.push_back(Chunk::new([task].into(), true, is_asked));
            }
            let second = self.chunks[at].split();
            let is_behind = second.first <= task;
            self.chunks.insert(at + 1, second);
            at += usize::from(is_behind);
        }
        self.chunks[at].insert(task, at == 0);
    }

    /// Removes a task.
    pub fn remove(&mut self, due: Timestamp, id: TaskId, pri: u64) {
        let task = (due, id, pri);
        let at = self.chunk_of(&task);
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        chunk.remove(&task, at == 0);
        match chunk.tasks.len() {
            0 => _ = self.chunks.remove(at),
            1..32 => self.merge(at),
            _ => {}
        }
    }

    /// The numbers of [`Position::delayed_ahead`](crate::Position::delayed_ahead) for tasks with these keys.
    pub fn before(&self, now: Timestamp, keys: &[OrderKey]) -> Vec<Vec<u64>> {
        let period_ends: [Timestamp; DELAYED_PERIODS] =
            std::array::from_fn(|period| now + Span::from_secs(1 << period));
        let mut sorted: Vec<(OrderKey, usize)> =
            keys.iter().enumerate().map(|(at, key)| (*key, at)).collect();
        sorted.sort_unstable();
        let mut counts = vec![vec![0; DELAYED_PERIODS]; keys.len()];
        let mut sorts_left = SORTED_MAX;
        // How many tasks compared one by one go before this key of the sorted ones, and before no earlier one.
        let mut compared = vec![[0; DELAYED_PERIODS]; keys.len() + 1];
        for chunk in &self.chunks {
            steps::count(1);
            let period = period_ends.partition_point(|end| *end < chunk.first.0);
            let Some(end) = period_ends.get(period) else { break };
            if chunk.last.0 <= *end && chunk.can_search(&sorted, &mut sorts_left) {
                let mut before = 0;
                for (key, at) in &sorted {
                    before = chunk.before(before, *key);
                    counts[*at][period] += before as u64;
                }
                continue;
            }
            for (due, id, pri) in &chunk.tasks {
                steps::count(1);
                let period = period_ends.partition_point(|end| end < due);
                if period < DELAYED_PERIODS {
                    let behind = sorted.partition_point(|(key, _)| *key <= (*pri, *id));
                    compared[behind][period] += 1;
                }
            }
        }
        let mut before = [0; DELAYED_PERIODS];
        for ((_, at), more) in sorted.iter().zip(compared) {
            for (period, more) in more.into_iter().enumerate() {
                before[period] += more;
                counts[*at][period] += before[period];
            }
        }
        counts.into_iter().map(delayed_ahead).collect()
    }

    /// The last chunk that begins with this task or before it, or the first one.
    fn chunk_of(&self, task: &Delayed) -> usize {
        let begins_before = |chunk: &Chunk| chunk.first <= *task;
        self.chunks.partition_point(begins_before).saturating_sub(1)
    }

    /// Joins a short chunk with a neighbour that is short too.
    fn merge(&mut self, at: usize) {
        for first in [at, at.saturating_sub(1)] {
            let length = |at: usize| self.chunks.get(at).map(|chunk| chunk.tasks.len());
            if let (Some(own), Some(next)) = (length(first), length(first + 1))
                && own + next <= CHUNK_MAX / 2
                && let Some(mut next) = self.chunks.remove(first + 1)
            {
                let chunk = &mut self.chunks[first];
                let is_ordered = chunk.is_ordered && next.is_ordered;
                let is_asked = chunk.is_asked() && next.is_asked();
                let mut joined = std::mem::take(&mut chunk.tasks);
                joined.append(&mut next.tasks);
                *chunk = Chunk::new(joined, is_ordered, is_asked);
                return;
            }
        }
    }
}

impl Chunk {
    /// A chunk of these tasks, at least one.
    fn new(tasks: VecDeque<Delayed>, is_ordered: bool, is_asked: bool) -> Self {
        let any = tasks[0];
        let mut chunk = Chunk {
            first: any,
            last: any,
            ends: (key_of(&any), key_of(&any)),
            tasks,
            is_ordered,
            keys: OnceCell::new(),
        };
        chunk.find_ends();
        if is_asked {
            chunk.sort();
        }
        chunk
    }

    /// Sets the first and the last task, and the ends of the keys.
    fn find_ends(&mut self) {
        for task in &self.tasks {
            self.ends = (self.ends.0.min(key_of(task)), self.ends.1.max(key_of(task)));
        }
        self.find_first_and_last();
    }

    fn find_first_and_last(&mut self) {
        let (first, last) = if self.is_ordered {
            (self.tasks.front(), self.tasks.back())
        } else {
            (self.tasks.iter().min(), self.tasks.iter().max())
        };
        if let (Some(first), Some(last)) = (first, last) {
            (self.first, self.last) = (*first, *last);
        }
    }

    /// Takes out the half that is due later.
    fn split(&mut self) -> Chunk {
        let (half, is_asked) = (self.tasks.len() / 2, self.is_asked());
        if !self.is_ordered {
            self.tasks.make_contiguous().select_nth_unstable(half);
        }
        let second = Chunk::new(self.tasks.split_off(half), self.is_ordered, is_asked);
        *self = Chunk::new(std::mem::take(&mut self.tasks), self.is_ordered, is_asked);
        second
    }

    /// Whether it was asked for the order of delivery.
    fn is_asked(&self) -> bool {
        self.keys.get().is_some()
    }

    /// The keys, in the order of delivery.
    fn sort(&self) -> &[OrderKey] {
        self.keys.get_or_init(|| {
            let mut keys: Vec<_> = self.tasks.iter().map(key_of).collect();
            keys.sort_unstable();
            keys
        })
    }

    /// Whether [`Chunk::before`] can count for these keys without more sorts than are left.
    fn can_search(&self, sorted: &[(OrderKey, usize)], sorts_left: &mut usize) -> bool {
        let is_within = |(key, _): &(OrderKey, usize)| *key > self.ends.0 && *key <= self.ends.1;
        if self.is_asked() || !sorted.iter().any(is_within) {
            return true;
        }
        let can_sort = *sorts_left > 0;
        *sorts_left -= usize::from(can_sort);
        can_sort
    }

    /// The number of its tasks before this key, which are at least so many.
    fn before(&self, least: usize, key: OrderKey) -> usize {
        if key <= self.ends.0 {
            return 0;
        }
        if key > self.ends.1 {
            return self.tasks.len();
        }
        let keys = &self.sort()[least..];
        steps::count(keys.len().checked_ilog2().map_or(0, |log| log as usize + 1));
        least + keys.partition_point(|own| *own < key)
    }

    /// Adds a task that is not here. A chunk whose tasks are the next that are due keeps its order.
    fn insert(&mut self, task: Delayed, is_next: bool) {
        let key = key_of(&task);
        if let Some(keys) = self.keys.get_mut()
            && let Err(place) = keys.binary_search(&key)
        {
            keys.insert(place, key);
        }
        if self.is_ordered && is_next && task < self.last {
            let (Ok(place) | Err(place)) = self.tasks.binary_search(&task);
            self.tasks.insert(place, task);
        } else {
            self.is_ordered &= self.last < task;
            self.tasks.push_back(task);
        }
        self.first = self.first.min(task);
        self.last = self.last.max(task);
        self.ends = (self.ends.0.min(key), self.ends.1.max(key));
    }

    /// Removes a task. If the tasks are the next that are due, they are sorted for the removals that follow.
    fn remove(&mut self, task: &Delayed, is_next: bool) {
        if is_next && !self.is_ordered {
            self.tasks.make_contiguous().sort_unstable();
            self.is_ordered = true;
        }
        if self.is_ordered {
            let Ok(place) = self.tasks.binary_search(task) else { return };
            self.tasks.remove(place);
        } else {
            let Some(place) = self.tasks.iter().position(|own| own == task) else { return };
            self.tasks.swap_remove_back(place);
        }
        if *task == self.first || *task == self.last {
            self.find_first_and_last();
        }
        let Some(keys) = self.keys.get_mut() else { return };
        if let Ok(place) = keys.binary_search(&key_of(task)) {
            keys.remove(place);
        }
        if let (Some(first), Some(last)) = (keys.first(), keys.last()) {
            self.ends = (*first, *last);
        }
    }
}

/// The key of a task in the order of delivery.
fn key_of((_, id, pri): &Delayed) -> OrderKey {
    (*pri, *id)
}

#[cfg(test)]
impl DelayedIndex {
    /// Panics if it does not have exactly these tasks.
    pub fn audit(&self, mut tasks: Vec<Delayed>) {
        tasks.sort_unstable();
        let ordered = |chunk: &Chunk| {
            let mut tasks: Vec<_> = chunk.tasks.iter().copied().collect();
            assert!(!chunk.is_ordered || tasks.is_sorted());
            tasks.sort_unstable();
            tasks
        };
        assert!(self.chunks.iter().flat_map(ordered).eq(tasks.iter().copied()), "{tasks:?}");
        for chunk in &self.chunks {
            assert!((1..=CHUNK_MAX).contains(&chunk.tasks.len()));
            let expected = Chunk::new(chunk.tasks.clone(), false, chunk.is_asked());
            assert_eq!(
                (&expected.keys, expected.first, expected.last),
                (&chunk.keys, chunk.first, chunk.last)
            );
            // The tasks at the ends may be gone.
            let ends = (expected.ends.0.min(chunk.ends.0), expected.ends.1.max(chunk.ends.1));
            assert_eq!(chunk.ends, ends);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::estimate::delayed_period;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(1_000_000_000 + micros)
    }

    /// What [`DelayedIndex::before`] answers, from all tasks one by one.
    fn counted(tasks: &BTreeSet<Delayed>, now: Timestamp, key: OrderKey) -> Vec<u64> {
        let mut counts = vec![0; DELAYED_PERIODS];
        for (due, id, pri) in tasks {
            if let Some(period) = delayed_period(due.since(now)).filter(|_| (*pri, *id) < key) {
                counts[period] += 1;
            }
        }
        delayed_ahead(counts)
    }

    /// Tasks of a few priorities with any delay up to some days, and many with the same one. The time passes, and tasks
    /// leave when they are due or at any other time.
    #[test]
    fn counts_are_those_of_all_tasks() {
        for seed in 0..30 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut delayed, mut tasks) = (DelayedIndex::default(), BTreeSet::new());
            let (mut now, mut id) = (at(0), 0);
            for step in 0..4_000_u32 {
                let grows = step % 2_000 < 1_500;
                if grows {
                    let delay = if random.bool() { 7_000_000 } else { 1 << random.u32(0..38) };
                    let due = now.moved(if random.bool() { delay } else { random.i64(0..=delay) });
                    let task = (due, TaskId(id), random.u64(0..3));
                    id += 1;
                    delayed.insert(task.0, task.1, task.2);
                    tasks.insert(task);
                }
                if !grows || random.u8(0..4) == 0 {
                    let from = (now.moved(random.i64(0..60_000_000)), TaskId(0), 0);
                    let found = [tasks.first(), tasks.range(from..).next()][random.usize(0..2)];
                    if let Some(task) = found.copied() {
                        tasks.remove(&task);
                        delayed.remove(task.0, task.1, task.2);
                    }
                }
                now = now.moved(random.i64(0..40_000));
                assert_eq!(delayed.first(), tasks.first().map(|task| (task.0, task.1)));
                if step % 61 == 0 {
                    let count = random.usize(1..8);
                    let mut key = || (random.u64(0..4), TaskId(random.u64(0..=id)));
                    let keys: Vec<OrderKey> = (0..count).map(|_| key()).collect();
                    let expected: Vec<_> =
                        keys.iter().map(|key| counted(&tasks, now, *key)).collect();
                    assert_eq!(delayed.before(now, &keys), expected, "seed {seed}, step {step}");
                }
            }
            delayed.audit(tasks.into_iter().collect());
        }
    }

    /// The core counted the first 10,000 tasks that are due, and examined 40,000 timers for that. Then it searched every chunk for each
    /// task of a command, also where all tasks of a chunk go first or none.
    #[test]
    fn many_tasks_are_counted_in_few_steps() {
        const TASKS: u64 = 300_000;
        let mut delayed = DelayedIndex::default();
        let mut random = fastrand::Rng::with_seed(1);
        for id in 0..TASKS {
            delayed.insert(at(random.i64(0..3_600_000_000)), TaskId(id), id % 2);
        }
        let chunks = delayed.chunks.len();
        let ask = |id| steps::of(|| delayed.before(at(0), &[(1, TaskId(id))]));
        let (last, ahead) = ask(TASKS);
        assert_eq!(ahead[0].last(), Some(&TASKS));
        assert!(last < chunks + 13 * CHUNK_MAX, "{last} steps for {chunks} chunks");
        // The first answers sort the chunks in which some tasks go first.
        let (first, expected) = ask(TASKS / 2);
        for _ in 0..chunks / SORTED_MAX {
            assert_eq!(ask(TASKS / 2).1, expected);
        }
        let (sorted, ahead) = ask(TASKS / 2);
        assert_eq!(ahead, expected);
        assert!(
            first > TASKS as usize / 2 && sorted < 12 * chunks + 13 * CHUNK_MAX,
            "{sorted} steps"
        );

        let mut delayed = DelayedIndex::default();
        (0..TASKS).for_each(|id| delayed.insert(at(10_000 * id as i64), TaskId(id), 0));
        let chunks = delayed.chunks.len();
        let keys: Vec<_> = (0..100).map(|n| (0, TaskId(n * TASKS / 100))).collect();
        (0..100 / SORTED_MAX).for_each(|_| _ = delayed.before(at(0), &keys));
        let (hundred, _) = steps::of(|| delayed.before(at(0), &keys));
        assert!(hundred < chunks + 13 * CHUNK_MAX + 100 * 10, "{hundred} steps");
    }

    /// A tube that had many delayed tasks keeps no memory for each of them.
    #[test]
    fn short_chunks_are_joined() {
        let mut delayed = DelayedIndex::default();
        (0..50_000).for_each(|id| delayed.insert(at(id as i64), TaskId(id), 0));
        let removed = (0..50_000).filter(|id| id % 500 != 0);
        removed.for_each(|id| delayed.remove(at(id as i64), TaskId(id), 0));
        assert!(delayed.chunks.len() < 12, "{} chunks", delayed.chunks.len());
    }
}

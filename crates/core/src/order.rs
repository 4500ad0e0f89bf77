//! An index of ready tasks in the order of delivery, with a few bytes for each task.

use std::collections::{BTreeMap, VecDeque};

use crate::level_counts::LevelCounts;
use crate::ranked_set::RankedSet;
use crate::steps;
use crate::subqueue::OrderKey;
use crate::task::TaskId;

/// Ready tasks by priority, then by id.
///
/// Ids only grow, so nearly every task is added at the end of its priority and removed from the
/// front: a plain queue does that with eight bytes a task. The exceptions are in two sets.
#[derive(Debug, Default)]
pub(crate) struct Order {
    levels: BTreeMap<u64, PriorityLevel>,
    len: usize,
    /// Sums over many priorities; absent while there are few.
    counts: Option<Box<LevelCounts>>,
}

/// The tasks of one priority.
#[derive(Debug, Default)]
pub(crate) struct PriorityLevel {
    /// Ascending. The first and the last are never gone.
    queue: VecDeque<TaskId>,
    /// Absent while there are none.
    exceptions: Option<Box<Exceptions>>,
}

/// Tasks that were not added at the end of a priority, or not removed at its ends.
#[derive(Debug, Default)]
struct Exceptions {
    /// Tasks removed from the middle of the queue.
    gone: RankedSet<TaskId>,
    /// Tasks that were returned when later ones were already queued.
    returned: RankedSet<TaskId>,
}

/// An empty level keeps at most this capacity.
const KEPT_WHEN_EMPTY: usize = 4096;

impl Order {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn first(&self) -> Option<OrderKey> {
        self.levels.iter().find_map(|(pri, level)| Some((*pri, level.first()?)))
    }

    /// The first task after this key.
    pub fn after(&self, (pri, id): OrderKey) -> Option<OrderKey> {
        self.levels.range(pri..).find_map(|(at, level)| {
            let first = if *at == pri { level.after(id) } else { level.first() };
            Some((*at, first?))
        })
    }

    /// The number of tasks before this key.
    pub fn rank(&self, (pri, id): OrderKey) -> u64 {
        let (from, before) = self.counts.as_ref().map_or((0, 0), |counts| counts.before(pri));
        let count = |(_, level): (&u64, &PriorityLevel)| {
            steps::count(1);
            level.len()
        };
        let better: usize = self.levels.range(from..pri).map(count).sum();
        let own = self.levels.get(&pri).map_or(0, |level| level.rank(id));
        (before + better + own) as u64
    }

    pub fn insert(&mut self, (pri, id): OrderKey) {
        self.levels.entry(pri).or_default().insert(id);
        self.len += 1;
        match &mut self.counts {
            Some(counts) => counts.add(pri, &self.levels),
            None if self.levels.len() > LevelCounts::LEVELS_MIN => {
                self.counts = Some(Box::new(LevelCounts::new(&self.levels)));
            }
            None => {}
        }
    }

    /// Whether it was present.
    pub fn remove(&mut self, (pri, id): OrderKey) -> bool {
        let Some(level) = self.levels.get_mut(&pri) else { return false };
        if !level.remove(id) {
            return false;
        }
        self.len -= 1;
        if let Some(counts) = &mut self.counts {
            counts.remove(pri);
        }
        let (is_empty, room) = (level.is_empty(), level.queue.capacity());
        // The only level stays: a tube that is often empty would allocate it again and again.
        if is_empty && (self.levels.len() > 1 || room > KEPT_WHEN_EMPTY) {
            self.levels.remove(&pri);
        }
        if self.levels.len() < LevelCounts::LEVELS_MIN / 2 {
            self.counts = None;
        }
        true
    }

    pub fn iter(&self) -> impl Iterator<Item = OrderKey> {
        self.levels.iter().flat_map(|(pri, level)| level.iter().map(|id| (*pri, id)))
    }
}

impl PriorityLevel {
    pub fn len(&self) -> usize {
        let (gone, returned) =
            self.exceptions().map_or((0, 0), |all| (all.gone.len(), all.returned.len()));
        self.queue.len() - gone + returned
    }

    /// Whether there are none; those that are gone are never alone in the queue.
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.exceptions.is_none()
    }

    /// The number of tasks before this one.
    fn rank(&self, id: TaskId) -> usize {
        steps::count(self.queue.len().checked_ilog2().unwrap_or(0) as usize + 1);
        let queued = self.queue.partition_point(|queued| *queued < id);
        let count = |all: &Exceptions| (all.gone.rank(&id), all.returned.rank(&id));
        let (gone, returned) = self.exceptions().map_or((0, 0), count);
        queued - gone + returned
    }

    fn exceptions(&self) -> Option<&Exceptions> {
        self.exceptions.as_deref()
    }

    fn is_gone(&self, id: &TaskId) -> bool {
        self.exceptions().is_some_and(|all| all.gone.contains(id))
    }

    fn first(&self) -> Option<TaskId> {
        let returned = self.exceptions().and_then(|all| all.returned.first());
        self.queue.front().copied().into_iter().chain(returned).min()
    }

    fn after(&self, id: TaskId) -> Option<TaskId> {
        let from = self.queue.partition_point(|queued| *queued <= id);
        let queued = self.queue.range(from..).copied().find(|queued| !self.is_gone(queued));
        let next = TaskId(id.0.checked_add(1)?);
        let returned = self.exceptions().and_then(|all| all.returned.from(&next).next());
        queued.into_iter().chain(returned).min()
    }

    fn insert(&mut self, id: TaskId) {
        if self.queue.back().is_none_or(|last| *last < id) {
            self.queue.push_back(id);
        } else if self.queue.front().is_some_and(|first| id < *first) {
            self.queue.push_front(id);
        } else {
            let exceptions = self.exceptions.get_or_insert_default();
            if !exceptions.gone.remove(&id) {
                exceptions.returned.insert(id);
            }
            self.trim();
        }
    }

    fn remove(&mut self, id: TaskId) -> bool {
        if self.queue.front() == Some(&id) {
            self.queue.pop_front();
        } else if self.queue.back() == Some(&id) {
            self.queue.pop_back();
        } else if !self.exceptions.as_mut().is_some_and(|all| all.returned.remove(&id))
            && (self.queue.binary_search(&id).is_err()
                || !self.exceptions.get_or_insert_default().gone.insert(id))
        {
            return false;
        }
        self.trim();
        true
    }

    /// Removes tasks that are gone from the queue: at its ends at once, inside when they are half of it.
    fn trim(&mut self) {
        let Some(Exceptions { gone, returned }) = self.exceptions.as_deref_mut() else { return };
        while !gone.is_empty() && self.queue.front().is_some_and(|first| gone.remove(first)) {
            self.queue.pop_front();
        }
        while !gone.is_empty() && self.queue.back().is_some_and(|last| gone.remove(last)) {
            self.queue.pop_back();
        }
        if gone.len() > 32 && gone.len() > self.queue.len() / 2 {
            let gone = std::mem::take(gone);
            let mut gone = gone.iter().peekable();
            self.queue.retain(|id| gone.next_if_eq(id).is_none());
        }
        if gone.is_empty() && returned.is_empty() {
            self.exceptions = None;
        }
    }

    fn iter(&self) -> impl Iterator<Item = TaskId> {
        let mut queued = self.queue.iter().copied().filter(|id| !self.is_gone(id)).peekable();
        let returned = self.exceptions().into_iter().flat_map(|all| all.returned.iter());
        let mut returned = returned.peekable();
        std::iter::from_fn(move || match (queued.peek(), returned.peek()) {
            (Some(a), Some(b)) if b < a => returned.next(),
            (Some(_), _) => queued.next(),
            (None, _) => returned.next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Bound::{Excluded, Unbounded};

    use super::*;

    #[test]
    fn does_what_a_sorted_set_does() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut order, mut set) = (Order::default(), BTreeSet::new());
            for _ in 0..2_000 {
                let key = (random.u64(0..3), TaskId(random.u64(0..200)));
                match random.u8(0..4) {
                    0 | 1 if set.insert(key) => order.insert(key),
                    2 => assert_eq!(order.remove(key), set.remove(&key), "seed {seed}"),
                    3 => {
                        if let Some(first) = set.pop_first() {
                            assert!(order.remove(first), "seed {seed}");
                        }
                    }
                    _ => {}
                }
                assert_eq!(order.first(), set.first().copied(), "seed {seed}");
                assert_eq!(order.rank(key), set.range(..key).count() as u64, "seed {seed}");
                assert_eq!(order.len(), set.len(), "seed {seed}");
                let (from, after) =
                    ((key.0, TaskId(u64::MAX)), set.range((Excluded(key), Unbounded)));
                assert_eq!(order.after(key), after.copied().next(), "seed {seed}");
                let next_lane = set.range((Excluded(from), Unbounded)).copied().next();
                assert_eq!(order.after(from), next_lane, "seed {seed}");
            }
            assert!(order.iter().eq(set.iter().copied()), "seed {seed}");
        }
    }

    /// Priorities may be as many as tasks, for example times.
    #[test]
    fn the_rank_is_right_with_many_priorities() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut order, mut set) = (Order::default(), BTreeSet::new());
        for round in 0..60_000_u64 {
            // It grows, and becomes small again.
            let key = (random.u64(0..20_000) * 1_000_003 % 65_536, TaskId(random.u64(0..4)));
            let grows = round < 40_000;
            if grows && set.insert(key) {
                order.insert(key);
            } else if !grows
                && let Some(first) = if round % 2 == 0 { set.pop_first() } else { set.pop_last() }
            {
                assert!(order.remove(first));
            }
            if round % 997 == 0 {
                assert_eq!(order.rank(key), set.range(..key).count() as u64);
                assert_eq!(order.rank((u64::MAX, TaskId(0))), set.len() as u64);
            }
        }
        assert!(order.counts.is_none() == (order.levels.len() < LevelCounts::LEVELS_MIN / 2));
    }

    /// Tasks that were removed from the middle of their priority, or returned to it, were counted one by one for each
    /// position behind them.
    #[test]
    fn a_rank_takes_few_steps() {
        const TASKS: u64 = 300_000;
        let mut order = Order::default();
        let key = |id| (7, TaskId(id));
        (0..TASKS).step_by(2).for_each(|id| order.insert(key(id)));
        (1..TASKS).step_by(2).for_each(|id| order.insert(key(id)));
        let is_removed = |id: &u64| id % 5 == 3 && *id < TASKS - 5;
        (0..TASKS).filter(is_removed).for_each(|id| assert!(order.remove(key(id))));
        for id in [1, 1_000, TASKS / 2, TASKS - 1] {
            let (steps, rank) = steps::of(|| order.rank(key(id)));
            assert_eq!(rank, id - (0..id).filter(is_removed).count() as u64, "task {id}");
            assert!(steps < 100, "{steps} steps");
        }
    }

    /// A tube whose tasks are deleted from the middle forever, while the first is never taken, must
    /// not grow.
    #[test]
    fn the_gone_do_not_pile_up() {
        let mut order = Order::default();
        order.insert((0, TaskId(0)));
        for id in 1..100_000 {
            order.insert((0, TaskId(id)));
            order.remove((0, TaskId(id - 1).max(TaskId(1))));
        }
        assert!(order.levels[&0].queue.len() < 100);
    }
}

//! Ready tasks in the order of delivery, for a few bytes each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use crate::subqueue::Place;
use crate::task::TaskId;

/// Ready tasks by priority, then by id.
///
/// Ids only grow, so nearly every task joins its priority at the end and leaves it at the front: a
/// plain queue does that for eight bytes a task. The exceptions stand in two small sets.
#[derive(Debug, Default)]
pub(crate) struct Order {
    lanes: BTreeMap<u64, Lane>,
    len: usize,
}

/// The tasks of one priority.
#[derive(Debug, Default)]
struct Lane {
    /// Ascending. The first and the last are never among the `gone`.
    queue: VecDeque<TaskId>,
    /// Those of the queue that left it from the middle.
    gone: BTreeSet<TaskId>,
    /// Those that came back when later ones had already queued up.
    returned: BTreeSet<TaskId>,
}

/// An empty lane keeps at most this much room.
const KEPT_WHEN_EMPTY: usize = 4096;

impl Order {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn first(&self) -> Option<Place> {
        self.lanes.iter().find_map(|(pri, lane)| Some((*pri, lane.first()?)))
    }

    /// The first task after this place.
    pub fn after(&self, (pri, id): Place) -> Option<Place> {
        self.lanes.range(pri..).find_map(|(at, lane)| {
            let first = if *at == pri { lane.after(id) } else { lane.first() };
            Some((*at, first?))
        })
    }

    pub fn insert(&mut self, (pri, id): Place) {
        self.lanes.entry(pri).or_default().insert(id);
        self.len += 1;
    }

    /// Whether it was there.
    pub fn remove(&mut self, (pri, id): Place) -> bool {
        let Some(lane) = self.lanes.get_mut(&pri) else { return false };
        if !lane.remove(id) {
            return false;
        }
        self.len -= 1;
        let (is_empty, room) = (lane.first().is_none(), lane.queue.capacity());
        // The only lane stays: a tube that runs empty now and then would make it again and again.
        if is_empty && (self.lanes.len() > 1 || room > KEPT_WHEN_EMPTY) {
            self.lanes.remove(&pri);
        }
        true
    }

    pub fn iter(&self) -> impl Iterator<Item = Place> {
        self.lanes.iter().flat_map(|(pri, lane)| lane.iter().map(|id| (*pri, id)))
    }
}

impl Lane {
    fn first(&self) -> Option<TaskId> {
        match (self.queue.front(), self.returned.first()) {
            (Some(queued), Some(returned)) => Some(*queued.min(returned)),
            (queued, returned) => queued.or(returned).copied(),
        }
    }

    fn after(&self, id: TaskId) -> Option<TaskId> {
        let from = self.queue.partition_point(|queued| *queued <= id);
        let queued = self.queue.range(from..).find(|queued| !self.gone.contains(queued));
        let returned = self.returned.range((Bound::Excluded(id), Bound::Unbounded)).next();
        match (queued, returned) {
            (Some(queued), Some(returned)) => Some(*queued.min(returned)),
            (queued, returned) => queued.or(returned).copied(),
        }
    }

    fn insert(&mut self, id: TaskId) {
        if self.queue.back().is_none_or(|last| *last < id) {
            self.queue.push_back(id);
        } else if self.queue.front().is_some_and(|first| id < *first) {
            self.queue.push_front(id);
        } else if !self.gone.remove(&id) {
            self.returned.insert(id);
        }
    }

    fn remove(&mut self, id: TaskId) -> bool {
        if self.queue.front() == Some(&id) {
            self.queue.pop_front();
        } else if self.queue.back() == Some(&id) {
            self.queue.pop_back();
        } else if self.returned.remove(&id) {
            return true;
        } else if self.queue.binary_search(&id).is_err() || !self.gone.insert(id) {
            return false;
        }
        self.trim();
        true
    }

    /// Lets the gone leave the queue: at its ends at once, inside when they are half of it.
    fn trim(&mut self) {
        if self.gone.is_empty() {
            return;
        }
        while self.queue.front().is_some_and(|first| self.gone.remove(first)) {
            self.queue.pop_front();
        }
        while self.queue.back().is_some_and(|last| self.gone.remove(last)) {
            self.queue.pop_back();
        }
        if self.gone.len() > 32 && self.gone.len() > self.queue.len() / 2 {
            let gone = std::mem::take(&mut self.gone);
            self.queue.retain(|id| !gone.contains(id));
        }
    }

    fn iter(&self) -> impl Iterator<Item = TaskId> {
        let mut queued = self.queue.iter().filter(|id| !self.gone.contains(id)).peekable();
        let mut returned = self.returned.iter().peekable();
        std::iter::from_fn(move || match (queued.peek(), returned.peek()) {
            (Some(a), Some(b)) if b < a => returned.next().copied(),
            (Some(_), _) => queued.next().copied(),
            (None, _) => returned.next().copied(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound::{Excluded, Unbounded};

    use super::*;

    #[test]
    fn does_what_a_sorted_set_does() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut order, mut set) = (Order::default(), BTreeSet::new());
            for _ in 0..2_000 {
                let place = (random.u64(0..3), TaskId(random.u64(0..200)));
                match random.u8(0..4) {
                    0 | 1 if set.insert(place) => order.insert(place),
                    2 => assert_eq!(order.remove(place), set.remove(&place), "seed {seed}"),
                    3 => {
                        if let Some(first) = set.pop_first() {
                            assert!(order.remove(first), "seed {seed}");
                        }
                    }
                    _ => {}
                }
                assert_eq!(order.first(), set.first().copied(), "seed {seed}");
                assert_eq!(order.len(), set.len(), "seed {seed}");
                let (from, after) =
                    ((place.0, TaskId(u64::MAX)), set.range((Excluded(place), Unbounded)));
                assert_eq!(order.after(place), after.copied().next(), "seed {seed}");
                let next_lane = set.range((Excluded(from), Unbounded)).copied().next();
                assert_eq!(order.after(from), next_lane, "seed {seed}");
            }
            assert!(order.iter().eq(set.iter().copied()), "seed {seed}");
        }
    }

    /// A tube whose tasks are deleted from the middle for ever, while the first is never taken, must
    /// not grow.
    #[test]
    fn the_gone_do_not_pile_up() {
        let mut order = Order::default();
        order.insert((0, TaskId(0)));
        for id in 1..100_000 {
            order.insert((0, TaskId(id)));
            order.remove((0, TaskId(id - 1).max(TaskId(1))));
        }
        assert!(order.lanes[&0].queue.len() < 100);
    }
}

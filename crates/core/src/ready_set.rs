//! The ready tasks of one sub-queue, in the order of delivery.

use crate::order::Order;
use crate::subqueue::OrderKey;

/// Up to this many tasks are in a plain list: most sub-queues are short, and there may be many.
const FEW: usize = 64;

/// Ready tasks by priority and id, found by their place too.
#[derive(Debug)]
pub(crate) enum ReadySet {
    /// Sorted.
    Few(Vec<OrderKey>),
    Many(Box<Order>),
}

impl Default for ReadySet {
    fn default() -> Self {
        ReadySet::Few(Vec::new())
    }
}

impl ReadySet {
    pub fn is_empty(&self) -> bool {
        match self {
            ReadySet::Few(keys) => keys.is_empty(),
            ReadySet::Many(order) => order.len() == 0,
        }
    }

    pub fn first(&self) -> Option<OrderKey> {
        match self {
            ReadySet::Few(keys) => keys.first().copied(),
            ReadySet::Many(order) => order.first(),
        }
    }

    /// The number of tasks before this key.
    pub fn rank(&self, key: OrderKey) -> u64 {
        match self {
            ReadySet::Few(keys) => keys.partition_point(|before| *before < key) as u64,
            ReadySet::Many(order) => order.rank(key),
        }
    }

    pub fn insert(&mut self, key: OrderKey) {
        match self {
            ReadySet::Few(keys) => {
                if keys.last().is_none_or(|last| *last < key) {
                    keys.push(key);
                } else {
                    let Err(place) = keys.binary_search(&key) else { return };
                    keys.insert(place, key);
                }
                if keys.len() > FEW {
                    let mut order = Order::default();
                    keys.iter().for_each(|key| order.insert(*key));
                    *self = ReadySet::Many(Box::new(order));
                }
            }
            ReadySet::Many(order) => order.insert(key),
        }
    }

    pub fn remove(&mut self, key: OrderKey) {
        match self {
            ReadySet::Few(keys) => {
                if let Ok(place) = keys.binary_search(&key) {
                    keys.remove(place);
                }
            }
            ReadySet::Many(order) => {
                order.remove(key);
                if order.len() == 0 {
                    *self = ReadySet::default();
                }
            }
        }
    }

    pub fn iter(&self) -> Box<dyn Iterator<Item = OrderKey> + '_> {
        match self {
            ReadySet::Few(keys) => Box::new(keys.iter().copied()),
            ReadySet::Many(order) => Box::new(order.iter()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::task::TaskId;

    #[test]
    fn does_what_a_sorted_set_does() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut ready, mut set) = (ReadySet::default(), BTreeSet::new());
            for step in 0..3_000 {
                let key = (random.u64(0..3), TaskId(random.u64(0..100)));
                // It grows beyond the limit, and is emptied again.
                if (step / 1_000 % 2 == 0) == (random.u8(0..4) > 0) {
                    if set.insert(key) {
                        ready.insert(key);
                    }
                } else {
                    set.remove(&key);
                    ready.remove(key);
                }
                assert_eq!(ready.first(), set.first().copied(), "seed {seed}");
                assert_eq!(ready.rank(key), set.range(..key).count() as u64, "seed {seed}");
                assert_eq!(ready.is_empty(), set.is_empty(), "seed {seed}");
            }
            assert!(ready.iter().eq(set.iter().copied()), "seed {seed}");
        }
    }
}

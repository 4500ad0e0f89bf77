//! Sub-queues: at most one task of each runs, and busy ones are never searched.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use crate::ready_set::ReadySet;
use crate::task::TaskId;

/// The index of a task that belongs to no sub-queue.
pub(crate) const NO_SUBQUEUE: u32 = u32::MAX;

/// In tubes with more sub-queues than this only the heads are listed as upcoming: there are many
/// then, and the cost of a take must not grow with the number of sub-queues.
const SEARCHED: usize = 1024;

/// The key of a ready task in its order: priority and id.
pub(crate) type OrderKey = (u64, TaskId);

/// All sub-queues of a tube. The first ready task of every idle one is in `heads`, so the next task
/// to take is found at once however many sub-queues are busy.
#[derive(Debug, Default)]
pub(crate) struct Subqueues {
    by_key: HashMap<Arc<str>, u32>,
    queues: Vec<Subqueue>,
    vacant: Vec<u32>,
    heads: BTreeSet<OrderKey>,
}

#[derive(Debug)]
struct Subqueue {
    key: Arc<str>,
    ready: ReadySet,
    /// Its entry in `heads`.
    head: Option<OrderKey>,
    running: u32,
    /// Tasks of any state; a sub-queue without members is removed.
    members: u32,
}

impl Subqueues {
    /// Adds a task to the sub-queue `key` and returns its index.
    pub fn join(&mut self, key: &Arc<str>) -> u32 {
        let index = match self.by_key.get(key) {
            Some(&index) => index,
            None => self.add(key),
        };
        self.queues[index as usize].members += 1;
        index
    }

    /// Removes a task from it.
    pub fn leave(&mut self, index: u32) {
        let queue = &mut self.queues[index as usize];
        queue.members -= 1;
        if queue.members == 0 {
            debug_assert!(queue.ready.is_empty() && queue.running == 0);
            self.by_key.remove(&queue.key);
            self.vacant.push(index);
        }
    }

    pub fn key(&self, index: u32) -> Option<Arc<str>> {
        self.queues.get(index as usize).map(|queue| queue.key.clone())
    }

    pub fn is_busy(&self, index: u32) -> bool {
        self.queues.get(index as usize).is_some_and(|queue| queue.running > 0)
    }

    pub fn add_ready(&mut self, index: u32, key: OrderKey) {
        let queue = &mut self.queues[index as usize];
        queue.ready.insert(key);
        // Nearly every task is added behind the first one.
        if queue.head.is_none_or(|head| key < head) {
            self.set_head(index);
        }
    }

    pub fn remove_ready(&mut self, index: u32, key: OrderKey) {
        self.queues[index as usize].ready.remove(key);
        self.set_head(index);
    }

    /// A task of it starts to run.
    pub fn start(&mut self, index: u32) {
        self.queues[index as usize].running += 1;
        self.set_head(index);
    }

    /// A task of it stops running.
    pub fn stop(&mut self, index: u32) {
        self.queues[index as usize].running -= 1;
        self.set_head(index);
    }

    /// The first ready task of all idle sub-queues.
    pub fn first(&self) -> Option<OrderKey> {
        self.heads.first().copied()
    }

    /// The first of them after this key.
    pub fn after(&self, key: OrderKey) -> Option<OrderKey> {
        self.heads.range((Bound::Excluded(key), Bound::Unbounded)).next().copied()
    }

    /// The number of ready tasks of a sub-queue before this key.
    pub fn rank(&self, index: u32, key: OrderKey) -> u64 {
        self.queues.get(index as usize).map_or(0, |queue| queue.ready.rank(key))
    }

    /// The number of tasks that could be taken now: one of each idle sub-queue.
    pub fn takeable(&self) -> usize {
        self.heads.len()
    }

    /// At most `window` upcoming ready tasks: first the heads, in order, then the tasks behind them
    /// and behind running tasks, as long as not too many sub-queues must be examined.
    pub fn upcoming(&self, window: usize) -> Vec<OrderKey> {
        let mut next: Vec<OrderKey> = self.heads.iter().take(window).copied().collect();
        if next.len() == window || self.queues.len() > SEARCHED {
            return next;
        }
        let heads = next.len();
        let filled = self.queues.iter().filter(|queue| !queue.ready.is_empty());
        let depth = window.div_ceil(filled.clone().count().max(1));
        for queue in filled {
            let behind = queue.ready.iter().skip(usize::from(queue.head.is_some()));
            next.extend(behind.take(depth));
        }
        next[heads..].sort_unstable();
        next.truncate(window);
        next
    }

    fn add(&mut self, key: &Arc<str>) -> u32 {
        let queue = Subqueue {
            key: key.clone(),
            ready: ReadySet::default(),
            head: None,
            running: 0,
            members: 0,
        };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.queues[index as usize] = queue;
                index
            }
            None => {
                self.queues.push(queue);
                u32::try_from(self.queues.len() - 1).expect("a tube holds less than 2^32 tasks")
            }
        };
        self.by_key.insert(key.clone(), index);
        index
    }

    fn set_head(&mut self, index: u32) {
        let queue = &mut self.queues[index as usize];
        let head = if queue.running > 0 { None } else { queue.ready.first() };
        if head == queue.head {
            return;
        }
        if let Some(old) = queue.head {
            self.heads.remove(&old);
        }
        if let Some(new) = head {
            self.heads.insert(new);
        }
        queue.head = head;
    }
}

#[cfg(test)]
impl Subqueues {
    /// Each sub-queue with its ready tasks, the number of running tasks and of members. Panics if
    /// the bookkeeping is inconsistent.
    pub fn audit(&self) -> HashMap<Arc<str>, (BTreeSet<OrderKey>, u32, u32)> {
        let mut heads = BTreeSet::new();
        let mut all = HashMap::new();
        for (key, index) in &self.by_key {
            let queue = &self.queues[*index as usize];
            assert_eq!(queue.key, *key);
            let head = queue.ready.first().filter(|_| queue.running == 0);
            assert_eq!(queue.head, head, "the head of {key}");
            heads.extend(head);
            all.insert(key.clone(), (queue.ready.iter().collect(), queue.running, queue.members));
        }
        assert_eq!(self.heads, heads);
        let vacant: BTreeSet<_> = self.vacant.iter().collect();
        assert_eq!(vacant.len(), self.vacant.len(), "a vacant index is listed twice");
        assert_eq!(vacant.len() + all.len(), self.queues.len(), "an index is lost");
        all
    }
}

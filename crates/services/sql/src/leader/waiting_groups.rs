//! Keeps the groups whose tasks could start if there were capacity, in the order in which they start.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::capacity::Capacity;

/// How many waiting groups are kept, for this database and for remotes each. The claim answers one more where there are
/// more.
const WAITING_MAX: usize = 2000;

/// A finished claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinishedClaim {
    /// Whether it covered all groups.
    pub all: bool,
    /// The capacity that it was made for.
    pub capacity: Capacity,
    /// Whether it found a task.
    pub found: bool,
}

/// A group with a task that may start as soon as there is capacity.
#[derive(Debug, serde::Deserialize)]
pub(super) struct WaitingGroup {
    key: String,
    /// How many of its tasks may start beside those that run: groups with more start first.
    allowance: i64,
    /// Its first task: among equals, groups with a lower one start first.
    id: i64,
    /// Whether it runs on a remote.
    remote: bool,
}

type GroupRank = (Reverse<i64>, i64);

/// Waiting groups of this database, or of remotes.
#[derive(Debug, Default)]
struct GroupQueue {
    order: BTreeMap<GroupRank, String>,
    ranks: HashMap<String, GroupRank>,
    /// Whether there are more groups than are kept.
    truncated: bool,
}

impl GroupQueue {
    fn insert(&mut self, group: WaitingGroup) {
        if self.ranks.len() >= WAITING_MAX {
            self.truncated = true;
            return;
        }
        self.remove(&group.key);
        let rank = (Reverse(group.allowance), group.id);
        self.ranks.insert(group.key.clone(), rank);
        if let Some(replaced) = self.order.insert(rank, group.key) {
            self.ranks.remove(&replaced);
        }
    }

    fn remove(&mut self, key: &str) {
        if let Some(rank) = self.ranks.remove(key) {
            self.order.remove(&rank);
        }
    }

    fn take(&mut self, count: usize) -> Vec<String> {
        let first = self.order.iter().take(count).map(|(rank, _)| *rank).collect::<Vec<_>>();
        let keys = first.iter().filter_map(|rank| self.order.remove(rank));
        let keys: Vec<String> = keys.collect();
        for key in &keys {
            self.ranks.remove(key);
        }
        keys
    }
}

/// The groups that wait for capacity.
#[derive(Debug, Default)]
pub(super) struct WaitingGroups {
    local: GroupQueue,
    remote: GroupQueue,
    /// Whether groups were left out whose rows another transaction holds locked.
    dropped: bool,
}

impl WaitingGroups {
    /// Adds the groups that a claim left waiting. A group that brought no task although there was capacity is left for the
    /// next claim of all groups.
    pub fn add(&mut self, groups: Vec<WaitingGroup>, claim: FinishedClaim) {
        if claim.all {
            *self = WaitingGroups::default();
        }
        for group in groups {
            let capacity = if group.remote { claim.capacity.all } else { claim.capacity.local };
            let queue = if group.remote { &mut self.remote } else { &mut self.local };
            if claim.all || claim.found || capacity == 0 {
                queue.insert(group);
            } else {
                self.dropped = true;
            }
        }
    }

    /// Removes a group that is claimed for another reason.
    pub fn remove(&mut self, key: &str) {
        self.local.remove(key);
        self.remote.remove(key);
    }

    /// Removes and returns the groups that are next for this capacity.
    pub fn take(&mut self, capacity: Capacity) -> Vec<String> {
        let mut keys = self.local.take(capacity.local);
        keys.extend(self.remote.take(capacity.all));
        keys
    }

    /// Whether a group waits.
    pub fn is_any(&self) -> bool {
        let any = |queue: &GroupQueue| queue.truncated || !queue.order.is_empty();
        any(&self.local) || any(&self.remote)
    }

    /// Whether groups were left out whose rows are locked.
    pub fn has_dropped(&self) -> bool {
        self.dropped
    }

    fn queues(&self, capacity: Capacity) -> impl Iterator<Item = &GroupQueue> {
        let queues = [(capacity.local, &self.local), (capacity.all, &self.remote)];
        queues.into_iter().filter(|(capacity, _)| *capacity > 0).map(|(_, queue)| queue)
    }

    /// Whether a known group may start a task with this capacity.
    pub fn has(&self, capacity: Capacity) -> bool {
        self.queues(capacity).any(|queue| !queue.order.is_empty())
    }

    /// Whether only a claim of all groups finds the next one.
    pub fn is_drained(&self, capacity: Capacity) -> bool {
        self.queues(capacity).any(|queue| queue.truncated && queue.order.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(key: &str, allowance: i64, id: i64, remote: bool) -> WaitingGroup {
        WaitingGroup { key: key.into(), allowance, id, remote }
    }

    fn claim(all: bool, found: bool) -> FinishedClaim {
        FinishedClaim { all, found, capacity: Capacity { all: 1, local: 1 } }
    }

    #[test]
    fn groups_wait_in_the_order_in_which_they_start() {
        let mut waiting = WaitingGroups::default();
        let left = vec![
            group("b", 0, 2, false),
            group("a", 0, 1, false),
            group("high", 3, 9, false),
            group("remote", 0, 7, true),
        ];
        waiting.add(left, claim(true, true));
        let none = Capacity { all: 0, local: 0 };
        assert!(waiting.is_any() && !waiting.has(none));
        // Groups of a full server do not keep those on remotes from starting.
        assert_eq!(waiting.take(Capacity { all: 5, local: 0 }), ["remote"]);
        assert_eq!(waiting.take(Capacity { all: 2, local: 2 }), ["high", "a"]);
        waiting.remove("b");
        assert!(!waiting.is_any());
    }

    #[test]
    fn a_group_that_brings_no_task_is_left_for_the_next_claim_of_all_groups() {
        // A row that another transaction holds locked would be claimed again and again, and no row of another group.
        let mut waiting = WaitingGroups::default();
        waiting.add(vec![group("locked", 0, 1, false)], claim(true, false));
        let capacity = Capacity { all: 1, local: 1 };
        assert_eq!(waiting.take(capacity), ["locked"]);
        waiting.add(vec![group("locked", 0, 1, false)], claim(false, false));
        assert!(waiting.has_dropped() && !waiting.has(capacity));
        // A group that found no capacity is kept.
        let full = FinishedClaim { capacity: Capacity { all: 1, local: 0 }, ..claim(false, false) };
        waiting.add(vec![group("later", 0, 2, false)], full);
        assert!(waiting.has(capacity));
    }

    #[test]
    fn groups_beyond_the_limit_are_found_by_a_new_claim() {
        let mut waiting = WaitingGroups::default();
        let many = (0..=WAITING_MAX as i64).map(|id| group(&id.to_string(), 0, id, false));
        waiting.add(many.collect(), claim(true, true));
        let capacity = Capacity { all: WAITING_MAX, local: WAITING_MAX };
        assert!(!waiting.is_drained(capacity));
        assert_eq!(waiting.take(capacity).len(), WAITING_MAX);
        assert!(waiting.is_drained(capacity));
    }
}

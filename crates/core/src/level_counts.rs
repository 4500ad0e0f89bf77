//! Sums over the priorities of a tube, so that the position of a task is found quickly although there are as
//! many priorities as tasks.

use std::collections::BTreeMap;

use crate::order::PriorityLevel;
use crate::steps;

/// Neighbouring priorities in groups, with the number of tasks in each group.
#[derive(Debug, Default)]
pub(crate) struct LevelCounts {
    /// By the first priority of the group; the first group begins with 0.
    groups: BTreeMap<u64, Group>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Group {
    tasks: usize,
    /// Tasks added since its priorities were counted: at least as many as there are new priorities.
    added: usize,
}

/// A group with about this many priorities is divided.
const GROUP_LEVELS: usize = 1024;

impl LevelCounts {
    /// Fewer priorities are counted one by one.
    pub const LEVELS_MIN: usize = 2 * GROUP_LEVELS;

    pub fn new(levels: &BTreeMap<u64, PriorityLevel>) -> Self {
        let mut counts = LevelCounts::default();
        counts.divide(0, None, levels);
        counts
    }

    /// The first priority of the group of this one, and the number of tasks in the groups before.
    pub fn before(&self, pri: u64) -> (u64, usize) {
        let first = self.first(pri);
        let count = |(_, group): (&u64, &Group)| {
            steps::count(1);
            group.tasks
        };
        (first, self.groups.range(..first).map(count).sum())
    }

    /// A task with this priority was added.
    pub fn add(&mut self, pri: u64, levels: &BTreeMap<u64, PriorityLevel>) {
        let first = self.first(pri);
        let group = self.groups.entry(first).or_default();
        group.tasks += 1;
        group.added += 1;
        if group.added < GROUP_LEVELS {
            return;
        }
        group.added = 0;
        let end = self.groups.range(first + 1..).next().map(|(end, _)| *end);
        let own = levels.range(first..end.unwrap_or(u64::MAX));
        if own.take(2 * GROUP_LEVELS).count() == 2 * GROUP_LEVELS {
            self.divide(first, end, levels);
        }
    }

    /// A task with this priority was removed.
    pub fn remove(&mut self, pri: u64) {
        let first = self.first(pri);
        let group = self.groups.entry(first).or_default();
        group.tasks -= 1;
        if group.tasks == 0 && first > 0 {
            self.groups.remove(&first);
        }
    }

    fn first(&self, pri: u64) -> u64 {
        self.groups.range(..=pri).next_back().map_or(0, |(first, _)| *first)
    }

    /// Makes groups of the priorities from `first` to before `end`.
    fn divide(&mut self, first: u64, end: Option<u64>, levels: &BTreeMap<u64, PriorityLevel>) {
        let (mut group, mut begin) = (Group::default(), first);
        for (place, (pri, level)) in levels.range(first..).enumerate() {
            if end.is_some_and(|end| *pri >= end) {
                break;
            }
            if place > 0 && place % GROUP_LEVELS == 0 {
                self.groups.insert(begin, std::mem::take(&mut group));
                begin = *pri;
            }
            group.tasks += level.len();
        }
        self.groups.insert(begin, group);
    }
}

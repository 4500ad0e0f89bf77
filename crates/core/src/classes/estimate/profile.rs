//! The simulated future as steps, so that one more task can be added without repeating the
//! simulation.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{Occupant, Waiter};
use crate::limits::CLASSES_MAX;
use crate::time::Timestamp;

/// How many tasks of each class and longer run from a moment on.
type RunningCounts = [u32; CLASSES_MAX];

/// How many tasks run at each future moment.
///
/// It is valid as long as everything happens as expected: tasks are added behind all others and
/// nothing else changes. When a task ends early, leaves or loses its backend, a new profile is
/// needed.
#[derive(Clone, Debug)]
pub struct Profile {
    limits: Vec<u32>,
    /// The running tasks from each moment to the next one; the first is the beginning, and at the
    /// last nothing runs.
    steps: BTreeMap<Timestamp, RunningCounts>,
    /// Before this moment no other task of the class fits, and none ever will.
    full_until: [Timestamp; CLASSES_MAX],
}

impl Profile {
    /// Begins now, with these limits for each class and longer, and these tasks running.
    pub fn new(
        now: Timestamp,
        limits: &[u32],
        occupants: impl IntoIterator<Item = Occupant>,
    ) -> Self {
        let steps = BTreeMap::from([(now, [0; CLASSES_MAX])]);
        let mut this = Profile { limits: limits.to_vec(), steps, full_until: [now; CLASSES_MAX] };
        for occupant in occupants {
            this.occupy(now, occupant);
        }
        this
    }

    /// Adds a task behind all others; returns when it starts, or `None` if it never can. That may
    /// be before earlier tasks of longer classes, and none of them starts later because of it.
    pub fn add(&mut self, now: Timestamp, waiter: Waiter) -> Option<Timestamp> {
        let class = usize::from(waiter.class);
        let begin = self.full_until[class].max(now);
        let start = self.first_room(begin, class)?;
        self.full_until[class] = start;
        self.occupy(start, Occupant { class: waiter.class, end: start + waiter.time });
        Some(start)
    }

    /// The first moment from this one on at which another task of the class fits.
    fn first_room(&self, begin: Timestamp, class: usize) -> Option<Timestamp> {
        let limits = &self.limits[..=class];
        let has_room =
            |counts: &RunningCounts| limits.iter().zip(counts).all(|(limit, count)| count < limit);
        let current = self.steps.range(..=begin).next_back();
        if current.is_some_and(|(_, counts)| has_room(counts)) {
            return Some(begin);
        }
        let later = self.steps.range((Bound::Excluded(begin), Bound::Unbounded));
        let found = later.into_iter().find(|(_, counts)| has_room(counts));
        found.map(|(moment, _)| *moment)
    }

    /// Whether a start or end was expected after the first moment and up to the second.
    pub fn has_step(&self, after: Timestamp, until: Timestamp) -> bool {
        after < until
            && self.steps.range((Bound::Excluded(after), Bound::Included(until))).next().is_some()
    }

    fn occupy(&mut self, start: Timestamp, occupant: Occupant) {
        if occupant.end <= start {
            return;
        }
        self.split(start);
        self.split(occupant.end);
        for (_, counts) in self.steps.range_mut(start..occupant.end) {
            for count in &mut counts[..=usize::from(occupant.class)] {
                *count += 1;
            }
        }
    }

    /// Splits the step at this moment.
    fn split(&mut self, moment: Timestamp) {
        let before = self.steps.range(..=moment).next_back().map(|(_, counts)| *counts);
        self.steps.entry(moment).or_insert(before.unwrap_or_default());
    }
}

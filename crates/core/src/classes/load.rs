//! The number of running tasks, counted for each class together with the longer ones.

use crate::limits::CLASSES_MAX;

/// A number for each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassCounts {
    counts: [u32; CLASSES_MAX],
    len: usize,
}

impl ClassCounts {
    /// Zero for each of `len` classes.
    pub fn new(len: usize) -> Self {
        ClassCounts { counts: [0; CLASSES_MAX], len }
    }

    /// The numbers, shortest class first.
    pub fn as_slice(&self) -> &[u32] {
        &self.counts[..self.len]
    }

    pub(super) fn set(&mut self, class: usize, count: u32) {
        self.counts[class] = count;
    }
}

/// The number of running tasks of each class and longer, and the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    running: ClassCounts,
    limits: ClassCounts,
}

impl Load {
    /// Nothing runs yet.
    pub fn new(limits: ClassCounts) -> Self {
        Load { running: ClassCounts::new(limits.len), limits }
    }

    /// How many classes there are.
    pub fn classes(&self) -> usize {
        self.limits.len
    }

    /// How many run of this class and longer.
    pub fn running(&self, class: usize) -> u32 {
        self.running.counts[class]
    }

    /// How many may run of this class and longer.
    pub fn limit(&self, class: usize) -> u32 {
        self.limits.counts[class]
    }

    /// Whether no further task of this class may start.
    pub fn is_full(&self, class: usize) -> bool {
        self.running(class) >= self.limit(class)
    }

    /// Whether a task of this class may start now.
    pub fn admits(&self, class: u8) -> bool {
        (0..=usize::from(class)).all(|level| !self.is_full(level))
    }

    /// The longest class of which a task may start now; `None` when all is full.
    pub fn longest_free(&self) -> Option<u8> {
        let free = (0..self.classes()).take_while(|class| !self.is_full(*class)).count();
        free.checked_sub(1).map(|class| class as u8)
    }

    /// The longest class up to this one that holds a task back; `None` when none does.
    pub fn full_for(&self, class: u8) -> Option<u8> {
        (0..=class).rev().find(|level| self.is_full(usize::from(*level)))
    }

    /// A task of this class starts.
    pub fn add(&mut self, class: u8) {
        for count in &mut self.running.counts[..=usize::from(class)] {
            *count += 1;
        }
    }

    /// A task of this class ends.
    pub fn remove(&mut self, class: u8) {
        for count in &mut self.running.counts[..=usize::from(class)] {
            debug_assert!(*count > 0, "more tasks end than started");
            *count = count.saturating_sub(1);
        }
    }

    /// Sets the limits; running tasks continue.
    pub fn set_limits(&mut self, limits: ClassCounts) {
        self.limits = limits;
    }
}

//! What is counted.

use std::time::Duration;

use serde::Serialize;

/// What happened in one class so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClassCounts {
    /// Tasks that started in it.
    pub started: u64,
    /// Seconds they had waited, all together.
    pub waited_seconds: f64,
    /// Tasks that ended.
    pub ended: u64,
    /// Seconds they held their backends, all together.
    pub ran_seconds: f64,
}

/// What happened so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    /// By class, the shortest first.
    pub classes: Vec<ClassCounts>,
    /// Tasks that came.
    pub arrived: u64,
    /// Interactive tasks that started.
    pub interactive: u64,
    /// How often a running task got less time.
    pub lowered: u64,
    /// Interactive tasks that had to end for another.
    pub halted: u64,
    /// Tasks that were turned away.
    pub denied: u64,
    /// Clients that left before their task started.
    pub left: u64,
    /// Tasks that took their place in the queue again.
    pub put_back: u64,
    /// Tasks that were lost with their backend.
    pub lost: u64,
    /// Tasks that were told when they start, and started.
    pub told: u64,
    /// Those of them that started no later than first told.
    pub kept: u64,
    /// Seconds between what they were told first and their start, all together.
    pub early_seconds: f64,
    /// Seconds by which the others were late, all together.
    pub late_seconds: f64,
}

impl Counts {
    pub(super) fn new(classes: usize) -> Self {
        Counts { classes: vec![ClassCounts::default(); classes], ..Counts::default() }
    }

    /// A task starts: how much before or after the moment that it was told first?
    pub(super) fn calibrate(&mut self, early: Duration, late: Duration) {
        self.told += 1;
        if late.is_zero() {
            self.kept += 1;
        }
        self.early_seconds += early.as_secs_f64();
        self.late_seconds += late.as_secs_f64();
    }
}

/// How long it took lately to stop programs.
#[derive(Debug)]
pub(super) struct Endings {
    last: Vec<Duration>,
    next: usize,
}

impl Endings {
    /// Before anything is known, `guess` is.
    pub fn new(guess: Duration) -> Self {
        Endings { last: vec![guess; 20], next: 0 }
    }

    pub fn note(&mut self, took: Duration) {
        self.last[self.next] = took;
        self.next = (self.next + 1) % self.last.len();
    }

    /// The time within which nineteen of twenty ended.
    pub fn usual_max(&self) -> Duration {
        let mut sorted = self.last.clone();
        sorted.sort_unstable();
        sorted[sorted.len() * 19 / 20 - 1]
    }
}

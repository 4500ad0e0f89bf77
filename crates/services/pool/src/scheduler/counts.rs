//! What is counted.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::telling::Error;

/// What happened in one class so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClassCounts {
    /// Tasks that waited for room in it, perhaps not at all, and started.
    pub admitted: u64,
    /// Seconds they had waited, all together.
    pub waited_seconds: f64,
    /// Tasks that started in it: default ones start in the longest that has room.
    pub started: u64,
    /// Tasks that ended in it.
    pub ended: u64,
    /// Seconds they held their backends, all together.
    pub ran_seconds: f64,
    /// How often a running task was lowered out of it.
    pub lowered: u64,
    /// Tasks that wanted to wait for it and were turned away.
    pub denied: u64,
    /// How far its estimates were right.
    pub estimates: Estimates,
}

/// How far estimates were right.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Estimates {
    /// Tasks that were told when they start, and started.
    pub told: u64,
    /// Those of them that started no later than first told.
    pub kept: u64,
    /// Seconds between their start and what they were told first, all together.
    pub early_seconds: f64,
    /// Seconds by which the others were late, all together.
    pub late_seconds: f64,
    /// Seconds between their start and what was first expected, before or after, all together.
    pub expected_error_seconds: f64,
}

/// What happened so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// By class, the shortest first.
    pub classes: Vec<ClassCounts>,
    /// Tasks that came.
    pub arrived: u64,
    /// Interactive tasks that started.
    pub interactive: u64,
    /// Interactive tasks that were turned away.
    pub interactive_denied: u64,
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
    /// How far estimates were right, over all classes.
    #[serde(flatten)]
    pub estimates: Estimates,
}

impl Counts {
    pub(super) fn new(classes: usize) -> Self {
        Counts { classes: vec![ClassCounts::default(); classes], ..Counts::default() }
    }

    /// A task is turned away; without a class it is an interactive one.
    pub(super) fn deny(&mut self, class: Option<usize>) {
        self.denied += 1;
        match class {
            Some(class) => self.classes[class].denied += 1,
            None => self.interactive_denied += 1,
        }
    }

    /// A running task gets less time, and leaves this class if it does so.
    pub(super) fn lower(&mut self, class: Option<u8>) {
        self.lowered += 1;
        if let Some(class) = class {
            self.classes[usize::from(class)].lowered += 1;
        }
    }

    /// A task starts that was told when.
    pub(super) fn calibrate(&mut self, class: usize, error: Error) {
        self.estimates.note(error);
        self.classes[class].estimates.note(error);
    }
}

impl Estimates {
    fn note(&mut self, error: Error) {
        self.told += 1;
        self.kept += u64::from(error.late.is_zero());
        self.early_seconds += error.early.as_secs_f64();
        self.late_seconds += error.late.as_secs_f64();
        self.expected_error_seconds += error.expected.as_secs_f64();
    }

    /// The share of tasks that started no later than first told; nothing before the first.
    pub fn kept_share(&self) -> Option<f64> {
        (self.told > 0).then(|| self.kept as f64 / self.told as f64)
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

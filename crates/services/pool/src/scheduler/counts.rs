//! Counts what happened, for the status and the metrics.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use taskyard_core::estimate::Held;

use super::estimates::EstimateError;

/// What happened in one class so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClassCounts {
    /// Tasks that were queued for it, however briefly, and started.
    pub admitted: u64,
    /// Seconds that they waited.
    pub waited_seconds: f64,
    /// Tasks that started in it; default tasks start in the longest class with a free slot.
    pub started: u64,
    /// Tasks that ended in it.
    pub ended: u64,
    /// Seconds that they held their backends.
    pub ran_seconds: f64,
    /// How often a running task was lowered out of it.
    pub lowered: u64,
    /// Tasks queued for it that were denied.
    pub denied: u64,
    /// Accuracy of its estimates.
    pub estimates: EstimateCounts,
}

/// Accuracy of estimates.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EstimateCounts {
    /// Started tasks that had received an estimate.
    pub estimates_given: u64,
    /// Those of them that started no later than their first estimate.
    pub estimates_met: u64,
    /// Seconds by which tasks started before the bound of their first estimate.
    pub early_seconds: f64,
    /// Seconds by which tasks started after it.
    pub late_seconds: f64,
    /// Started tasks by the likely start in their first estimate.
    #[serde(default)]
    pub within: WithinCounts,
}

/// Started tasks by the likely start in their first estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithinCounts {
    /// Tasks that started within p50.
    pub p50: u64,
    /// Tasks that started after p50 and within p90.
    pub p90: u64,
    /// Tasks that started later.
    pub late: u64,
}

/// What happened so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// By class, the shortest first.
    pub classes: Vec<ClassCounts>,
    /// Tasks submitted.
    pub arrived: u64,
    /// Interactive tasks that started.
    pub interactive: u64,
    /// Interactive tasks that were denied.
    pub interactive_denied: u64,
    /// How often a running task got less time.
    pub lowered: u64,
    /// Interactive tasks that were halted for another task.
    pub halted: u64,
    /// Tasks that were denied.
    pub denied: u64,
    /// Clients that left before their task started.
    pub left: u64,
    /// Tasks that were requeued at their old position.
    pub requeued: u64,
    /// Tasks that were lost with their backend.
    pub lost: u64,
    /// Accuracy of estimates, over all classes.
    #[serde(flatten)]
    pub estimates: EstimateCounts,
}

impl Counts {
    pub(super) fn new(classes: usize) -> Self {
        Counts { classes: vec![ClassCounts::default(); classes], ..Counts::default() }
    }

    /// A task is denied; without a class it is an interactive one.
    pub(super) fn deny(&mut self, class: Option<usize>) {
        self.denied += 1;
        match class {
            Some(class) => self.classes[class].denied += 1,
            None => self.interactive_denied += 1,
        }
    }

    /// A running task gets less time; `class` is the class that it leaves, if it leaves one.
    pub(super) fn lower(&mut self, class: Option<u8>) {
        self.lowered += 1;
        if let Some(class) = class {
            self.classes[usize::from(class)].lowered += 1;
        }
    }

    /// A task starts that had received an estimate.
    pub(super) fn note_estimate(&mut self, class: usize, error: EstimateError) {
        self.estimates.note(error);
        self.classes[class].estimates.note(error);
    }
}

impl EstimateCounts {
    fn note(&mut self, error: EstimateError) {
        self.estimates_given += 1;
        self.estimates_met += u64::from(error.late.is_zero());
        self.early_seconds += error.early.as_secs_f64();
        self.late_seconds += error.late.as_secs_f64();
        match error.held {
            Some(Held::P50) => self.within.p50 += 1,
            Some(Held::P90) => self.within.p90 += 1,
            Some(Held::Late) => self.within.late += 1,
            None => {}
        }
    }

    /// Share of tasks that started no later than their first estimate; none before the first.
    pub fn estimates_met_share(&self) -> Option<f64> {
        (self.estimates_given > 0).then(|| self.estimates_met as f64 / self.estimates_given as f64)
    }
}

/// How long it took recently to stop programs.
#[derive(Debug)]
pub(super) struct StopDelays {
    last: Vec<Duration>,
    next: usize,
}

impl StopDelays {
    /// Uses `guess` until there are measurements.
    pub fn new(guess: Duration) -> Self {
        StopDelays { last: vec![guess; 20], next: 0 }
    }

    pub fn note(&mut self, took: Duration) {
        self.last[self.next] = took;
        self.next = (self.next + 1) % self.last.len();
    }

    /// The 95th percentile.
    pub fn p95(&self) -> Duration {
        let mut sorted = self.last.clone();
        sorted.sort_unstable();
        sorted[sorted.len() * 19 / 20 - 1]
    }
}

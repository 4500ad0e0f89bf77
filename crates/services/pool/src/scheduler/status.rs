//! Builds the status of the pool, for people and programs.

use serde::{Deserialize, Serialize};

use super::state::SchedulerState;
use super::{ClassCounts, Counts};

/// Status of the pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Live backends.
    pub backends: u32,
    /// Running tasks.
    pub running: usize,
    /// Running interactive tasks.
    pub interactive: usize,
    /// Waiting tasks.
    pub queued: usize,
    /// Whether the pool is paused.
    pub paused: bool,
    /// Seed of the random choices.
    pub seed: u64,
    /// 95th percentile of the time that programs take to end, in seconds.
    pub stop_seconds_p95: f64,
    /// Share of tasks that started no later than their first estimate; none before the first.
    pub estimates_met_share: Option<f64>,
    /// By class, the shortest first.
    pub classes: Vec<ClassStatus>,
    /// What happened so far.
    pub counts: Counts,
    /// Tasks that the scheduler knows: waiting and running ones.
    pub tracked: usize,
    /// An inconsistency in the scheduler's counts; none in normal operation.
    pub inconsistency: Option<String>,
}

/// Status of one class.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClassStatus {
    /// Its name.
    pub name: String,
    /// How long its tasks may run, in seconds.
    pub seconds: f64,
    /// Running tasks of this class and of longer ones.
    pub running: u32,
    /// Most tasks of this class and of longer ones that may run.
    pub limit: u32,
    /// Tasks queued for it; default tasks are queued for the first class.
    pub queued: usize,
}

impl SchedulerState {
    /// The current status.
    pub fn status(&self) -> Status {
        let (load, rules) = (self.classes.load(), self.classes.rules());
        let classes = rules.classes().iter().enumerate().map(|(at, class)| ClassStatus {
            name: class.name.clone(),
            seconds: class.duration.as_secs_f64(),
            running: load.running(at),
            limit: load.limit(at),
            queued: self.classes.queued_in(at),
        });
        Status {
            backends: self.classes.backends(),
            running: self.classes.running(),
            interactive: self.classes.interactive(),
            queued: self.classes.queued(),
            paused: self.paused,
            seed: self.seed,
            stop_seconds_p95: self.stop_delays.p95().as_secs_f64(),
            estimates_met_share: self.counts.estimates.estimates_met_share(),
            classes: classes.collect(),
            counts: self.counts.clone(),
            tracked: self.tasks.len(),
            inconsistency: self.classes.audit().err(),
        }
    }
}

impl Status {
    /// Each class with its counts.
    pub fn by_class(&self) -> impl Iterator<Item = (&ClassStatus, &ClassCounts)> {
        self.classes.iter().zip(&self.counts.classes)
    }
}

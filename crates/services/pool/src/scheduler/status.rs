//! How the pool is, for people and programs.

use serde::{Deserialize, Serialize};

use super::desk::Desk;
use super::{ClassCounts, Counts};

/// How the pool is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Live backends.
    pub backends: u32,
    /// Tasks that hold one.
    pub running: usize,
    /// Those of them that are interactive.
    pub interactive: usize,
    /// Tasks that wait.
    pub queued: usize,
    /// Whether nothing starts.
    pub paused: bool,
    /// What chance began with.
    pub seed: u64,
    /// Seconds that programs take to end, nineteen times of twenty.
    pub ending_seconds: f64,
    /// The share of tasks that started no later than first told; nothing before the first.
    pub kept_share: Option<f64>,
    /// By class, the shortest first.
    pub classes: Vec<ClassStatus>,
    /// What happened so far.
    pub counts: Counts,
    /// Tasks that the scheduler remembers: those that wait and those that run.
    pub remembered: usize,
    /// What does not agree in the scheduler's counts; nothing when all is well.
    pub wrong: Option<String>,
}

/// How one class is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClassStatus {
    /// Its name.
    pub name: String,
    /// How long its tasks may run.
    pub seconds: f64,
    /// How many of this class and longer ones run.
    pub running: u32,
    /// How many may.
    pub limit: u32,
    /// How many wait for room in it; default tasks wait in the first.
    pub queued: usize,
}

impl Desk {
    /// How the pool is.
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
            ending_seconds: self.endings.usual_max().as_secs_f64(),
            kept_share: self.counts.estimates.kept_share(),
            classes: classes.collect(),
            counts: self.counts.clone(),
            remembered: self.tasks.len(),
            wrong: self.classes.audit().err(),
        }
    }
}

impl Status {
    /// How each class is, beside what happened in it so far.
    pub fn by_class(&self) -> impl Iterator<Item = (&ClassStatus, &ClassCounts)> {
        self.classes.iter().zip(&self.counts.classes)
    }
}

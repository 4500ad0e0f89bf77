//! How the pool is, for people and programs.

use serde::Serialize;

use super::Counts;

/// How the pool is.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Live backends.
    pub backends: u32,
    /// Tasks that hold one.
    pub running: usize,
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
#[derive(Clone, Debug, Serialize)]
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

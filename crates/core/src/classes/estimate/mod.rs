//! Estimates when a task will start.
//!
//! Limits are nested and the first eligible task starts, so a task's start depends on earlier tasks
//! alone. One pass over the queue therefore gives the start of every task.

mod means;
mod profile;
mod simulation;

use crate::time::Span;

pub use means::Means;
pub use profile::Profile;
pub use simulation::{Occupant, Simulation, Waiter};

/// When a task will start, counted from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartEstimate {
    /// The latest start, if every task before it uses all its time.
    pub max: Span,
    /// The expected start, if tasks take as long as they did recently.
    pub expected: Span,
}

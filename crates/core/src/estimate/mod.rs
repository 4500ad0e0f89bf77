//! The one answer to "when will it run?", and how it is found.
//!
//! Limits are nested and the first who may start does, so a task's start depends on earlier tasks
//! alone. One pass over the queue therefore gives everybody's start.

mod means;
mod profile;
mod simulation;

use crate::time::Span;

pub use means::Means;
pub use profile::Profile;
pub use simulation::{Occupant, Simulation, Waiter};

/// When a task will start, counted from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// No later than this, even if every task before it uses all its time.
    pub max: Span,
    /// About then, if tasks take as long as they did lately.
    pub expected: Span,
}

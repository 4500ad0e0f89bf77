//! Estimates when a task will start.
//!
//! Limits are nested and the first eligible task starts, so a task's start depends on earlier tasks
//! alone. One pass over the queue therefore gives the start of every task: one in which all use their
//! whole time for the guaranteed bound, and some in which they run as long as others did recently.

mod profile;
mod run_lengths;
mod simulation;
mod start_model;

use crate::estimate::{Estimate, GivenEstimate};
use crate::time::{Span, Timestamp};

pub use profile::Profile;
pub(super) use run_lengths::{RunLengths, SimulatedRun};
pub use simulation::{Occupant, Simulation, Waiter};
pub(super) use start_model::SimulatedStart;
pub use start_model::StartModel;

/// When a task will start, counted from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartEstimate {
    /// The latest start, if every task before it uses all its time.
    pub at_most: Span,
    /// The likely start; `None` until a task has ended.
    pub likely: Option<LikelyStart>,
}

/// When a task will start if tasks run as long as they did recently, counted from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LikelyStart {
    shown: Estimate,
    /// Before the correction.
    raw: Estimate,
}

impl LikelyStart {
    /// Half of such tasks start within this time.
    pub fn p50(&self) -> Span {
        self.shown.p50
    }

    /// Nine of ten such tasks start within this time.
    pub fn p90(&self) -> Span {
        self.shown.p90
    }

    /// To be compared with the start of the task by [`StartModel::start`].
    pub fn given(&self, now: Timestamp) -> GivenEstimate {
        GivenEstimate { at: now, shown: self.shown, raw: self.raw }
    }
}

//! Duration classes: how long tasks may run, which must yield, which are next.
//!
//! [`Classes`] is the complete behaviour: events go in (a task arrives, ends, loses its backend),
//! and [`Decision`]s come out. It does not know individual backends: any free one runs what starts.
//!
//! Start reading at `rules` (the settings of an operator), then `cycle` (how the next task is
//! found), then `machine` (all events).

mod audit;
mod choice;
mod cycle;
pub mod estimate;
mod load;
mod machine;
mod queue;
mod rules;
mod running;
mod task;
mod waiting;

pub use choice::Policy;
pub use load::Load;
pub use machine::{Classes, LowerError};
pub use rules::{Class, Limit, Rules, RulesError};
pub use task::{Decision, Denial, Resumed, RunRequest, TaskKind, Ticket};
pub use waiting::{QueueForecast, Waiting};

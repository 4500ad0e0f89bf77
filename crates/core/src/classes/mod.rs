//! Duration classes: who may run how long, who must yield, who goes next.
//!
//! [`Classes`] is the whole behaviour: events go in (a task arrives, ends, loses its backend), and
//! [`Decision`]s come out. It knows no backend by name: one of the free ones takes what starts.
//!
//! Start reading at `rules` (what an operator sets), then `cycle` (how the next one is found), then
//! `machine` (everything that can happen).

mod audit;
mod choice;
mod cycle;
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
pub use task::{Ask, Decision, Denial, Kind, Resumed, Ticket};
pub use waiting::{Outlook, Waiting};

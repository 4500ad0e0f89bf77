//! When a task runs, and runs again: plan, repeat, drift, pause, cron.
//!
//! Everything here is a function of its arguments. What a clock on a wall shows is asked of a [`Zone`], so the
//! rules need no table of time zones.

mod civil;
mod cron;
mod group;
mod interval;
mod repeat;

pub use civil::{Moments, Utc, Zone, moments_of};
pub use cron::{Cron, CronError};
pub use group::{Reuse, Worker, allowance, pause_until};
pub use interval::Interval;
pub use repeat::{backoff, is_active, next_on_grid, next_plan, next_plan_after};

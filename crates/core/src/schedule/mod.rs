//! The times at which a task runs: plan, repeat, drift, pause, cron; and the
//! rules of schedules.
//!
//! Everything here is a function of its arguments. Local time comes from a [`Zone`], so the
//! rules need no table of time zones.

mod civil;
mod cron;
mod group;
mod interval;
mod repeat;
mod timing;

pub use civil::{Moments, SharedZone, Utc, Zone, Zones, moments_of};
pub use cron::{Cron, CronError};
pub use group::{Reuse, Worker, allowance, pause_until};
pub use interval::Interval;
pub use repeat::{backoff, is_active, next_on_grid, next_plan, next_plan_after};
pub use timing::{Firing, Timing, TimingError, TimingRule};

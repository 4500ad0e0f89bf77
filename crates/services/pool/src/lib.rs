//! Duration classes at work: clients bring files, a program runs on them, the results go back.
//!
//! Three parts: the [`gateway`] speaks to clients, the [`scheduler`] asks `core::classes` who runs
//! and tells everybody how long they wait, [`backend`]s run programs. It decides nothing itself:
//! who starts, who is lowered and who is halted comes from the core alone.
//!
//! Start reading at `protocol` (what is said), then `pool` (how the parts are put together), then
//! `gateway::visit` (the way of one client from its first word to the last).

pub mod backend;
pub mod config;
pub mod gateway;
pub mod pool;
pub mod protocol;
pub mod redis;
pub mod scheduler;

mod clock;
mod local;
mod service;
mod units;

pub use config::{Config, ConfigError, Program};
pub use pool::Pool;

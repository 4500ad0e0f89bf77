//! Runs programs for clients, scheduled by duration class: the gateway, the scheduler and the backends.
//!
//! Clients send files, a program runs on them, and its output and result go back to the client. The [`gateway`]
//! accepts clients, the [`scheduler`] applies the rules of `core::classes` and publishes estimates, and [`backend`]s
//! run programs in sandboxes. This crate has no scheduling rules of its own: which task starts, is lowered or is
//! halted is decided by the core.
//!
//! Start reading at `protocol` (the frames), then `pool` (how the parts are assembled), then `gateway::client_task`
//! (one task from submission to its last frame). `redis` distributes the three parts over machines.
pub mod backend;
pub mod config;
#[cfg(feature = "testing")]
pub mod frame_check;
pub mod gateway;
pub mod pool;
pub mod protocol;
pub mod redis;
pub mod scheduler;

mod clock;
mod local_pool;
mod service;
mod units;

pub use config::{Config, ConfigError, Program};
pub use pool::Pool;

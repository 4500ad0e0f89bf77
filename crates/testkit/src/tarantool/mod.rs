//! Tarantool servers, and parts of them for each test.

mod fixture;
mod instance;

pub use fixture::*;
pub use instance::*;

pub use crate::ports::free_port;

/// A stand-in for the module tarantool/queue, for tests of the adapter to existing queues.
pub const QUEUE_MODULE: &str = include_str!("queue.lua");

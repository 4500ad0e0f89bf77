//! Tarantool servers, and parts of them for each test.

mod fixture;
mod instance;
mod queue;

pub use fixture::*;
pub use instance::*;

pub use crate::ports::free_port;

//! Redis servers and clusters, and parts of them for each test.

mod fixture;
mod instance;

pub use fixture::*;
pub use instance::*;

pub use crate::ports::free_port;

//! What semaphores must do on every store, and through every server.
//!
//! The list of cases stands once, in [`semaphore_suite!`](crate::semaphore_suite); [`model`] compares random
//! commands with the core's machine.

mod ask;
mod cases;
mod script;

pub mod admission;
pub mod audit;
pub mod events;
pub mod eviction;
pub mod gates;
pub mod input;
pub mod model;
pub mod pair;
pub mod pairs;
pub mod storm;
pub mod times;

pub use ask::SemaphoreAsk;

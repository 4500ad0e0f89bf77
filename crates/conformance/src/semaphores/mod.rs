//! The conformance cases of semaphores, for every store and every server.
//!
//! [`semaphore_suite!`](crate::semaphore_suite) lists the cases; [`model`] compares random commands with the core's
//! machine.

mod cases;
mod commands;
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

pub use commands::SemaphoreCommands;

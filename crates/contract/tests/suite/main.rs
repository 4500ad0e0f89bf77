//! Contracts: what is one, what follows from it, and the bytes of its tasks.

mod evolution;
mod generated;
mod python;
mod valid;
mod vectors;

/// The contract of the documents.
pub const REFERENCE: &str = include_str!("../reference.yaml");

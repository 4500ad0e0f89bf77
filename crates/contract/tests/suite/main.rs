//! Contracts: validation, evolution, generated code, and the encoding of tasks.

mod evolution;
mod generated;
mod python;
#[path = "../../../conformance/src/skipped.rs"]
mod skipped;
mod valid;
mod vectors;

/// The contract in the documentation.
pub const REFERENCE: &str = include_str!("../reference.yaml");

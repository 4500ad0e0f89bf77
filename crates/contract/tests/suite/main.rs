//! Contracts: validation, evolution, generated code, and the encoding of tasks.

mod evolution;
mod generated;
mod python;
#[expect(dead_code, reason = "the fixtures of other crates use all of it")]
#[path = "../../../conformance/src/skipped.rs"]
mod skipped;
mod valid;
mod vectors;

/// The contract in the documentation.
pub const REFERENCE: &str = include_str!("../reference.yaml");

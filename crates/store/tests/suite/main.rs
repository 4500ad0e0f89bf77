//! Tests the memory store, and stores with known faults that the conformance suite must detect.

mod copying;
mod fill;
mod memory;

// Tests of the suite itself.
mod durable;
mod faulty;

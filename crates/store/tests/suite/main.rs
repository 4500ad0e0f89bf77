//! The memory store, and stores with known faults that the conformance suite must find.

mod fill;
mod memory;

// That the suite itself finds faults.
mod durable;
mod faulty;

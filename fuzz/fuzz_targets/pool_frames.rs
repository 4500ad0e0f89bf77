//! Any frames of a pool's client.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run pool_frames`.

#![no_main]

#[path = "../checks/pool_frames.rs"]
mod pool_frames;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| pool_frames::check(text));

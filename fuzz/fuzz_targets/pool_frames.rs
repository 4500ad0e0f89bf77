//! Checks arbitrary frames of a client of the pool.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run pool_frames`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_pool::frame_check;

fuzz_target!(|text: &str| frame_check::check(text));

//! Reads arbitrary bytes as a trace, with and without a valid header and checksums, and replays what can be read: by tubes, and in
//! a pool with duration classes.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run trace`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_trace::{ReadLimits, Scenario, TraceWriter, read, replay};

/// Separates blocks in the input.
const SEPARATOR: u8 = 0xff;

fuzz_target!(|bytes: &[u8]| {
    let limits = ReadLimits { tasks: 1_000, tubes: 100 };
    _ = read(bytes, limits, |_| ());
    let mut writer = TraceWriter::in_memory(0);
    for block in bytes.split(|byte| *byte == SEPARATOR).filter(|block| !block.is_empty()) {
        writer.append_encoded(block);
    }
    if let Ok(trace) = read(&writer.into_bytes()[..], limits, |_| ()) {
        _ = replay(&trace, &Scenario::default(), |_| ());
        let classes = Some(Default::default());
        _ = replay(&trace, &Scenario { classes, ..Scenario::default() }, |_| ());
    }
});

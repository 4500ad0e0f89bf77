//! Reads arbitrary bytes as a trace, with and without a valid header and checksum, and replays what can be read.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run trace`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_trace::{ReadLimits, Scenario, TraceWriter, read, replay};

fuzz_target!(|bytes: &[u8]| {
    let limits = ReadLimits { tasks: 1_000, tubes: 100 };
    _ = read(bytes, limits, |_| ());
    let mut writer = TraceWriter::in_memory(0);
    writer.append_encoded(bytes);
    if let Ok(trace) = read(&writer.into_bytes()[..], limits, |_| ()) {
        _ = replay(&trace, &Scenario::default(), |_| ());
    }
});

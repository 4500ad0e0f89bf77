//! Decodes arbitrary bytes as the greeting and the replies of an iproto server.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run iproto_replies`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_iproto::procedures::{decode_batch, decode_value};
use taskyard_iproto::{Greeting, decode_executed, next_frame, parse_reply};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    if let Some((first, others)) = bytes.split_first_chunk::<128>() {
        if let Ok(greeting) = Greeting::parse(first) {
            let _ = greeting.encode();
            rest = others;
        }
    }
    while let Ok(Some(frame)) = next_frame(rest, 1 << 20) {
        read(frame.body);
        rest = &rest[frame.consumed..];
    }
    // Without a length, so that not every attempt has to guess one.
    read(bytes);
});

fn read(body: &[u8]) {
    let Ok(reply) = parse_reply(body) else { return };
    assert_eq!(reply.fault().is_some(), reply.is_error());
    let _ = reply.data.map(decode_executed);
    let _ = reply.data.map(decode_batch);
    let _ = reply.data.map(decode_value);
}

//! Decodes arbitrary bytes as commands and replies: decoded ones survive encoding.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run iproto_native`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_iproto::{decode_commands, decode_replies, encode_commands, encode_replies};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(commands) = decode_commands(bytes) {
        let mut again = Vec::new();
        encode_commands(&mut again, &commands);
        assert_eq!(decode_commands(&again), Ok(commands));
    }
    if let Ok(replies) = decode_replies(bytes) {
        let mut again = Vec::new();
        encode_replies(&mut again, &replies);
        assert_eq!(decode_replies(&again), Ok(replies));
    }
});

//! Converts arbitrary JSON to MessagePack and back: the same texts are valid as for the parser, and the meaning is kept.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run json`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use taskyard_iproto::{MsgpackError, check_msgpack};
use taskyard_wire::{PayloadError, json_to_msgpack, msgpack_to_json};

fuzz_target!(|text: &str| {
    let parsed: Result<Value, _> = serde_json::from_str(text);
    match json_to_msgpack(text) {
        Ok(packed) => {
            check_msgpack(&packed).expect("what we write is well-formed");
            let json = msgpack_to_json(&packed).expect("what came from JSON can go back");
            assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), parsed.unwrap());
            assert_eq!(json_to_msgpack(&json).unwrap(), packed);
        }
        Err(PayloadError::IntegerTooLarge(_) | PayloadError::Msgpack(MsgpackError::TooDeep)) => {}
        Err(error) => assert!(parsed.is_err(), "refused valid JSON: {error}"),
    }
});

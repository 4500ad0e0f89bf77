//! Checks arbitrary bytes as MessagePack: both validators agree, and values that JSON can represent survive the conversion.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run msgpack`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_iproto::check_msgpack;
use taskyard_wire::{PayloadError, json_to_msgpack, msgpack_to_json};

fuzz_target!(|bytes: &[u8]| {
    let checked = check_msgpack(bytes);
    match msgpack_to_json(bytes) {
        Ok(json) => {
            assert_eq!(checked, Ok(()));
            let again = json_to_msgpack(&json).expect("what we write is JSON");
            assert_eq!(msgpack_to_json(&again).unwrap(), json);
        }
        Err(PayloadError::NotRepresentable(_)) => assert_eq!(checked, Ok(())),
        Err(why) => assert_eq!(checked.map_err(PayloadError::from), Err(why)),
    }
});

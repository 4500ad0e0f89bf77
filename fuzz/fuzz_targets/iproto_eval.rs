//! Any text as an expression: understood or refused.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run iproto_eval`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_wire::iproto::{EvalAsk, parse_eval};
use taskyard_wire::json_to_msgpack;

fuzz_target!(|expression: &str| {
    let args = json_to_msgpack(r#"["t", "fifottl", {"ttl": 1.5}]"#).expect("good JSON");
    let Ok(eval) = parse_eval("queue", expression, &args) else { return };
    if let EvalAsk::OnVariable { args, .. } = eval.ask {
        assert_eq!(args[0] & 0x90, 0x90, "arguments are a list");
    }
});

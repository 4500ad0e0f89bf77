//! Parses arbitrary text as a Lua expression: accepted or refused, no panic.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run iproto_eval`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_core::SessionId;
use taskyard_iproto::{CallContext, EvalAction, parse_eval};
use taskyard_wire::json_to_msgpack;

fuzz_target!(|expression: &str| {
    let args = json_to_msgpack(r#"["t", "fifottl", {"ttl": 1.5}]"#).expect("good JSON");
    let context = CallContext { prefix: "queue", session: SessionId([0; 16]) };
    let Ok(eval) = parse_eval(context, expression, &args) else { return };
    if let EvalAction::OnVariable { args, .. } = eval.action {
        assert_eq!(args[0] & 0x90, 0x90, "arguments are a list");
    }
});

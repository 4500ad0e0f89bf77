//! Bytes and arguments in a readable form.

use taskyard_core::SessionId;
use taskyard_iproto::CallContext;
use taskyard_wire::json_to_msgpack;

/// The session of the connection that calls.
pub const SESSION: SessionId = SessionId([7; 16]);
/// Calls of a queue with the default name.
pub const QUEUE: CallContext<'_> = CallContext { prefix: "queue", session: SESSION };

/// The bytes of hexadecimal digits; words in quotes are literal, blanks and `|` are ignored.
pub fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (place, part) in text.split('"').enumerate() {
        if place % 2 == 1 {
            bytes.extend_from_slice(part.as_bytes());
            continue;
        }
        let digits: Vec<u32> = part
            .chars()
            .filter(|c| !" |\n".contains(*c))
            .map(|c| c.to_digit(16).unwrap())
            .collect();
        assert!(digits.len().is_multiple_of(2), "half a byte in {part:?}");
        bytes.extend(digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8));
    }
    bytes
}

/// Arguments written as JSON.
pub fn args(json: &str) -> Vec<u8> {
    json_to_msgpack(json).unwrap()
}

//! Where one message ends and the next begins.

use super::reader::{Reader, Value};
use super::reply::Fault;

/// One whole message at the start of the bytes that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Header and body, without the length before them.
    pub body: &'a [u8],
    /// How many bytes the message takes with its length.
    pub consumed: usize,
}

/// Why the bytes cannot be cut into messages any more. Answer the fault with sync 0 and close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// What should be a length is none.
    #[error("Invalid MsgPack - packet length")]
    Length,
    /// The length is more than we accept.
    #[error("Invalid MsgPack - packet length: {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// How long the message says it is.
        bytes: u64,
        /// How long it may be.
        limit: usize,
    },
}

impl BadFrame {
    /// What to tell the client before closing.
    pub fn fault(&self) -> Fault {
        Fault::new(20, self.to_string())
    }
}

/// The next whole message at the start of `bytes`; `None` when more bytes are needed. A message
/// longer than `limit` is refused as soon as its length is there.
pub fn next_frame(bytes: &[u8], limit: usize) -> Result<Option<Frame<'_>>, BadFrame> {
    let Some(length_bytes) = length_bytes(bytes)? else { return Ok(None) };
    let Some(head) = bytes.get(..length_bytes) else { return Ok(None) };
    let Ok(Value::Uint(length)) = Reader::new(head).value() else { return Err(BadFrame::Length) };
    let too_large = BadFrame::TooLarge { bytes: length, limit };
    let length = usize::try_from(length).map_err(|_| too_large)?;
    if length > limit {
        return Err(too_large);
    }
    let Some(body) = bytes[length_bytes..].get(..length) else { return Ok(None) };
    Ok(Some(Frame { body, consumed: length_bytes + length }))
}

/// How many bytes the length itself takes.
fn length_bytes(bytes: &[u8]) -> Result<Option<usize>, BadFrame> {
    let Some(first) = bytes.first() else { return Ok(None) };
    match first {
        0x00..=0x7f => Ok(Some(1)),
        0xcc | 0xd0 => Ok(Some(2)),
        0xcd | 0xd1 => Ok(Some(3)),
        0xce | 0xd2 => Ok(Some(5)),
        0xcf | 0xd3 => Ok(Some(9)),
        _ => Err(BadFrame::Length),
    }
}

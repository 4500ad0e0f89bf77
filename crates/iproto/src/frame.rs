//! Splits a stream of bytes into frames.

use super::reader::{Value, ValueReader};
use super::reply::Fault;

/// One whole frame at the start of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Header and body, without the length before them.
    pub body: &'a [u8],
    /// The length of the frame with its length prefix.
    pub consumed: usize,
}

/// Why the bytes cannot be split into frames. The server answers the fault with sync 0 and closes
/// the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The length prefix is not an integer.
    #[error("Invalid MsgPack - packet length")]
    Length,
    /// The length exceeds the limit.
    #[error("Invalid MsgPack - packet length: {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// The length that the frame announces.
        bytes: u64,
        /// The limit.
        limit: usize,
    },
}

impl BadFrame {
    /// The fault to send before closing.
    pub fn fault(&self) -> Fault {
        Fault::new(20, self.to_string())
    }
}

/// The next whole frame at the start of `bytes`; `None` if more bytes are needed. A frame longer
/// than `limit` is refused as soon as its length is known.
pub fn next_frame(bytes: &[u8], limit: usize) -> Result<Option<Frame<'_>>, BadFrame> {
    let Some(length_bytes) = length_bytes(bytes)? else { return Ok(None) };
    let Some(head) = bytes.get(..length_bytes) else { return Ok(None) };
    let Ok(Value::Uint(length)) = ValueReader::new(head).value() else {
        return Err(BadFrame::Length);
    };
    let too_large = BadFrame::TooLarge { bytes: length, limit };
    let length = usize::try_from(length).map_err(|_| too_large)?;
    if length > limit {
        return Err(too_large);
    }
    let Some(body) = bytes[length_bytes..].get(..length) else { return Ok(None) };
    Ok(Some(Frame { body, consumed: length_bytes + length }))
}

/// The size of the length prefix.
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

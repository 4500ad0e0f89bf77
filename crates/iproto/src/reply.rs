//! Replies of a server: the frame around every reply, and its parser.

use std::borrow::Cow;
use std::fmt::Display;

use super::IprotoError;
use super::pack::{self, Out};
use super::reader::{Malformed, ValueReader};

/// The schema version. It never changes; otherwise clients would read the schema again and again.
const SCHEMA_VERSION: u32 = 1;
/// The five bytes of a reply's length and the 23 of its header.
const HEAD_BYTES: usize = 28;
const LENGTH_BYTES: usize = 5;

/// Keys of bodies.
pub(super) const DATA: u8 = 0x30;
const ERROR_24: u8 = 0x31;
const ERROR: u8 = 0x52;

/// The code of Lua errors, whose type clients know by another name.
const LUA_ERROR: u32 = 32;
/// Set in the code of a reply that is an error.
const ERROR_BIT: u32 = 0x8000;

/// How the results of a call are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The results in a list.
    Call,
    /// As version 1.6 did: each result is a list in a list.
    Call16,
}

/// An error as the protocol sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Tarantool's code for this kind of error.
    pub code: u32,
    /// What went wrong.
    pub text: Cow<'static, str>,
}

impl Fault {
    /// An error with this number and text.
    pub fn new(code: u32, text: impl Into<Cow<'static, str>>) -> Self {
        Fault { code, text: text.into() }
    }

    /// The same error with the reason for it.
    #[must_use]
    pub fn because(self, why: &impl Display) -> Self {
        Fault { text: format!("{}; {why}", self.text).into(), ..self }
    }
}

/// Writes a reply; `body` writes the whole value of the data, a list.
pub fn write_ok(out: &mut Vec<u8>, sync: u64, body: impl FnOnce(&mut Vec<u8>)) {
    frame(out, 0, sync, |out| {
        out.extend_from_slice(&[0x81, DATA]);
        body(out);
    });
}

/// Writes a reply without data, such as that to a ping.
pub fn write_empty(out: &mut Vec<u8>, sync: u64) {
    frame(out, 0, sync, |out| pack::map(out, 0));
}

/// Writes an error, in the old form and in the new one.
pub fn write_fault(out: &mut Vec<u8>, sync: u64, fault: &Fault) {
    frame(out, ERROR_BIT | fault.code, sync, |out| {
        out.extend_from_slice(&[0x82, ERROR_24]);
        pack::str(out, &fault.text);
        // A map with one list of errors, each a map.
        out.extend_from_slice(&[ERROR, 0x81, 0x00, 0x91, 0x86, 0x00]);
        pack::str(out, if fault.code == LUA_ERROR { "LuajitError" } else { "ClientError" });
        out.push(0x01);
        pack::str(out, "taskyard");
        out.extend_from_slice(&[0x02, 0x00, 0x03]);
        pack::str(out, &fault.text);
        out.extend_from_slice(&[0x04, 0x00, 0x05]);
        pack::uint(out, fault.code.into());
    });
}

/// Writes the reply to ID: the protocol version and features. All tested clients work without
/// optional features.
pub fn write_id(out: &mut Vec<u8>, sync: u64) {
    frame(out, 0, sync, |out| {
        out.extend_from_slice(&[0x83, 0x54, 0x04, 0x55, 0x90, 0x5b]);
        pack::str(out, "chap-sha1");
    });
}

/// Writes the length, the fixed header and a body.
fn frame(out: &mut Out, code: u32, sync: u64, body: impl FnOnce(&mut Out)) {
    let start = out.len();
    let mut head = [0; HEAD_BYTES];
    head[0] = 0xce;
    head[LENGTH_BYTES..LENGTH_BYTES + 3].copy_from_slice(&[0x83, 0x00, 0xce]);
    head[8..12].copy_from_slice(&code.to_be_bytes());
    head[12..14].copy_from_slice(&[0x01, 0xcf]);
    head[14..22].copy_from_slice(&sync.to_be_bytes());
    head[22..24].copy_from_slice(&[0x05, 0xce]);
    head[24..28].copy_from_slice(&SCHEMA_VERSION.to_be_bytes());
    out.extend_from_slice(&head);
    body(out);
    let length = (out.len() - start - LENGTH_BYTES) as u32;
    out[start + 1..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
}

/// A reply as a client parses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyFrame<'a> {
    /// The number of the request.
    pub sync: u64,
    /// Zero, or the code of the error if [`ReplyFrame::is_error`].
    pub code: u32,
    /// The data, a MessagePack list, if there is one.
    pub data: Option<&'a [u8]>,
    /// The text of an error.
    pub error: Option<&'a str>,
}

impl ReplyFrame<'_> {
    /// Whether the request was refused.
    pub fn is_error(&self) -> bool {
        self.code & ERROR_BIT != 0
    }

    /// The error, if it is one.
    pub fn fault(&self) -> Option<Fault> {
        let text = self.error.unwrap_or("no text").to_string();
        self.is_error().then(|| Fault::new(self.code & !ERROR_BIT, text))
    }
}

/// Parses a reply from the body of a frame.
pub fn parse_reply(frame: &[u8]) -> Result<ReplyFrame<'_>, IprotoError> {
    let mut reply = ReplyFrame { sync: 0, code: 0, data: None, error: None };
    let mut reader = ValueReader::new(frame);
    read_header(&mut reader, &mut reply).map_err(|_| IprotoError::Malformed("header"))?;
    read_body(&mut reader, &mut reply).map_err(|_| IprotoError::Malformed("body"))?;
    Ok(reply)
}

fn read_header(reader: &mut ValueReader<'_>, reply: &mut ReplyFrame<'_>) -> Result<(), Malformed> {
    for _ in 0..reader.map()? {
        match reader.uint()? {
            0x00 => reply.code = u32::try_from(reader.uint()?).map_err(|_| Malformed)?,
            0x01 => reply.sync = reader.uint()?,
            _ => reader.skip()?,
        }
    }
    Ok(())
}

fn read_body<'a>(
    reader: &mut ValueReader<'a>,
    reply: &mut ReplyFrame<'a>,
) -> Result<(), Malformed> {
    if reader.is_empty() {
        return Ok(());
    }
    for _ in 0..reader.map()? {
        match reader.uint()? {
            0x30 => reply.data = Some(reader.raw()?),
            0x31 => {
                let text = std::str::from_utf8(reader.bytes()?);
                reply.error = Some(text.map_err(|_| Malformed)?);
            }
            _ => reader.skip()?,
        }
    }
    if reader.is_empty() { Ok(()) } else { Err(Malformed) }
}

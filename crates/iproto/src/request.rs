//! Requests of a client: the frame around every request, and its parser.

use super::faults::shortened;
use super::pack::{self, Out};
use super::reader::{Malformed, ValueReader};
use super::reply::{Fault, Shape};

/// An empty list: the arguments of a call without any.
const EMPTY_LIST: &[u8] = &[0x90];

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The number that the client chose; the reply repeats it. May be zero, may repeat.
    pub sync: u64,
    /// The operation.
    pub operation: Operation<'a>,
}

/// What a client can request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Asks whether the server answers.
    Ping,
    /// Asks for the protocol version and features of the server.
    Id {
        /// The client's version of the protocol.
        version: u64,
        /// The optional features of the client.
        features: Vec<u64>,
    },
    /// Authenticates a user.
    Auth {
        /// The name of the user.
        user: &'a str,
        /// The proof of the password; `None` if no password was given.
        scramble: Option<[u8; 20]>,
    },
    /// Reads rows of a space.
    Select {
        /// Which space.
        space: u64,
        /// Which index of it.
        index: u64,
        /// At most how many rows.
        limit: u64,
        /// How many rows to skip first.
        offset: u64,
        /// The iterator type: 0 is equal, 2 is all.
        iterator: u64,
        /// The key, a MessagePack list.
        key: &'a [u8],
    },
    /// Calls a function.
    Call {
        /// Its name.
        name: &'a str,
        /// Its arguments, a MessagePack list.
        args: &'a [u8],
        /// How the results are laid out.
        shape: Shape,
    },
    /// Runs an expression.
    Eval {
        /// The expression.
        expression: &'a str,
        /// Its arguments, a MessagePack list.
        args: &'a [u8],
    },
    /// Subscribes to changes of a key.
    Watch {
        /// The key.
        key: &'a str,
    },
    /// Ends the subscription to a key.
    Unwatch {
        /// The key.
        key: &'a str,
    },
    /// A type of request that is not served.
    Other(u64),
}

/// A request that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRequest {
    /// The number that the client chose, or zero if it could not be read.
    pub sync: u64,
    /// The error to send.
    pub fault: Fault,
    /// Whether not even the header can be read: the bytes are of another protocol, perhaps from a
    /// page in a browser, and nothing after them may be parsed as a request. After any other bad
    /// request the connection continues, as with Tarantool.
    pub broken: bool,
}

/// Parses a request from the body of a frame: keys in any order, integers of any width, unknown
/// keys skipped.
pub fn parse_request(frame: &[u8]) -> Result<Request<'_>, BadRequest> {
    let mut reader = ValueReader::new(frame);
    let header = Header::read(&mut reader).map_err(|_| {
        let fault = invalid("packet header");
        BadRequest { sync: 0, fault, broken: true }
    })?;
    let Header { kind, sync } = header;
    if !SERVED.contains(&kind) {
        // The expected content of its body is not known either.
        return Ok(Request { sync, operation: Operation::Other(kind) });
    }
    let bad = |fault| BadRequest { sync, fault, broken: false };
    let fields = Fields::read(&mut reader).map_err(|_| bad(invalid("packet body")))?;
    Ok(Request { sync, operation: fields.operation(kind).map_err(bad)? })
}

/// The types of requests that are served.
const SERVED: [u64; 9] = [1, 6, 7, 8, 10, 64, 73, 74, 75];

/// The error for malformed bytes.
fn invalid(what: &str) -> Fault {
    Fault::new(20, format!("Invalid MsgPack - {what}"))
}

#[derive(Default)]
struct Header {
    /// The type of the request; without one it is type 0, which is not served.
    kind: u64,
    sync: u64,
}

impl Header {
    fn read(reader: &mut ValueReader<'_>) -> Result<Header, Malformed> {
        let mut header = Header::default();
        for _ in 0..reader.map()? {
            match reader.uint()? {
                0x00 => header.kind = reader.uint()?,
                0x01 => header.sync = reader.uint()?,
                _ => reader.skip()?,
            }
        }
        Ok(header)
    }
}

/// The fields that the body of any request may have.
struct Fields<'a> {
    space: u64,
    index: u64,
    limit: u64,
    offset: u64,
    iterator: u64,
    key: &'a [u8],
    tuple: &'a [u8],
    function: Option<&'a [u8]>,
    user: Option<&'a [u8]>,
    expression: Option<&'a [u8]>,
    version: u64,
    features: &'a [u8],
    watched: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    fn read(reader: &mut ValueReader<'a>) -> Result<Fields<'a>, Malformed> {
        let mut fields = Fields {
            space: 0,
            index: 0,
            limit: u64::MAX,
            offset: 0,
            iterator: 0,
            key: EMPTY_LIST,
            tuple: EMPTY_LIST,
            function: None,
            user: None,
            expression: None,
            version: 0,
            features: EMPTY_LIST,
            watched: None,
        };
        if reader.is_empty() {
            return Ok(fields);
        }
        for _ in 0..reader.map()? {
            fields.read_one(reader)?;
        }
        if reader.is_empty() { Ok(fields) } else { Err(Malformed) }
    }

    fn read_one(&mut self, reader: &mut ValueReader<'a>) -> Result<(), Malformed> {
        match reader.uint()? {
            0x10 => self.space = reader.uint()?,
            0x11 => self.index = reader.uint()?,
            0x12 => self.limit = reader.uint()?,
            0x13 => self.offset = reader.uint()?,
            0x14 => self.iterator = reader.uint()?,
            0x20 => self.key = list(reader)?,
            0x21 => self.tuple = list(reader)?,
            0x22 => self.function = Some(reader.bytes()?),
            0x23 => self.user = Some(reader.bytes()?),
            0x27 => self.expression = Some(reader.bytes()?),
            0x54 => self.version = reader.uint()?,
            0x55 => self.features = list(reader)?,
            0x57 => self.watched = Some(reader.bytes()?),
            _ => reader.skip()?,
        }
        Ok(())
    }

    fn operation(self, kind: u64) -> Result<Operation<'a>, Fault> {
        Ok(match kind {
            6 => self.call(Shape::Call16)?,
            10 => self.call(Shape::Call)?,
            64 => Operation::Ping,
            1 => Operation::Select {
                space: self.space,
                index: self.index,
                limit: self.limit,
                offset: self.offset,
                iterator: self.iterator,
                key: self.key,
            },
            7 => Operation::Auth {
                user: text(self.user, "user name")?,
                scramble: read_scramble(self.tuple)?,
            },
            8 => Operation::Eval {
                expression: text(self.expression, "expression")?,
                args: self.tuple,
            },
            73 => Operation::Id { version: self.version, features: read_features(self.features) },
            74 => Operation::Watch { key: text(self.watched, "event key")? },
            75 => Operation::Unwatch { key: text(self.watched, "event key")? },
            other => Operation::Other(other),
        })
    }

    fn call(&self, shape: Shape) -> Result<Operation<'a>, Fault> {
        let name = text(self.function, "function name")?;
        Ok(Operation::Call { name, args: self.tuple, shape })
    }
}

/// A value that must be a list, as bytes.
fn list<'a>(reader: &mut ValueReader<'a>) -> Result<&'a [u8], Malformed> {
    ValueReader::new(reader.rest()).array()?;
    reader.raw()
}

fn text<'a>(field: Option<&'a [u8]>, name: &str) -> Result<&'a str, Fault> {
    let missing = || Fault::new(69, format!("Missing mandatory field '{name}' in request"));
    let bytes = field.ok_or_else(missing)?;
    std::str::from_utf8(bytes).map_err(|_| invalid(&format!("{name} is not UTF-8")))
}

/// The proof of a password: a method and 20 bytes, or nothing.
fn read_scramble(tuple: &[u8]) -> Result<Option<[u8; 20]>, Fault> {
    let broken = |_| invalid("authentication request body");
    let mut reader = ValueReader::new(tuple);
    match reader.array().map_err(broken)? {
        0 => Ok(None),
        1 => Err(invalid("authentication request body")),
        _ => {
            let method = reader.bytes().map_err(broken)?;
            if method != b"chap-sha1" {
                let method = String::from_utf8_lossy(method);
                let method = shortened(&method);
                let text = format!("Authentication method '{method}' is unknown; use chap-sha1");
                return Err(Fault::new(32, text));
            }
            let bytes = reader.bytes().map_err(broken)?;
            let scramble = bytes.try_into().map_err(|_| invalid("invalid scramble size"))?;
            Ok(Some(scramble))
        }
    }
}

/// The numbers in the list; other values are ignored.
fn read_features(list: &[u8]) -> Vec<u64> {
    let mut reader = ValueReader::new(list);
    let count = reader.array().unwrap_or_default();
    (0..count.min(64)).map_while(|_| reader.uint().ok()).collect()
}

/// Writes a request.
pub fn encode_request(out: &mut Vec<u8>, sync: u64, operation: &Operation<'_>) {
    frame(out, kind_of(operation), sync, |out| encode_body(out, operation));
}

/// Writes a call whose arguments, a list, are written by `args`.
pub(super) fn write_call(out: &mut Out, sync: u64, name: &str, args: impl FnOnce(&mut Out)) {
    frame(out, 10, sync, |out| {
        key_and_text(out, 0x82, 0x22, name);
        out.push(0x21);
        args(out);
    });
}

fn frame(out: &mut Out, kind: u64, sync: u64, body: impl FnOnce(&mut Out)) {
    let start = out.len();
    out.extend_from_slice(&[0xce, 0, 0, 0, 0, 0x82, 0x00]);
    pack::uint(out, kind);
    out.push(0x01);
    pack::uint(out, sync);
    body(out);
    let length = (out.len() - start - 5) as u32;
    out[start + 1..start + 5].copy_from_slice(&length.to_be_bytes());
}

const fn kind_of(operation: &Operation<'_>) -> u64 {
    match operation {
        Operation::Ping => 64,
        Operation::Id { .. } => 73,
        Operation::Auth { .. } => 7,
        Operation::Select { .. } => 1,
        Operation::Call { shape: Shape::Call, .. } => 10,
        Operation::Call { shape: Shape::Call16, .. } => 6,
        Operation::Eval { .. } => 8,
        Operation::Watch { .. } => 74,
        Operation::Unwatch { .. } => 75,
        Operation::Other(kind) => *kind,
    }
}

fn encode_body(out: &mut Out, operation: &Operation<'_>) {
    match operation {
        Operation::Ping | Operation::Other(_) => pack::map(out, 0),
        Operation::Id { version, features } => {
            out.extend_from_slice(&[0x82, 0x54]);
            pack::uint(out, *version);
            out.push(0x55);
            pack::array(out, features.len());
            features.iter().for_each(|feature| pack::uint(out, *feature));
        }
        Operation::Auth { user, scramble } => {
            key_and_text(out, 0x82, 0x23, user);
            out.push(0x21);
            pack::array(out, if scramble.is_some() { 2 } else { 0 });
            if let Some(scramble) = scramble {
                pack::str(out, "chap-sha1");
                pack::bin(out, scramble);
            }
        }
        Operation::Select { space, index, limit, offset, iterator, key } => {
            pack::map(out, 6);
            let numbers = [space, index, limit, offset, iterator];
            for (place, number) in (0x10..).zip(numbers) {
                out.push(place);
                pack::uint(out, *number);
            }
            out.push(0x20);
            out.extend_from_slice(key);
        }
        Operation::Call { name: text, args, .. } | Operation::Eval { expression: text, args } => {
            let key = if matches!(operation, Operation::Eval { .. }) { 0x27 } else { 0x22 };
            key_and_text(out, 0x82, key, text);
            out.push(0x21);
            out.extend_from_slice(args);
        }
        Operation::Watch { key } | Operation::Unwatch { key } => {
            key_and_text(out, 0x81, 0x57, key);
        }
    }
}

fn key_and_text(out: &mut Out, map: u8, key: u8, text: &str) {
    out.extend_from_slice(&[map, key]);
    pack::str(out, text);
}

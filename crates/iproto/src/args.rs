//! Reads the arguments of a call one after the other.

use taskyard_core::{Body, Kind, Span, TaskId};

use super::faults::{lua, malformed, missing_data, missing_key, wrong_key};
use super::reader::{Value, ValueReader};
use super::reply::Fault;
use crate::msgpack::check_msgpack;

/// The arguments that are not read yet.
#[derive(Clone, Copy)]
pub(super) struct ArgumentReader<'a> {
    reader: ValueReader<'a>,
    left: u32,
}

impl<'a> ArgumentReader<'a> {
    /// The arguments in a MessagePack list.
    pub fn new(list: &'a [u8]) -> Result<Self, Fault> {
        let mut reader = ValueReader::new(list);
        let left = reader.array().map_err(|_| malformed())?;
        Ok(ArgumentReader { reader, left })
    }

    /// Whether there are no more.
    pub const fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// The bytes of the next argument; `None` when there are no more.
    pub fn raw(&mut self) -> Result<Option<&'a [u8]>, Fault> {
        if !self.advance() {
            return Ok(None);
        }
        self.reader.raw().map(Some).map_err(|_| malformed())
    }

    /// The next argument; a missing one is nil, as in Lua. For a list or map this is the header,
    /// and the content is skipped.
    pub fn value(&mut self) -> Result<Value<'a>, Fault> {
        Ok(match self.raw()? {
            Some(raw) => ValueReader::new(raw).value().map_err(|_| malformed())?,
            None => Value::Nil,
        })
    }

    /// The id of a task. `key_parts` is the number of parts of the upstream key, for the text of
    /// the error; the id is the last part. Nil differs from a missing id.
    pub fn id(&mut self, key_parts: u32) -> Result<TaskId, Fault> {
        if self.is_empty() {
            return Err(missing_key(key_parts));
        }
        task_id(&self.value()?, key_parts)
    }

    /// A number of seconds; `None` for nil.
    pub fn seconds(&mut self) -> Result<Option<Span>, Fault> {
        seconds(&self.value()?)
    }

    /// The payload of a task for a tube of this kind, byte for byte.
    pub fn body(&mut self, kind: Kind) -> Result<Body, Fault> {
        if !self.advance() {
            return Err(missing_data(kind));
        }
        let (raw, nested) = self.reader.raw_nested().map_err(|_| malformed())?;
        // Plain values have no depth; only nested values need the second check.
        if nested {
            check_msgpack(raw).map_err(|error| lua(format!("the data of a task is {error}")))?;
        }
        Ok(Body::new(raw))
    }

    /// Steps to the next argument, if there is one.
    fn advance(&mut self) -> bool {
        let more = self.left > 0;
        self.left = self.left.saturating_sub(1);
        more
    }
}

/// A list inside the arguments, of at most `limit` values.
pub(super) fn list<'a>(
    raw: &'a [u8],
    what: &str,
    limit: usize,
) -> Result<(ArgumentReader<'a>, usize), Fault> {
    let args = ArgumentReader::new(raw).map_err(|_| {
        lua(format!(
            "{what} must be a list; clients that unpack a single list want it wrapped once more"
        ))
    })?;
    let count = args.left as usize;
    if count > limit {
        return Err(lua(format!("{what} has {count} entries, the limit is {limit}; send less")));
    }
    Ok((args, count))
}

/// The id of a task, if the value is one; the key of the index has `key_parts` parts.
pub(super) fn task_id(value: &Value<'_>, key_parts: u32) -> Result<TaskId, Fault> {
    value.unsigned().map(TaskId).ok_or_else(|| wrong_key(key_parts - 1, "unsigned"))
}

/// Seconds as a span: negative is zero, more than a century is for ever. `None` for nil.
pub(super) fn seconds(value: &Value<'_>) -> Result<Option<Span>, Fault> {
    span(value).ok_or_else(|| lua(format!("attempt to compare {} with number", value.lua_type())))
}

/// Seconds of a delay, which upstream compares the other way round.
pub(super) fn delay(value: &Value<'_>) -> Result<Option<Span>, Fault> {
    span(value).ok_or_else(|| lua(format!("attempt to compare number with {}", value.lua_type())))
}

/// Seconds as a span, or nil; `None` for any other type.
fn span(value: &Value<'_>) -> Option<Option<Span>> {
    if *value == Value::Nil {
        return Some(None);
    }
    // NaN compares as neither more nor less; zero is the safe value.
    value.number().map(|seconds| Some(Span::from_secs_f64(seconds).unwrap_or_default()))
}

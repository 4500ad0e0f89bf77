//! Encodes and decodes a value as a list of its fields.

use std::fmt;
use std::sync::Arc;

use taskyard_core::{SessionId, Span, Timestamp, TubeName};

use crate::pack::{self, Out};
use crate::reader::{Malformed, Value, ValueReader};

/// Why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowError(pub &'static str);

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl From<Malformed> for RowError {
    fn from(_: Malformed) -> Self {
        RowError("a value is cut short or of another type than expected")
    }
}

pub(super) type RowResult<T> = Result<T, RowError>;

/// Writes a list of at most 15 fields; trailing nil fields are left out.
pub(super) struct RowWriter<'o> {
    out: &'o mut Out,
    start: usize,
    count: u8,
    /// The end and the number of the last field that is not nil.
    kept: (usize, u8),
}

impl<'o> RowWriter<'o> {
    pub fn begin(out: &'o mut Out) -> Self {
        let start = out.len();
        out.push(0x90);
        RowWriter { out, start, count: 0, kept: (start + 1, 0) }
    }

    /// A row that begins with the number of a variant.
    pub fn variant(out: &'o mut Out, number: u64) -> Self {
        let mut row = RowWriter::begin(out);
        row.uint(number);
        row
    }

    /// A field that `write` writes.
    pub fn field(&mut self, write: impl FnOnce(&mut Out)) -> &mut Self {
        write(self.out);
        self.count += 1;
        self.kept = (self.out.len(), self.count);
        self
    }

    /// A field that `write` writes, or nil.
    pub fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Out, T)) -> &mut Self {
        match value {
            Some(value) => self.field(|out| write(out, value)),
            None => {
                pack::nil(self.out);
                self.count += 1;
                self
            }
        }
    }

    pub fn uint(&mut self, value: u64) -> &mut Self {
        self.field(|out| pack::uint(out, value))
    }

    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.field(|out| pack::bool(out, value))
    }

    pub fn text(&mut self, value: &str) -> &mut Self {
        self.field(|out| pack::str(out, value))
    }

    pub fn tube(&mut self, tube: &TubeName) -> &mut Self {
        self.text(tube.as_str())
    }

    pub fn span(&mut self, span: Span) -> &mut Self {
        self.field(|out| write_span(out, span))
    }

    pub fn time(&mut self, time: Timestamp) -> &mut Self {
        self.field(|out| write_time(out, time))
    }

    pub fn session(&mut self, session: SessionId) -> &mut Self {
        self.field(|out| write_session(out, session))
    }

    /// A field that is a list of values.
    pub fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Out, &T)) -> &mut Self {
        self.field(|out| {
            pack::array(out, items.len());
            items.iter().for_each(|item| write(out, item));
        })
    }

    pub fn end(&mut self) {
        let (end, count) = self.kept;
        self.out.truncate(end);
        if count < 16 {
            self.out[self.start] = 0x90 | count;
        } else {
            // Only done tasks have so many fields: their bytes are moved for a header of three.
            self.out.extend_from_slice(&[0, 0]);
            self.out.copy_within(self.start + 1..end, self.start + 3);
            self.out[self.start..self.start + 3].copy_from_slice(&[0xdc, 0, count]);
        }
    }
}

pub(super) fn write_span(out: &mut Out, span: Span) {
    pack::int(out, span.as_micros());
}

pub(super) fn write_time(out: &mut Out, time: Timestamp) {
    pack::int(out, time.as_micros());
}

pub(super) fn write_session(out: &mut Out, session: SessionId) {
    pack::bin(out, &session.0);
}

/// The session in a value.
pub(super) fn session_of(value: Value<'_>) -> RowResult<SessionId> {
    // Lua does not distinguish text and bytes.
    let (Value::Bin(bytes) | Value::Str(bytes)) = value else {
        return Err(RowError("not a session"));
    };
    bytes.try_into().map(SessionId).map_err(|_| RowError("a session has 16 bytes"))
}

/// How many more items may be read.
pub(super) struct Budget(usize);

impl Budget {
    pub const fn new(items: usize) -> Self {
        Budget(items)
    }

    fn spend(&mut self, items: usize) -> RowResult<()> {
        let left = self.0.checked_sub(items);
        self.0 =
            left.ok_or(RowError("too many commands and tasks in one batch; send less at once"))?;
        Ok(())
    }
}

/// Reads a list of fields.
pub(super) struct RowReader<'r, 'a> {
    reader: &'r mut ValueReader<'a>,
    budget: &'r mut Budget,
    left: u32,
}

impl<'r, 'a> RowReader<'r, 'a> {
    pub fn begin(reader: &'r mut ValueReader<'a>, budget: &'r mut Budget) -> RowResult<Self> {
        let left = reader.array()?;
        Ok(RowReader { reader, budget, left })
    }

    /// The next field; nil when there are no more.
    pub fn value(&mut self) -> RowResult<Value<'a>> {
        if self.left == 0 {
            return Ok(Value::Nil);
        }
        self.left -= 1;
        Ok(self.reader.value()?)
    }

    pub fn uint(&mut self) -> RowResult<u64> {
        match self.value()? {
            Value::Uint(value) => Ok(value),
            _ => Err(RowError("a number is missing")),
        }
    }

    pub fn usize(&mut self) -> RowResult<usize> {
        usize::try_from(self.uint()?).map_err(|_| RowError("a number is too large"))
    }

    pub fn u32(&mut self) -> RowResult<u32> {
        u32::try_from(self.uint()?).map_err(|_| RowError("a number is too large"))
    }

    pub fn bool(&mut self) -> RowResult<bool> {
        match self.value()? {
            Value::Bool(value) => Ok(value),
            _ => Err(RowError("a yes or no is missing")),
        }
    }

    pub fn text(&mut self) -> RowResult<&'a str> {
        self.optional_text()?.ok_or(RowError("a text is missing"))
    }

    pub fn tube(&mut self) -> RowResult<TubeName> {
        TubeName::new(self.text()?).map_err(|_| RowError("not a good name for a tube"))
    }

    pub fn span(&mut self) -> RowResult<Span> {
        self.optional_span()?.ok_or(RowError("a length of time is missing"))
    }

    pub fn time(&mut self) -> RowResult<Timestamp> {
        self.optional_time()?.ok_or(RowError("a moment is missing"))
    }

    pub fn session(&mut self) -> RowResult<SessionId> {
        self.optional_session()?.ok_or(RowError("a session is missing"))
    }

    pub fn optional_uint(&mut self) -> RowResult<Option<u64>> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Uint(value) => Ok(Some(value)),
            _ => Err(RowError("not a number")),
        }
    }

    pub fn optional_text(&mut self) -> RowResult<Option<&'a str>> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Str(bytes) => {
                Ok(Some(std::str::from_utf8(bytes).map_err(|_| RowError("a text is not UTF-8"))?))
            }
            _ => Err(RowError("not a text")),
        }
    }

    pub fn optional_tube(&mut self) -> RowResult<Option<TubeName>> {
        let name = self.optional_text()?.map(TubeName::new).transpose();
        name.map_err(|_| RowError("not a good name for a tube"))
    }

    pub fn optional_key(&mut self) -> RowResult<Option<Arc<str>>> {
        Ok(self.optional_text()?.map(Arc::from))
    }

    pub fn optional_span(&mut self) -> RowResult<Option<Span>> {
        Ok(self.optional_micros()?.map(Span::from_micros))
    }

    pub fn optional_time(&mut self) -> RowResult<Option<Timestamp>> {
        Ok(self.optional_micros()?.map(Timestamp::from_micros))
    }

    pub fn optional_session(&mut self) -> RowResult<Option<SessionId>> {
        match self.value()? {
            Value::Nil => Ok(None),
            value => session_of(value).map(Some),
        }
    }

    fn optional_micros(&mut self) -> RowResult<Option<i64>> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Int(value) => Ok(Some(value)),
            Value::Uint(value) => {
                Ok(Some(i64::try_from(value).map_err(|_| RowError("a time is too large"))?))
            }
            _ => Err(RowError("not a time")),
        }
    }

    /// Two runs of bytes: the content of a list whose header was read last.
    pub fn two_runs(&mut self) -> RowResult<(&'a [u8], &'a [u8])> {
        Ok((self.reader.bytes()?, self.reader.bytes()?))
    }

    /// A field that is itself a list of fields.
    pub fn row<T>(
        &mut self,
        read: impl FnOnce(&mut RowReader<'_, 'a>) -> RowResult<T>,
    ) -> RowResult<T> {
        self.optional_row(read)?.ok_or(RowError("a list of fields is missing"))
    }

    /// A field that is itself a list of fields, or nil.
    pub fn optional_row<T>(
        &mut self,
        read: impl FnOnce(&mut RowReader<'_, 'a>) -> RowResult<T>,
    ) -> RowResult<Option<T>> {
        let left = match self.value()? {
            Value::Nil => return Ok(None),
            Value::Array(count) => count,
            _ => return Err(RowError("not a list of fields")),
        };
        let mut row = RowReader { reader: self.reader, budget: self.budget, left };
        let value = read(&mut row)?;
        row.skip_rest()?;
        Ok(Some(value))
    }

    /// A field that is a list of values, each a list of fields.
    pub fn rows<T>(
        &mut self,
        read: impl FnMut(&mut RowReader<'_, 'a>) -> RowResult<T>,
    ) -> RowResult<Vec<T>> {
        self.row(|list| list.all(read))
    }

    /// A field that is a list of plain values.
    pub fn values<T>(
        &mut self,
        mut read: impl FnMut(&mut RowReader<'_, 'a>) -> RowResult<T>,
    ) -> RowResult<Vec<T>> {
        self.row(|list| {
            let count = list.count()?;
            (0..count).map(|_| read(list)).collect()
        })
    }

    /// All items of this list, each a list of fields itself.
    pub fn all<T>(
        &mut self,
        mut read: impl FnMut(&mut RowReader<'_, 'a>) -> RowResult<T>,
    ) -> RowResult<Vec<T>> {
        let count = self.count()?;
        (0..count).map(|_| self.row(&mut read)).collect()
    }

    /// The number of items, if the bytes and the budget can hold them.
    pub fn count(&mut self) -> RowResult<usize> {
        let count = self.left as usize;
        if count > self.reader.rest().len() {
            return Err(RowError("a list is longer than the message"));
        }
        self.budget.spend(count)?;
        Ok(count)
    }

    /// Skips fields that a newer program has added.
    fn skip_rest(&mut self) -> RowResult<()> {
        for _ in 0..self.left {
            self.reader.skip()?;
        }
        Ok(())
    }
}

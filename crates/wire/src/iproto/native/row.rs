//! A thing as a list of its fields.

use std::fmt;
use std::sync::Arc;

use taskyard_core::{SessionId, Span, Timestamp, TubeName};

use crate::iproto::pack::{self, Out};
use crate::iproto::reader::{Malformed, Reader, Value};

/// What is wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong(pub &'static str);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl From<Malformed> for Wrong {
    fn from(_: Malformed) -> Self {
        Wrong("a value is cut short or of another type than expected")
    }
}

pub(super) type Result<T, E = Wrong> = std::result::Result<T, E>;

/// Writes a list of at most 15 fields; those at its end that are nil are left out.
pub(super) struct RowWriter<'o> {
    out: &'o mut Out,
    start: usize,
    count: u8,
    /// Where the last field ends that is not nil, and which one it is.
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

    /// A field that is a list of things.
    pub fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Out, &T)) -> &mut Self {
        self.field(|out| {
            pack::array(out, items.len());
            items.iter().for_each(|item| write(out, item));
        })
    }

    pub fn end(&mut self) {
        debug_assert!(self.count < 16, "the header has one byte");
        self.out.truncate(self.kept.0);
        self.out[self.start] = 0x90 | self.kept.1;
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

/// The session that a value names.
pub(super) fn session_of(value: Value<'_>) -> Result<SessionId> {
    // Lua knows no difference between text and bytes.
    let (Value::Bin(bytes) | Value::Str(bytes)) = value else { return Err(Wrong("not a session")) };
    bytes.try_into().map(SessionId).map_err(|_| Wrong("a session has 16 bytes"))
}

/// How many more items may be read.
pub(super) struct Budget(usize);

impl Budget {
    pub const fn new(items: usize) -> Self {
        Budget(items)
    }

    fn spend(&mut self, items: usize) -> Result<()> {
        let left = self.0.checked_sub(items);
        self.0 =
            left.ok_or(Wrong("too many commands and tasks in one batch; send less at once"))?;
        Ok(())
    }
}

/// Reads a list of fields.
pub(super) struct RowReader<'r, 'a> {
    reader: &'r mut Reader<'a>,
    budget: &'r mut Budget,
    left: u32,
}

impl<'r, 'a> RowReader<'r, 'a> {
    pub fn begin(reader: &'r mut Reader<'a>, budget: &'r mut Budget) -> Result<Self> {
        let left = reader.array()?;
        Ok(RowReader { reader, budget, left })
    }

    /// The next field; nil when there are no more.
    pub fn value(&mut self) -> Result<Value<'a>> {
        if self.left == 0 {
            return Ok(Value::Nil);
        }
        self.left -= 1;
        Ok(self.reader.value()?)
    }

    pub fn uint(&mut self) -> Result<u64> {
        match self.value()? {
            Value::Uint(value) => Ok(value),
            _ => Err(Wrong("a number is missing")),
        }
    }

    pub fn usize(&mut self) -> Result<usize> {
        usize::try_from(self.uint()?).map_err(|_| Wrong("a number is too large"))
    }

    pub fn u32(&mut self) -> Result<u32> {
        u32::try_from(self.uint()?).map_err(|_| Wrong("a number is too large"))
    }

    pub fn bool(&mut self) -> Result<bool> {
        match self.value()? {
            Value::Bool(value) => Ok(value),
            _ => Err(Wrong("a yes or no is missing")),
        }
    }

    pub fn text(&mut self) -> Result<&'a str> {
        self.optional_text()?.ok_or(Wrong("a text is missing"))
    }

    pub fn tube(&mut self) -> Result<TubeName> {
        TubeName::new(self.text()?).map_err(|_| Wrong("not a good name for a tube"))
    }

    pub fn span(&mut self) -> Result<Span> {
        self.optional_span()?.ok_or(Wrong("a length of time is missing"))
    }

    pub fn time(&mut self) -> Result<Timestamp> {
        self.optional_time()?.ok_or(Wrong("a moment is missing"))
    }

    pub fn session(&mut self) -> Result<SessionId> {
        self.optional_session()?.ok_or(Wrong("a session is missing"))
    }

    pub fn optional_uint(&mut self) -> Result<Option<u64>> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Uint(value) => Ok(Some(value)),
            _ => Err(Wrong("not a number")),
        }
    }

    pub fn optional_text(&mut self) -> Result<Option<&'a str>> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Str(bytes) => {
                Ok(Some(std::str::from_utf8(bytes).map_err(|_| Wrong("a text is not UTF-8"))?))
            }
            _ => Err(Wrong("not a text")),
        }
    }

    pub fn optional_tube(&mut self) -> Result<Option<TubeName>> {
        let name = self.optional_text()?.map(TubeName::new).transpose();
        name.map_err(|_| Wrong("not a good name for a tube"))
    }

    pub fn optional_key(&mut self) -> Result<Option<Arc<str>>> {
        Ok(self.optional_text()?.map(Arc::from))
    }

    pub fn optional_span(&mut self) -> Result<Option<Span>> {
        Ok(self.optional_micros()?.map(Span::from_micros))
    }

    pub fn optional_time(&mut self) -> Result<Option<Timestamp>> {
        Ok(self.optional_micros()?.map(Timestamp::from_micros))
    }

    pub fn optional_session(&mut self) -> Result<Option<SessionId>> {
        match self.value()? {
            Value::Nil => Ok(None),
            value => session_of(value).map(Some),
        }
    }

    fn optional_micros(&mut self) -> Result<Option<i64>> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Int(value) => Ok(Some(value)),
            Value::Uint(value) => {
                Ok(Some(i64::try_from(value).map_err(|_| Wrong("a time is too large"))?))
            }
            _ => Err(Wrong("not a time")),
        }
    }

    /// Two runs of bytes: the content of a list whose header was the latest value.
    pub fn two_runs(&mut self) -> Result<(&'a [u8], &'a [u8])> {
        Ok((self.reader.bytes()?, self.reader.bytes()?))
    }

    /// A field that is itself a list of fields.
    pub fn row<T>(&mut self, read: impl FnOnce(&mut RowReader<'_, 'a>) -> Result<T>) -> Result<T> {
        self.optional_row(read)?.ok_or(Wrong("a list of fields is missing"))
    }

    /// The same, or nil.
    pub fn optional_row<T>(
        &mut self,
        read: impl FnOnce(&mut RowReader<'_, 'a>) -> Result<T>,
    ) -> Result<Option<T>> {
        let left = match self.value()? {
            Value::Nil => return Ok(None),
            Value::Array(count) => count,
            _ => return Err(Wrong("not a list of fields")),
        };
        let mut row = RowReader { reader: self.reader, budget: self.budget, left };
        let value = read(&mut row)?;
        row.skip_rest()?;
        Ok(Some(value))
    }

    /// A field that is a list of things, each a list of fields.
    pub fn rows<T>(
        &mut self,
        read: impl FnMut(&mut RowReader<'_, 'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.row(|list| list.all(read))
    }

    /// A field that is a list of plain values.
    pub fn values<T>(
        &mut self,
        mut read: impl FnMut(&mut RowReader<'_, 'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.row(|list| {
            let count = list.count()?;
            (0..count).map(|_| read(list)).collect()
        })
    }

    /// Every field of this list, each a list of fields itself.
    pub fn all<T>(
        &mut self,
        mut read: impl FnMut(&mut RowReader<'_, 'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.count()?;
        (0..count).map(|_| self.row(&mut read)).collect()
    }

    /// How many items there are, as far as the bytes and the budget can hold them.
    pub fn count(&mut self) -> Result<usize> {
        let count = self.left as usize;
        if count > self.reader.rest().len() {
            return Err(Wrong("a list is longer than the message"));
        }
        self.budget.spend(count)?;
        Ok(count)
    }

    /// Passes over fields that a newer program has added.
    fn skip_rest(&mut self) -> Result<()> {
        for _ in 0..self.left {
            self.reader.skip()?;
        }
        Ok(())
    }
}

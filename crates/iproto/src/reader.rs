//! Reads MessagePack values of unknown types without copying them.

use rmp::Marker;

/// Bytes that are cut short, are not MessagePack, or have another type than expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// One MessagePack header with its content, if that is a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Bool(bool),
    /// An integer that is not negative, of any width.
    Uint(u64),
    /// A negative integer.
    Int(i64),
    Float(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Ext,
    /// A list of this many values that follow.
    Array(u32),
    /// A map of this many pairs that follow.
    Map(u32),
}

impl Value<'_> {
    /// The name of the type in Lua, for texts that clients know.
    pub fn lua_type(&self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Bool(_) => "boolean",
            Value::Uint(_) | Value::Int(_) | Value::Float(_) => "number",
            Value::Str(_) | Value::Bin(_) => "string",
            Value::Ext => "cdata",
            Value::Array(_) | Value::Map(_) => "table",
        }
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match *self {
            Value::Uint(value) => Some(value as f64),
            Value::Int(value) => Some(value as f64),
            Value::Float(value) => Some(value),
            _ => None,
        }
    }

    /// The number, if it is whole and not negative. Lua does not distinguish 5 and 5.0.
    pub fn unsigned(&self) -> Option<u64> {
        match *self {
            Value::Uint(value) => Some(value),
            Value::Float(value)
                if value >= 0.0 && value < 2f64.powi(64) && value.fract() == 0.0 =>
            {
                Some(value as u64)
            }
            _ => None,
        }
    }

    /// The number of values inside.
    fn inside(&self) -> u64 {
        match *self {
            Value::Array(count) => count.into(),
            Value::Map(pairs) => u64::from(pairs) * 2,
            _ => 0,
        }
    }
}

/// Reads values one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueReader<'a> {
    rest: &'a [u8],
}

type ReadResult<T> = Result<T, Malformed>;

impl<'a> ValueReader<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        ValueReader { rest: bytes }
    }

    /// The bytes that are left.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Skips one value with its content. Takes time in proportion to the bytes that are there,
    /// whatever lengths they claim, and no memory.
    pub fn skip(&mut self) -> ReadResult<()> {
        self.skip_counting().map(drop)
    }

    /// The bytes of the next value.
    pub fn raw(&mut self) -> ReadResult<&'a [u8]> {
        let before = self.rest;
        self.skip()?;
        Ok(&before[..before.len() - self.rest.len()])
    }

    /// The bytes of the next value, and whether it is a list or map.
    pub fn raw_nested(&mut self) -> ReadResult<(&'a [u8], bool)> {
        let before = self.rest;
        let nested = self.skip_counting()?;
        Ok((&before[..before.len() - self.rest.len()], nested))
    }

    fn skip_counting(&mut self) -> ReadResult<bool> {
        let first = self.value()?;
        let nested = matches!(first, Value::Array(_) | Value::Map(_));
        let mut left = first.inside();
        while left > 0 {
            // Each header adds less than 2^33 and takes a byte, so this cannot overflow.
            left = left - 1 + self.value()?.inside();
        }
        Ok(nested)
    }

    /// A whole number that is not negative.
    pub fn uint(&mut self) -> ReadResult<u64> {
        match self.value()? {
            Value::Uint(value) => Ok(value),
            _ => Err(Malformed),
        }
    }

    /// The number of values of the list that begins here.
    pub fn array(&mut self) -> ReadResult<u32> {
        match self.value()? {
            Value::Array(count) => Ok(count),
            _ => Err(Malformed),
        }
    }

    /// The number of pairs of the map that begins here.
    pub fn map(&mut self) -> ReadResult<u32> {
        match self.value()? {
            Value::Map(pairs) => Ok(pairs),
            _ => Err(Malformed),
        }
    }

    /// Text, sent as such or as binary.
    pub fn bytes(&mut self) -> ReadResult<&'a [u8]> {
        match self.value()? {
            Value::Str(bytes) | Value::Bin(bytes) => Ok(bytes),
            _ => Err(Malformed),
        }
    }

    /// The next header with its plain content.
    pub fn value(&mut self) -> ReadResult<Value<'a>> {
        let [byte] = self.take()?;
        Ok(match Marker::from_u8(byte) {
            Marker::FixPos(value) => Value::Uint(value.into()),
            Marker::FixStr(length) => Value::Str(self.run(length.into())?),
            Marker::FixArray(count) => Value::Array(count.into()),
            Marker::FixMap(pairs) => Value::Map(pairs.into()),
            Marker::FixNeg(value) => Value::Int(value.into()),
            Marker::Null => Value::Nil,
            Marker::True => Value::Bool(true),
            Marker::False => Value::Bool(false),
            Marker::U8 => Value::Uint(u8::from_be_bytes(self.take()?).into()),
            Marker::U16 => Value::Uint(u16::from_be_bytes(self.take()?).into()),
            Marker::U32 => Value::Uint(u32::from_be_bytes(self.take()?).into()),
            Marker::U64 => Value::Uint(u64::from_be_bytes(self.take()?)),
            Marker::I8 => signed(i8::from_be_bytes(self.take()?).into()),
            Marker::I16 => signed(i16::from_be_bytes(self.take()?).into()),
            Marker::I32 => signed(i32::from_be_bytes(self.take()?).into()),
            Marker::I64 => signed(i64::from_be_bytes(self.take()?)),
            Marker::F32 => Value::Float(f32::from_be_bytes(self.take()?).into()),
            Marker::F64 => Value::Float(f64::from_be_bytes(self.take()?)),
            Marker::Array16 => Value::Array(self.length16()?),
            Marker::Array32 => Value::Array(self.length32()?),
            Marker::Map16 => Value::Map(self.length16()?),
            Marker::Map32 => Value::Map(self.length32()?),
            marker => self.run_of_bytes(marker)?,
        })
    }

    /// The rest of [`ValueReader::value`]: long text, binary and extensions.
    fn run_of_bytes(&mut self, marker: Marker) -> ReadResult<Value<'a>> {
        let length = match marker {
            Marker::Str8 | Marker::Bin8 | Marker::Ext8 => u8::from_be_bytes(self.take()?).into(),
            Marker::Str16 | Marker::Bin16 | Marker::Ext16 => self.length16()?,
            Marker::Str32 | Marker::Bin32 | Marker::Ext32 => self.length32()?,
            Marker::FixExt1 => 1,
            Marker::FixExt2 => 2,
            Marker::FixExt4 => 4,
            Marker::FixExt8 => 8,
            Marker::FixExt16 => 16,
            _ => return Err(Malformed),
        };
        Ok(match marker {
            Marker::Str8 | Marker::Str16 | Marker::Str32 => Value::Str(self.run(length)?),
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Value::Bin(self.run(length)?),
            _ => {
                let [_kind] = self.take()?;
                self.run(length)?;
                Value::Ext
            }
        })
    }

    fn length16(&mut self) -> ReadResult<u32> {
        Ok(u16::from_be_bytes(self.take()?).into())
    }

    fn length32(&mut self) -> ReadResult<u32> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn run(&mut self, length: u32) -> ReadResult<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length as usize).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn take<const N: usize>(&mut self) -> ReadResult<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }
}

const fn signed(value: i64) -> Value<'static> {
    if value < 0 { Value::Int(value) } else { Value::Uint(value as u64) }
}

//! Reading MessagePack that may be anything.

use rmp::Marker;
use taskyard_core::limits::NESTING_MAX;

use super::PayloadError;

/// What one MessagePack header begins, with its content where that is a plain run of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Item<'a> {
    Nil,
    Bool(bool),
    Uint(u64),
    Int(i64),
    Float(f64),
    Str(&'a [u8]),
    Bin,
    Ext,
    /// A list of this many values that follow.
    Array(u32),
    /// A map of this many pairs that follow.
    Map(u32),
}

/// Where an item stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Key,
    Value,
}

/// Checks that the bytes are exactly one well-formed MessagePack value, nested within the limit.
///
/// Costs time in proportion to the bytes that are there, whatever lengths they claim, and no memory.
pub fn check_msgpack(bytes: &[u8]) -> Result<(), PayloadError> {
    walk(bytes, |_, _| Ok(()))
}

/// Shows every item of the one value in `bytes` to `judge`, in order.
pub(super) fn walk(
    bytes: &[u8],
    mut judge: impl FnMut(Item<'_>, Place) -> Result<(), PayloadError>,
) -> Result<(), PayloadError> {
    let mut reader = Reader::new(bytes);
    let mut open = [Level::default(); NESTING_MAX];
    let mut depth = 0;
    let mut place = Place::Value;
    loop {
        let item = reader.next()?;
        judge(item, place)?;
        if let Some(level) = Level::of(item) {
            *open.get_mut(depth).ok_or(PayloadError::TooDeep)? = level;
            depth += 1;
        }
        while depth > 0 && open[depth - 1].left == 0 {
            depth -= 1;
        }
        let Some(level) = depth.checked_sub(1).map(|top| &mut open[top]) else {
            return reader.finish();
        };
        place = if level.map && level.left % 2 == 0 { Place::Key } else { Place::Value };
        level.left -= 1;
    }
}

/// A list or map that is not over yet.
#[derive(Clone, Copy, Default)]
struct Level {
    /// Values to come; keys count too.
    left: u64,
    map: bool,
}

impl Level {
    fn of(item: Item<'_>) -> Option<Level> {
        match item {
            Item::Array(count) => Some(Level { left: count.into(), map: false }),
            Item::Map(pairs) => Some(Level { left: u64::from(pairs) * 2, map: true }),
            _ => None,
        }
    }
}

/// What is left to read.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    /// Refuses bytes after the value.
    fn finish(self) -> Result<(), PayloadError> {
        if self.0.is_empty() { Ok(()) } else { Err(PayloadError::Trailing(self.0.len())) }
    }

    /// The next header with its plain content.
    pub(super) fn next(&mut self) -> Result<Item<'a>, PayloadError> {
        let [byte] = self.array()?;
        Ok(match Marker::from_u8(byte) {
            Marker::FixPos(value) => Item::Uint(value.into()),
            Marker::FixNeg(value) => Item::Int(value.into()),
            Marker::Null => Item::Nil,
            Marker::True => Item::Bool(true),
            Marker::False => Item::Bool(false),
            Marker::U8 => Item::Uint(u8::from_be_bytes(self.array()?).into()),
            Marker::U16 => Item::Uint(u16::from_be_bytes(self.array()?).into()),
            Marker::U32 => Item::Uint(u32::from_be_bytes(self.array()?).into()),
            Marker::U64 => Item::Uint(u64::from_be_bytes(self.array()?)),
            Marker::I8 => Item::Int(i8::from_be_bytes(self.array()?).into()),
            Marker::I16 => Item::Int(i16::from_be_bytes(self.array()?).into()),
            Marker::I32 => Item::Int(i32::from_be_bytes(self.array()?).into()),
            Marker::I64 => Item::Int(i64::from_be_bytes(self.array()?)),
            Marker::F32 => Item::Float(f32::from_be_bytes(self.array()?).into()),
            Marker::F64 => Item::Float(f64::from_be_bytes(self.array()?)),
            Marker::FixArray(count) => Item::Array(count.into()),
            Marker::Array16 => Item::Array(self.length16()?),
            Marker::Array32 => Item::Array(self.length32()?),
            Marker::FixMap(pairs) => Item::Map(pairs.into()),
            Marker::Map16 => Item::Map(self.length16()?),
            Marker::Map32 => Item::Map(self.length32()?),
            marker => self.run_of_bytes(marker)?,
        })
    }

    /// The rest of [`Reader::next`]: text, binary and extensions.
    fn run_of_bytes(&mut self, marker: Marker) -> Result<Item<'a>, PayloadError> {
        let length = match marker {
            Marker::FixStr(length) => length.into(),
            Marker::Str8 | Marker::Bin8 | Marker::Ext8 => u8::from_be_bytes(self.array()?).into(),
            Marker::Str16 | Marker::Bin16 | Marker::Ext16 => self.length16()?,
            Marker::Str32 | Marker::Bin32 | Marker::Ext32 => self.length32()?,
            Marker::FixExt1 => 1,
            Marker::FixExt2 => 2,
            Marker::FixExt4 => 4,
            Marker::FixExt8 => 8,
            Marker::FixExt16 => 16,
            _ => return Err(PayloadError::Reserved),
        };
        match marker {
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                Ok(Item::Str(self.bytes(length as usize)?))
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                self.bytes(length as usize)?;
                Ok(Item::Bin)
            }
            _ => {
                let [_kind] = self.array()?;
                self.bytes(length as usize)?;
                Ok(Item::Ext)
            }
        }
    }

    fn length16(&mut self) -> Result<u32, PayloadError> {
        Ok(u16::from_be_bytes(self.array()?).into())
    }

    fn length32(&mut self) -> Result<u32, PayloadError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], PayloadError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(PayloadError::CutShort)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PayloadError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(PayloadError::CutShort)?;
        self.0 = rest;
        Ok(*taken)
    }
}

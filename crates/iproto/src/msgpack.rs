//! Checks that bytes are one MessagePack value, and reads values whose content is not known.

use rmp::Marker;
use taskyard_core::limits::NESTING_MAX;

/// Why bytes are not one MessagePack value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MsgpackError {
    /// Lists and maps are nested deeper than the limit.
    #[error("nested deeper than {NESTING_MAX} levels; flatten it or send it as text")]
    TooDeep,
    /// The bytes end in the middle of a value.
    #[error("the MessagePack value is cut short")]
    CutShort,
    /// A byte that begins no MessagePack value.
    #[error("0xc1 begins no MessagePack value")]
    Reserved,
    /// Bytes follow the value.
    #[error("{0} bytes follow the MessagePack value; send exactly one value")]
    Trailing(usize),
}

/// One MessagePack header, with its content if that is text or a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MsgpackItem<'a> {
    /// Nil.
    Nil,
    /// True or false.
    Bool(bool),
    /// An integer that was sent without a sign.
    Uint(u64),
    /// An integer that was sent with a sign.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text, which need not be UTF-8.
    Str(&'a [u8]),
    /// Binary data, which is skipped.
    Bin,
    /// An extension, which is skipped.
    Ext,
    /// A list of this many values that follow.
    Array(u32),
    /// A map of this many pairs that follow.
    Map(u32),
}

/// Whether an item is the key of a pair or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemRole {
    /// The key of a pair in a map.
    Key,
    /// A value of a pair, an element of a list, or the outermost value.
    Value,
}

/// Checks that the bytes are exactly one well-formed MessagePack value, nested within the limit.
///
/// Costs time in proportion to the bytes that are there, whatever lengths they claim, and no memory.
pub fn check_msgpack(bytes: &[u8]) -> Result<(), MsgpackError> {
    walk_msgpack(bytes, |_, _| {})
}

/// Checks like [`check_msgpack`] and passes every item of the value to `inspect`, in order.
pub fn walk_msgpack(
    bytes: &[u8],
    mut inspect: impl FnMut(MsgpackItem<'_>, ItemRole),
) -> Result<(), MsgpackError> {
    let mut reader = MsgpackReader::new(bytes);
    let mut open = [OpenContainer::default(); NESTING_MAX];
    let mut depth = 0;
    let mut role = ItemRole::Value;
    loop {
        let item = reader.next()?;
        inspect(item, role);
        if let Some(level) = OpenContainer::of(item) {
            *open.get_mut(depth).ok_or(MsgpackError::TooDeep)? = level;
            depth += 1;
        }
        while depth > 0 && open[depth - 1].left == 0 {
            depth -= 1;
        }
        let Some(level) = depth.checked_sub(1).map(|top| &mut open[top]) else {
            return reader.finish();
        };
        role = if level.map && level.left % 2 == 0 { ItemRole::Key } else { ItemRole::Value };
        level.left -= 1;
    }
}

/// A list or map whose values are not all read yet.
#[derive(Clone, Copy, Default)]
struct OpenContainer {
    /// Values to come; keys count too.
    left: u64,
    map: bool,
}

impl OpenContainer {
    fn of(item: MsgpackItem<'_>) -> Option<OpenContainer> {
        match item {
            MsgpackItem::Array(count) => Some(OpenContainer { left: count.into(), map: false }),
            MsgpackItem::Map(pairs) => {
                Some(OpenContainer { left: u64::from(pairs) * 2, map: true })
            }
            _ => None,
        }
    }
}

/// Reads MessagePack headers one after the other.
#[derive(Clone, Copy, Debug)]
pub struct MsgpackReader<'a>(&'a [u8]);

impl<'a> MsgpackReader<'a> {
    /// Begins at the first of these bytes.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        MsgpackReader(bytes)
    }

    /// Refuses bytes after the value.
    fn finish(self) -> Result<(), MsgpackError> {
        if self.0.is_empty() { Ok(()) } else { Err(MsgpackError::Trailing(self.0.len())) }
    }

    /// The next header with its plain content.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "the end of the bytes is an error here")]
    pub fn next(&mut self) -> Result<MsgpackItem<'a>, MsgpackError> {
        let [byte] = self.array()?;
        Ok(match Marker::from_u8(byte) {
            Marker::FixPos(value) => MsgpackItem::Uint(value.into()),
            Marker::FixNeg(value) => MsgpackItem::Int(value.into()),
            Marker::Null => MsgpackItem::Nil,
            Marker::True => MsgpackItem::Bool(true),
            Marker::False => MsgpackItem::Bool(false),
            Marker::U8 => MsgpackItem::Uint(u8::from_be_bytes(self.array()?).into()),
            Marker::U16 => MsgpackItem::Uint(u16::from_be_bytes(self.array()?).into()),
            Marker::U32 => MsgpackItem::Uint(u32::from_be_bytes(self.array()?).into()),
            Marker::U64 => MsgpackItem::Uint(u64::from_be_bytes(self.array()?)),
            Marker::I8 => MsgpackItem::Int(i8::from_be_bytes(self.array()?).into()),
            Marker::I16 => MsgpackItem::Int(i16::from_be_bytes(self.array()?).into()),
            Marker::I32 => MsgpackItem::Int(i32::from_be_bytes(self.array()?).into()),
            Marker::I64 => MsgpackItem::Int(i64::from_be_bytes(self.array()?)),
            Marker::F32 => MsgpackItem::Float(f32::from_be_bytes(self.array()?).into()),
            Marker::F64 => MsgpackItem::Float(f64::from_be_bytes(self.array()?)),
            Marker::FixArray(count) => MsgpackItem::Array(count.into()),
            Marker::Array16 => MsgpackItem::Array(self.length16()?),
            Marker::Array32 => MsgpackItem::Array(self.length32()?),
            Marker::FixMap(pairs) => MsgpackItem::Map(pairs.into()),
            Marker::Map16 => MsgpackItem::Map(self.length16()?),
            Marker::Map32 => MsgpackItem::Map(self.length32()?),
            marker => self.run_of_bytes(marker)?,
        })
    }

    /// The rest of [`MsgpackReader::next`]: text, binary and extensions.
    fn run_of_bytes(&mut self, marker: Marker) -> Result<MsgpackItem<'a>, MsgpackError> {
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
            _ => return Err(MsgpackError::Reserved),
        };
        match marker {
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                Ok(MsgpackItem::Str(self.bytes(length as usize)?))
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                self.bytes(length as usize)?;
                Ok(MsgpackItem::Bin)
            }
            _ => {
                let [_kind] = self.array()?;
                self.bytes(length as usize)?;
                Ok(MsgpackItem::Ext)
            }
        }
    }

    fn length16(&mut self) -> Result<u32, MsgpackError> {
        Ok(u16::from_be_bytes(self.array()?).into())
    }

    fn length32(&mut self) -> Result<u32, MsgpackError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], MsgpackError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MsgpackError::CutShort)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MsgpackError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(MsgpackError::CutShort)?;
        self.0 = rest;
        Ok(*taken)
    }
}

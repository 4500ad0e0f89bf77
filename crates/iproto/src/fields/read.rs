//! Decodes fields. Memory is allocated only for bytes that are there.

use std::str;

use taskyard_core::limits::NESTING_MAX;

/// Why bytes are not the fields of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what}", if .field.is_empty() { "the payload" } else { .field })]
pub struct FieldError {
    /// Which field; empty for the payload as a whole.
    pub field: &'static str,
    /// What is wrong with it.
    pub what: &'static str,
}

/// Reads the fields of a task in their order.
#[derive(Debug)]
pub struct FieldReader<'a> {
    rest: &'a [u8],
    /// How many fields are left.
    left: u32,
    /// The field that is being read, for errors.
    field: &'static str,
}

impl<'a> FieldReader<'a> {
    /// Reads the header of the list.
    pub fn new(payload: &'a [u8]) -> Result<Self, FieldError> {
        let mut reader = FieldReader { rest: payload, left: 0, field: "" };
        reader.left = reader.list_header()?.ok_or_else(|| reader.wrong("not a list of fields"))?;
        Ok(reader)
    }

    /// The next field as a whole number.
    pub fn int(&mut self, field: &'static str) -> Result<i64, FieldError> {
        if self.absent(field)? { Ok(0) } else { self.integer() }
    }

    /// The next field as a text.
    pub fn string(&mut self, field: &'static str) -> Result<String, FieldError> {
        if self.absent(field)? {
            return Ok(String::new());
        }
        let bytes = self.blob("not a text")?;
        let text = str::from_utf8(bytes).map_err(|_| self.wrong("not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// The next field as a boolean.
    pub fn bool(&mut self, field: &'static str) -> Result<bool, FieldError> {
        if self.absent(field)? {
            return Ok(false);
        }
        match self.byte()? {
            0xc2 => Ok(false),
            0xc3 => Ok(true),
            _ => Err(self.wrong("neither true nor false")),
        }
    }

    /// The next field as bytes.
    pub fn bytes(&mut self, field: &'static str) -> Result<Vec<u8>, FieldError> {
        if self.absent(field)? {
            return Ok(Vec::new());
        }
        Ok(self.blob("no bytes")?.to_vec())
    }

    /// The next field as whole numbers.
    pub fn ints(&mut self, field: &'static str) -> Result<Vec<i64>, FieldError> {
        if self.absent(field)? {
            return Ok(Vec::new());
        }
        let length = self.list_header()?.ok_or_else(|| self.wrong("not a list"))? as usize;
        // Each number has at least one byte, so this is at most eight times the input.
        if length > self.rest.len() {
            return Err(self.wrong("shorter than announced"));
        }
        (0..length).map(|_| self.integer()).collect()
    }

    /// Skips fields of a newer producer and checks that nothing follows.
    pub fn finish(mut self) -> Result<(), FieldError> {
        self.field = "";
        for _ in 0..self.left {
            self.skip(0)?;
        }
        if self.rest.is_empty() { Ok(()) } else { Err(self.wrong("bytes after the last field")) }
    }

    /// Whether the next field is missing or nil.
    fn absent(&mut self, field: &'static str) -> Result<bool, FieldError> {
        self.field = field;
        if self.left == 0 {
            return Ok(true);
        }
        self.left -= 1;
        if self.rest.first() == Some(&0xc0) {
            self.rest = &self.rest[1..];
            return Ok(true);
        }
        Ok(false)
    }

    fn integer(&mut self) -> Result<i64, FieldError> {
        let marker = self.byte()?;
        let unsigned = match marker {
            0x00..=0x7f => return Ok(i64::from(marker)),
            0xe0..=0xff => return Ok(i64::from(marker as i8)),
            0xcc => return Ok(i64::from(self.byte()?)),
            0xcd => return Ok(i64::from(u16::from_be_bytes(self.array()?))),
            0xce => return Ok(i64::from(u32::from_be_bytes(self.array()?))),
            0xcf => u64::from_be_bytes(self.array()?),
            0xd0 => return Ok(i64::from(i8::from_be_bytes(self.array()?))),
            0xd1 => return Ok(i64::from(i16::from_be_bytes(self.array()?))),
            0xd2 => return Ok(i64::from(i32::from_be_bytes(self.array()?))),
            0xd3 => return Ok(i64::from_be_bytes(self.array()?)),
            _ => return Err(self.wrong("not a whole number")),
        };
        i64::try_from(unsigned).map_err(|_| self.wrong("larger than 64 bits with a sign can hold"))
    }

    /// Text or bytes: producers in other languages do not always distinguish them.
    fn blob(&mut self, otherwise: &'static str) -> Result<&'a [u8], FieldError> {
        let marker = self.byte()?;
        let length = match marker {
            0xa0..=0xbf => usize::from(marker & 0x1f),
            0xc4 | 0xd9 => usize::from(self.byte()?),
            0xc5 | 0xda => usize::from(u16::from_be_bytes(self.array()?)),
            0xc6 | 0xdb => u32::from_be_bytes(self.array()?) as usize,
            _ => return Err(self.wrong(otherwise)),
        };
        self.slice(length)
    }

    /// The length of a list, if one begins here.
    fn list_header(&mut self) -> Result<Option<u32>, FieldError> {
        Ok(match self.byte()? {
            marker @ 0x90..=0x9f => Some(u32::from(marker & 0x0f)),
            0xdc => Some(u32::from(u16::from_be_bytes(self.array()?))),
            0xdd => Some(u32::from_be_bytes(self.array()?)),
            _ => None,
        })
    }

    /// Skips any value.
    fn skip(&mut self, depth: usize) -> Result<(), FieldError> {
        if depth > NESTING_MAX {
            return Err(self.wrong("nested too deeply"));
        }
        let marker = self.byte()?;
        let (bytes, values) = match marker {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (0, 0),
            0x80..=0x8f => (0, 2 * u64::from(marker & 0x0f)),
            0x90..=0x9f => (0, u64::from(marker & 0x0f)),
            0xa0..=0xbf => (usize::from(marker & 0x1f), 0),
            0xc1 => return Err(self.wrong("not MessagePack")),
            0xc4 | 0xd9 => (usize::from(self.byte()?), 0),
            0xc5 | 0xda => (usize::from(u16::from_be_bytes(self.array()?)), 0),
            0xc6 | 0xdb => (u32::from_be_bytes(self.array()?) as usize, 0),
            0xc7 => (usize::from(self.byte()?) + 1, 0),
            0xc8 => (usize::from(u16::from_be_bytes(self.array()?)) + 1, 0),
            0xc9 => (u32::from_be_bytes(self.array()?) as usize + 1, 0),
            0xcc | 0xd0 => (1, 0),
            0xcd | 0xd1 | 0xd4 => (2, 0),
            0xd5 => (3, 0),
            0xca | 0xce | 0xd2 => (4, 0),
            0xd6 => (5, 0),
            0xcb | 0xcf | 0xd3 => (8, 0),
            0xd7 => (9, 0),
            0xd8 => (17, 0),
            0xdc => (0, u64::from(u16::from_be_bytes(self.array()?))),
            0xdd => (0, u64::from(u32::from_be_bytes(self.array()?))),
            0xde => (0, 2 * u64::from(u16::from_be_bytes(self.array()?))),
            0xdf => (0, 2 * u64::from(u32::from_be_bytes(self.array()?))),
        };
        self.slice(bytes)?;
        for _ in 0..values {
            self.skip(depth + 1)?;
        }
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, FieldError> {
        let (first, rest) = self.rest.split_first().ok_or_else(|| self.short())?;
        self.rest = rest;
        Ok(*first)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FieldError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(|| self.short())?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn slice(&mut self, length: usize) -> Result<&'a [u8], FieldError> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or_else(|| self.short())?;
        self.rest = rest;
        Ok(bytes)
    }

    fn short(&self) -> FieldError {
        self.wrong("ends too early")
    }

    fn wrong(&self, what: &'static str) -> FieldError {
        FieldError { field: self.field, what }
    }
}

//! Converts JSON text to MessagePack bytes while it is parsed.

use std::fmt;

use rmp::encode;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use taskyard_core::limits::NESTING_MAX;
use taskyard_iproto::MsgpackError;

use super::PayloadError;

/// The MessagePack form of one JSON value: shortest headers, floats as `f64`, keys in their order,
/// duplicate keys kept.
pub fn json_to_msgpack(text: &str) -> Result<Vec<u8>, PayloadError> {
    let mut writer = Writer::new(text.len());
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = JsonValue { writer: &mut writer, depth: 0 }.deserialize(&mut deserializer);
    if writer.too_deep {
        return Err(MsgpackError::TooDeep.into());
    }
    let read = read.and_then(|()| deserializer.end());
    read.map_err(|error| PayloadError::Json(error.to_string()))?;
    if writer.huge_number {
        refuse_huge_integers(text)?;
    }
    Ok(writer.out)
}

/// The bytes so far, and what was noticed while parsing.
struct Writer {
    out: Vec<u8>,
    too_deep: bool,
    /// A float was read that may have been written as an integer beyond 64 bits.
    huge_number: bool,
}

impl Writer {
    fn new(text_bytes: usize) -> Self {
        Writer { out: Vec::with_capacity(text_bytes), too_deep: false, huge_number: false }
    }

    /// Writes the header of `count` values into the byte that `open` reserved for the shortest one.
    /// Longer headers move the content: rare, and cheaper than counting before parsing.
    fn close(&mut self, at: usize, count: usize, headers: &Headers) -> Result<(), MsgpackError> {
        let length = u32::try_from(count).map_err(|_| MsgpackError::CutShort)?;
        if count < 16 {
            self.out[at] = headers.short | count as u8;
            return Ok(());
        }
        let wide = length.to_be_bytes();
        let (marker, width) = match u16::try_from(length) {
            Ok(_) => (headers.wide16, &wide[2..]),
            Err(_) => (headers.wide32, &wide[..]),
        };
        self.out[at] = marker;
        self.out.splice(at + 1..at + 1, width.iter().copied());
        Ok(())
    }
}

/// The three headers of a list or of a map.
struct Headers {
    short: u8,
    wide16: u8,
    wide32: u8,
}

const ARRAY: Headers = Headers { short: 0x90, wide16: 0xdc, wide32: 0xdd };
const MAP: Headers = Headers { short: 0x80, wide16: 0xde, wide32: 0xdf };

/// Reads one value and appends it.
struct JsonValue<'w> {
    writer: &'w mut Writer,
    depth: usize,
}

impl JsonValue<'_> {
    /// Enters a list or map and reserves a byte for the header; returns the position of that byte.
    fn open<E: Error>(&mut self) -> Result<usize, E> {
        if self.depth == NESTING_MAX {
            self.writer.too_deep = true;
            return Err(E::custom(MsgpackError::TooDeep));
        }
        self.depth += 1;
        self.writer.out.push(0);
        Ok(self.writer.out.len() - 1)
    }

    fn inner(&mut self) -> JsonValue<'_> {
        JsonValue { writer: self.writer, depth: self.depth }
    }
}

impl<'de> DeserializeSeed<'de> for JsonValue<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonValue<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        encode::write_nil(&mut self.writer.out).map_err(E::custom)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        encode::write_bool(&mut self.writer.out, value).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        encode::write_uint(&mut self.writer.out, value).map(drop).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        encode::write_sint(&mut self.writer.out, value).map(drop).map_err(E::custom)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        // The parser returns an integer beyond 64 bits as a rounded float.
        self.writer.huge_number |= value.abs() >= i64::MAX as f64;
        encode::write_f64(&mut self.writer.out, value).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        encode::write_str(&mut self.writer.out, value).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        let at = self.open()?;
        let mut count = 0;
        while items.next_element_seed(self.inner())?.is_some() {
            count += 1;
        }
        self.writer.close(at, count, &ARRAY).map_err(A::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut pairs: A) -> Result<(), A::Error> {
        let at = self.open()?;
        let mut count = 0;
        while pairs.next_key_seed(self.inner())?.is_some() {
            pairs.next_value_seed(self.inner())?;
            count += 1;
        }
        self.writer.close(at, count, &MAP).map_err(A::Error::custom)
    }
}

/// Searches valid JSON text for an integer that does not fit in 64 bits.
fn refuse_huge_integers(text: &str) -> Result<(), PayloadError> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = end_of_string(bytes, at),
            b'-' | b'0'..=b'9' => {
                let length = bytes[at..].iter().take_while(|b| is_of_number(**b)).count();
                refuse_huge_integer(&text[at..at + length])?;
                at += length;
            }
            _ => at += 1,
        }
    }
    Ok(())
}

/// The end of the string that begins at `at`.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    at += 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

const fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
}

fn refuse_huge_integer(number: &str) -> Result<(), PayloadError> {
    let integer = !number.contains(['.', 'e', 'E']);
    if integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
        // A number may be as long as the payload; its beginning is enough to find it.
        return Err(PayloadError::IntegerTooLarge(number.chars().take(40).collect()));
    }
    Ok(())
}

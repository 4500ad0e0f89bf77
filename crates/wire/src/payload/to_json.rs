//! MessagePack bytes to JSON text, without a tree in between.

use std::cell::Cell;

use serde::ser::{Error as _, Serialize, SerializeMap, SerializeSeq, Serializer};

use super::PayloadError;
use super::reader::{Item, Place, Reader, walk};

/// The JSON text of one MessagePack value. What JSON cannot hold (binary, extensions, text that is
/// not UTF-8, NaN and infinity, keys that are not text) is [`PayloadError::NotRepresentable`].
pub fn msgpack_to_json(bytes: &[u8]) -> Result<String, PayloadError> {
    check_representable(bytes)?;
    let value = Value(&Cell::new(Reader::new(bytes)));
    serde_json::to_string(&value).map_err(|error| PayloadError::Json(error.to_string()))
}

/// Checks that the bytes are one MessagePack value that JSON can hold.
pub(super) fn check_representable(bytes: &[u8]) -> Result<(), PayloadError> {
    let mut foreign = None;
    walk(bytes, |item, place| {
        foreign = foreign.or(why_foreign(item, place));
        Ok(())
    })?;
    foreign.map_or(Ok(()), |what| Err(PayloadError::NotRepresentable(what)))
}

/// What about the item JSON cannot hold, if anything.
fn why_foreign(item: Item<'_>, place: Place) -> Option<&'static str> {
    match item {
        Item::Bin => Some("binary data"),
        Item::Ext => Some("a MessagePack extension"),
        Item::Float(value) if !value.is_finite() => Some("NaN or infinity"),
        Item::Str(text) if std::str::from_utf8(text).is_err() => Some("text that is not UTF-8"),
        Item::Str(_) => None,
        _ if place == Place::Key => Some("a key that is not text"),
        _ => None,
    }
}

/// Writes the value in `bytes`, which has passed [`check_representable`] or came from JSON.
pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    Value(&Cell::new(Reader::new(bytes))).serialize(serializer)
}

/// The value that comes next; reading it moves the reader on.
struct Value<'r, 'b>(&'r Cell<Reader<'b>>);

impl Serialize for Value<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut reader = self.0.get();
        let item = reader.next().map_err(S::Error::custom)?;
        self.0.set(reader);
        match item {
            Item::Nil => serializer.serialize_unit(),
            Item::Bool(value) => serializer.serialize_bool(value),
            Item::Uint(value) => serializer.serialize_u64(value),
            Item::Int(value) => serializer.serialize_i64(value),
            Item::Float(value) => serializer.serialize_f64(value),
            Item::Str(text) => {
                serializer.serialize_str(std::str::from_utf8(text).map_err(S::Error::custom)?)
            }
            Item::Array(count) => {
                let mut list = serializer.serialize_seq(Some(count as usize))?;
                (0..count).try_for_each(|_| list.serialize_element(self))?;
                list.end()
            }
            Item::Map(pairs) => {
                let mut map = serializer.serialize_map(Some(pairs as usize))?;
                (0..pairs).try_for_each(|_| map.serialize_entry(self, self))?;
                map.end()
            }
            Item::Bin | Item::Ext => {
                Err(S::Error::custom(PayloadError::NotRepresentable("binary data")))
            }
        }
    }
}

//! Converts MessagePack bytes to JSON text, without a tree in between.

use std::cell::Cell;

use serde::ser::{Error as _, Serialize, SerializeMap, SerializeSeq, Serializer};
use taskyard_iproto::msgpack::{ItemRole, MsgpackItem, MsgpackReader, walk_msgpack};

use super::PayloadError;

/// The JSON text of one MessagePack value. A value that JSON cannot represent (binary, extensions,
/// text that is not UTF-8, NaN and infinity, keys that are not text) is
/// [`PayloadError::NotRepresentable`].
pub fn msgpack_to_json(bytes: &[u8]) -> Result<String, PayloadError> {
    check_representable(bytes)?;
    let value = MsgpackValue(&Cell::new(MsgpackReader::new(bytes)));
    serde_json::to_string(&value).map_err(|error| PayloadError::Json(error.to_string()))
}

/// Checks that the bytes are one MessagePack value that JSON can represent.
pub(super) fn check_representable(bytes: &[u8]) -> Result<(), PayloadError> {
    let mut foreign = None;
    walk_msgpack(bytes, |item, role| foreign = foreign.or(why_foreign(item, role)))?;
    foreign.map_or(Ok(()), |what| Err(PayloadError::NotRepresentable(what)))
}

/// What JSON cannot represent about the item, if anything.
fn why_foreign(item: MsgpackItem<'_>, role: ItemRole) -> Option<&'static str> {
    match item {
        MsgpackItem::Bin => Some("binary data"),
        MsgpackItem::Ext => Some("a MessagePack extension"),
        MsgpackItem::Float(value) if !value.is_finite() => Some("NaN or infinity"),
        MsgpackItem::Str(text) if std::str::from_utf8(text).is_err() => {
            Some("text that is not UTF-8")
        }
        MsgpackItem::Str(_) => None,
        _ if role == ItemRole::Key => Some("a key that is not text"),
        _ => None,
    }
}

/// Writes the value in `bytes`, which has passed [`check_representable`] or came from JSON.
pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    MsgpackValue(&Cell::new(MsgpackReader::new(bytes))).serialize(serializer)
}

/// The next value; serializing it advances the reader.
struct MsgpackValue<'r, 'b>(&'r Cell<MsgpackReader<'b>>);

impl Serialize for MsgpackValue<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut reader = self.0.get();
        let item = reader.next().map_err(S::Error::custom)?;
        self.0.set(reader);
        match item {
            MsgpackItem::Nil => serializer.serialize_unit(),
            MsgpackItem::Bool(value) => serializer.serialize_bool(value),
            MsgpackItem::Uint(value) => serializer.serialize_u64(value),
            MsgpackItem::Int(value) => serializer.serialize_i64(value),
            MsgpackItem::Float(value) => serializer.serialize_f64(value),
            MsgpackItem::Str(text) => {
                serializer.serialize_str(std::str::from_utf8(text).map_err(S::Error::custom)?)
            }
            MsgpackItem::Array(count) => {
                let mut list = serializer.serialize_seq(Some(count as usize))?;
                (0..count).try_for_each(|_| list.serialize_element(self))?;
                list.end()
            }
            MsgpackItem::Map(pairs) => {
                let mut map = serializer.serialize_map(Some(pairs as usize))?;
                (0..pairs).try_for_each(|_| map.serialize_entry(self, self))?;
                map.end()
            }
            MsgpackItem::Bin | MsgpackItem::Ext => {
                Err(S::Error::custom(PayloadError::NotRepresentable("binary data")))
            }
        }
    }
}

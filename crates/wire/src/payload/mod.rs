//! What tasks carry: JSON at the edge, MessagePack inside.
//!
//! JSON is turned into MessagePack while it is read and back while it is written. Integers from
//! `i64::MIN` to `u64::MAX` stay exact and a larger one is an error, never rounded; other numbers
//! are `f64`. What JSON cannot hold travels as [`Packed`] instead of [`Payload`].

mod from_json;
mod packed;
mod reader;
mod to_json;

use serde::de::Error as _;
use serde::ser::{Serialize, Serializer};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use taskyard_core::Error;
use taskyard_core::limits::NESTING_MAX;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType};
use utoipa::openapi::{RefOr, Type};
use utoipa::{PartialSchema, ToSchema};

pub use from_json::json_to_msgpack;
pub use packed::Packed;
pub use reader::check_msgpack;
pub use to_json::msgpack_to_json;

/// Why bytes are not a payload, or not one that JSON can show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The text is not JSON.
    #[error("not JSON: {0}")]
    Json(String),
    /// Lists and maps stand in one another too deep.
    #[error("nested deeper than {NESTING_MAX} levels; flatten it or send it as text")]
    TooDeep,
    /// An integer that neither `i64` nor `u64` can hold.
    #[error("the integer {0} does not fit in 64 bits; write it as text or with a decimal point")]
    IntegerTooLarge(String),
    /// The bytes end in the middle of a value.
    #[error("the MessagePack value is cut short")]
    CutShort,
    /// A byte that begins no MessagePack value.
    #[error("0xc1 begins no MessagePack value")]
    Reserved,
    /// The value is over but the bytes are not.
    #[error("{0} bytes follow the MessagePack value; send exactly one value")]
    Trailing(usize),
    /// Well-formed, but JSON has no way to say it.
    #[error("JSON cannot hold {0}; use the base64 form")]
    NotRepresentable(&'static str),
    /// The text is not standard base64.
    #[error("not base64: {0}")]
    Base64(String),
}

impl From<PayloadError> for Error {
    fn from(error: PayloadError) -> Self {
        Error::Invalid(error.to_string())
    }
}

/// A value that JSON can show, kept as MessagePack.
///
/// It is read from JSON text in one go and needs that text at hand: `serde_json::from_slice` and
/// `from_str` can give it, `from_value` and `from_reader` cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// The payload of these bytes, if they are one MessagePack value that JSON can show.
    pub fn from_msgpack(bytes: &[u8]) -> Result<Self, PayloadError> {
        to_json::check_representable(bytes)?;
        Ok(Payload(bytes.to_vec()))
    }

    /// The payload of this JSON text.
    pub fn from_json(text: &str) -> Result<Self, PayloadError> {
        json_to_msgpack(text).map(Payload)
    }

    /// The value as MessagePack.
    pub fn as_msgpack(&self) -> &[u8] {
        &self.0
    }

    /// The value as MessagePack, without a copy.
    pub fn into_msgpack(self) -> Vec<u8> {
        self.0
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        to_json::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?;
        Payload::from_json(text.get()).map_err(|error| {
            // The position in the payload would be read as one in the request; without it the
            // request's own position is added.
            let message = error.to_string();
            D::Error::custom(message.split(" at line ").next().unwrap_or_default())
        })
    }
}

impl PartialSchema for Payload {
    fn schema() -> RefOr<Schema> {
        let any = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
        any.description(Some("Any JSON value, nested at most 64 levels deep.")).into()
    }
}

impl ToSchema for Payload {}

impl PartialSchema for Packed {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String);
        text.description(Some("One MessagePack value, as standard base64.")).into()
    }
}

impl ToSchema for Packed {}

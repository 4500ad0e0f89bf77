//! Payloads of tasks: JSON in HTTP, MessagePack inside.
//!
//! JSON is converted to MessagePack while it is parsed and back while it is written. Integers from
//! `i64::MIN` to `u64::MAX` stay exact and a larger one is an error, never rounded; other numbers
//! are `f64`. Values that JSON cannot represent are sent as [`Packed`] instead of [`Payload`].

mod from_json;
mod packed;
#[cfg(feature = "openapi")]
mod schema;
mod to_json;

use serde::de::Error as _;
use serde::ser::{Serialize, Serializer};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use taskyard_core::Error;
use taskyard_iproto::MsgpackError;

pub use from_json::json_to_msgpack;
pub use packed::Packed;
pub use to_json::msgpack_to_json;

/// Why bytes are not a payload, or not one that JSON can represent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The text is not JSON.
    #[error("not JSON: {0}")]
    Json(String),
    /// An integer that neither `i64` nor `u64` can hold.
    #[error("the integer {0} does not fit in 64 bits; write it as text or with a decimal point")]
    IntegerTooLarge(String),
    /// The bytes are not one MessagePack value, or the value is nested too deep.
    #[error(transparent)]
    Msgpack(#[from] MsgpackError),
    /// A well-formed value that JSON cannot represent.
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

/// A value that JSON can represent, stored as MessagePack.
///
/// It is parsed from JSON text in one pass and needs that text: `serde_json::from_slice` and
/// `from_str` can provide it, `from_value` and `from_reader` cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// The payload of these bytes, if they are one MessagePack value that JSON can represent.
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
            // The position in the payload would be understood as one in the request; without it the
            // position in the request is added.
            let message = error.to_string();
            D::Error::custom(message.split(" at line ").next().unwrap_or_default())
        })
    }
}

//! Payloads as raw bytes: MessagePack in base64.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::ser::{Serialize, Serializer};
use serde::{Deserialize, Deserializer};
use taskyard_iproto::check_msgpack;

use super::PayloadError;

/// Any MessagePack value, byte for byte; in JSON standard base64 with padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed(Vec<u8>);

impl Packed {
    /// These bytes, unchecked. The receiver refuses bytes that are no MessagePack value.
    pub fn new(bytes: &[u8]) -> Self {
        Packed(bytes.to_vec())
    }

    /// Decodes this base64 text, if it is exactly one MessagePack value.
    pub fn from_base64(text: &str) -> Result<Self, PayloadError> {
        let decoded = STANDARD.decode(text);
        let bytes = decoded.map_err(|error| PayloadError::Base64(error.to_string()))?;
        check_msgpack(&bytes)?;
        Ok(Packed(bytes))
    }

    /// The bytes.
    pub fn as_msgpack(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, without a copy.
    pub fn into_msgpack(self) -> Vec<u8> {
        self.0
    }
}

impl Serialize for Packed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Packed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(deserializer)?;
        Packed::from_base64(&text.0).map_err(D::Error::custom)
    }
}

/// Text that is borrowed from the request if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

//! Parses objects in requests: a list of values without names is none.

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error};
use serde_json::{Map, Value};

/// Reads an object or null.
pub(super) fn maybe<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let fields = Option::<Map<String, Value>>::deserialize(deserializer)?;
    let read = fields.map(|fields| serde_json::from_value(Value::Object(fields)));
    read.transpose().map_err(D::Error::custom)
}

/// The same for a field that may be absent, which is not null.
pub(super) fn present<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    maybe(deserializer).map(Some)
}

//! Serves the OpenAPI document that `cargo xtask docs` writes.

use serde_json::{Value, json};
use taskyard_packed::Texts;

/// The document of a server with the usual limit for waiting, packed by the build script.
const DOCUMENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openapi"));

/// The fields that the limit for waiting bounds.
const WAITS: [&str; 3] = [
    "TakeRequest/properties/wait",
    "EventsRequest/properties/wait",
    "PutRequest/properties/timeout",
];

/// The OpenAPI document of a server that lets requests wait no longer than this, as JSON text.
pub(crate) fn document(wait_seconds_max: f64) -> String {
    let texts = Texts::unpack(DOCUMENT);
    let mut document: Value = serde_json::from_str(texts.text("openapi.json"))
        .expect("it is valid JSON: a test compares it with the routes");
    for field in WAITS {
        if let Some(field) = document.pointer_mut(&format!("/components/schemas/{field}")) {
            field["maximum"] = json!(wait_seconds_max);
        }
    }
    document.to_string()
}

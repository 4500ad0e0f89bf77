//! Serves the OpenAPI document that `cargo xtask docs` writes.

use serde_json::{Value, json};

/// The document of a server with the usual limit for waiting, compressed by the build script.
const DOCUMENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openapi.json"));

/// The fields that the limit for waiting bounds.
const WAITS: [&str; 3] = [
    "TakeRequest/properties/wait",
    "EventsRequest/properties/wait",
    "PutRequest/properties/timeout",
];

/// The OpenAPI document of a server that lets requests wait no longer than this, as JSON text.
pub(crate) fn document(wait_seconds_max: f64) -> String {
    let text = miniz_oxide::inflate::decompress_to_vec(DOCUMENT);
    let text = text.expect("the build script packed it");
    let mut document: Value = serde_json::from_slice(&text).expect("the build script packed it");
    for field in WAITS {
        if let Some(field) = document.pointer_mut(&format!("/components/schemas/{field}")) {
            field["maximum"] = json!(wait_seconds_max);
        }
    }
    document.to_string()
}

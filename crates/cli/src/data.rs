//! What tasks carry, as people write and read it.

use std::fs;
use std::io::{self, Read};

use anyhow::Context;
use taskyard_core::Body;
use taskyard_wire::{PayloadError, json_to_msgpack, msgpack_to_json};

use crate::failure::Wrong;
use crate::output::printable;

/// The payload that DATA stands for: `@file` and `-` are read, the rest is taken as it is.
pub fn read(argument: &str) -> anyhow::Result<Vec<u8>> {
    if argument == "-" {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read the standard input")?;
        return from_bytes(bytes);
    }
    if let Some(path) = argument.strip_prefix('@') {
        let bytes = fs::read(path).map_err(|error| {
            Wrong(format!("cannot read '{path}': {error}; a text that begins with @ is '\"@…\"'"))
        })?;
        return from_bytes(bytes);
    }
    from_text(argument)
}

/// JSON when it parses as JSON, text otherwise.
pub fn from_text(text: &str) -> anyhow::Result<Vec<u8>> {
    match json_to_msgpack(text) {
        Ok(payload) => Ok(payload),
        Err(PayloadError::Json(_)) => {
            let mut payload = Vec::with_capacity(text.len() + 5);
            rmp::encode::write_str(&mut payload, text)?;
            Ok(payload)
        }
        Err(error) => Err(Wrong(format!("the data cannot be sent: {error}")).into()),
    }
}

/// The same for what was read; what is not text is kept as binary data.
fn from_bytes(bytes: Vec<u8>) -> anyhow::Result<Vec<u8>> {
    match String::from_utf8(bytes) {
        // The line end belongs to the file, not to the text.
        Ok(text) => from_text(text.strip_suffix('\n').unwrap_or(&text)),
        Err(error) => {
            let bytes = error.into_bytes();
            let mut payload = Vec::with_capacity(bytes.len() + 5);
            rmp::encode::write_bin(&mut payload, &bytes)?;
            Ok(payload)
        }
    }
}

/// The payload as a person reads it: JSON, or a word on what JSON cannot hold.
pub fn show(body: Option<&Body>) -> String {
    let Some(payload) = body.map(Body::payload) else { return String::new() };
    match msgpack_to_json(payload) {
        Ok(json) => printable(&json),
        Err(_) => format!("({} bytes that JSON cannot hold; --json shows them)", payload.len()),
    }
}

/// The payload as a command reads it from its standard input: a text as it is, binary data as it
/// is, the rest as JSON.
pub fn plain(body: Option<&Body>) -> Vec<u8> {
    let payload = body.map(Body::payload).unwrap_or_default();
    let content = content_of(payload);
    let json = || msgpack_to_json(payload).map(String::into_bytes);
    content.map_or_else(|| json().unwrap_or_else(|_| payload.to_vec()), <[u8]>::to_vec)
}

/// What stands inside a text or binary value.
fn content_of(mut payload: &[u8]) -> Option<&[u8]> {
    let whole = payload;
    let size = rmp::decode::read_str_len(&mut payload).ok().or_else(|| {
        payload = whole;
        rmp::decode::read_bin_len(&mut payload).ok()
    })?;
    (payload.len() == size as usize).then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(argument: &str) -> String {
        show(Some(&Body::new(&read(argument).unwrap())))
    }

    #[test]
    fn json_is_json_and_text_is_text() {
        assert_eq!(shown("{\"a\": 1}"), "{\"a\":1}");
        assert_eq!(shown("17"), "17");
        assert_eq!(shown("null"), "null");
        assert_eq!(shown("hello"), "\"hello\"");
        assert_eq!(shown("{broken"), "\"{broken\"");
        assert_eq!(shown(""), "\"\"");
    }

    #[test]
    fn numbers_that_would_lose_digits_are_refused() {
        let error = read("123456789012345678901234567890").unwrap_err();
        assert!(error.is::<Wrong>(), "{error}");
    }

    #[test]
    fn commands_read_texts_as_they_are() {
        for (argument, expected) in [("hello", "hello"), ("{\"a\":1}", "{\"a\":1}")] {
            let body = Body::new(&read(argument).unwrap());
            assert_eq!(plain(Some(&body)), expected.as_bytes());
        }
        let binary = Body::new(&from_bytes(vec![0xff, 0]).unwrap());
        assert_eq!(plain(Some(&binary)), [0xff, 0]);
    }

    #[test]
    fn a_file_that_is_not_there_is_a_wrong_argument() {
        assert!(read("@no/such/file").unwrap_err().is::<Wrong>());
    }
}

//! Converts payloads between the command line and MessagePack.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read as _};

use anyhow::Context;
use taskyard_core::Body;
use taskyard_wire::{PayloadError, json_to_msgpack, msgpack_to_json};

use crate::failure::UsageError;
use crate::output::printable;

/// How DATA is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// As JSON; invalid JSON is refused.
    Json,
    /// As text.
    Text,
}

/// A payload, and a hint where it looks like JSON and is stored as text.
pub type PayloadAndHint = (Vec<u8>, Option<String>);

/// How many characters of a text a hint shows.
const HINT_CHARS_MAX: usize = 40;

/// Reads the payload of DATA: `@file` and `-` name a file and standard input, anything else is the payload itself.
pub fn read(argument: &str, form: Option<Form>) -> anyhow::Result<PayloadAndHint> {
    if argument == "-" {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        return from_bytes(bytes, form);
    }
    if let Some(path) = argument.strip_prefix('@') {
        let bytes = fs::read(path).map_err(|error| {
            UsageError(format!(
                "cannot read '{path}': {error}; to send a text that begins with @, write it as JSON: '\"@…\"'"
            ))
        })?;
        return from_bytes(bytes, form);
    }
    from_text(argument, form)
}

/// Reads a text as JSON if it parses as JSON, otherwise as text, unless `form` says which.
pub fn from_text(text: &str, form: Option<Form>) -> anyhow::Result<PayloadAndHint> {
    if form == Some(Form::Text) {
        return Ok((text_payload(text)?, None));
    }
    match json_to_msgpack(text) {
        Ok(payload) => Ok((payload, None)),
        Err(PayloadError::Json(error)) if form == Some(Form::Json) => {
            let what = beginning(text);
            Err(UsageError(format!(
                "{what} is not JSON: {error}; use --as text to store it as text"
            ))
            .into())
        }
        Err(PayloadError::Json(error)) => Ok((text_payload(text)?, hint(text, &error))),
        Err(error) => Err(UsageError(format!("the data cannot be sent: {error}")).into()),
    }
}

fn text_payload(text: &str) -> anyhow::Result<Vec<u8>> {
    let mut payload = Vec::with_capacity(text.len() + 5);
    rmp::encode::write_str(&mut payload, text)?;
    Ok(payload)
}

/// The hint for a text that begins like JSON.
fn hint(text: &str, error: &dyn Display) -> Option<String> {
    text.trim_start().starts_with(['{', '[', '"']).then(|| {
        format!(
            "{} looks like JSON but is not ({error}) and is stored as text; \
             use --as json or --as text to choose",
            beginning(text)
        )
    })
}

/// The beginning of a text.
fn beginning(text: &str) -> String {
    let text = printable(text);
    if text.chars().count() <= HINT_CHARS_MAX {
        return text;
    }
    text.chars().take(HINT_CHARS_MAX).chain(['…']).collect()
}

/// Reads bytes of a file; bytes that are not UTF-8 are stored as binary data.
fn from_bytes(bytes: Vec<u8>, form: Option<Form>) -> anyhow::Result<PayloadAndHint> {
    match String::from_utf8(bytes) {
        // The last line end belongs to the file, not to the text.
        Ok(text) => from_text(text.strip_suffix('\n').unwrap_or(&text), form),
        Err(_) if form.is_some() => {
            Err(UsageError("the data is not UTF-8; without --as it is stored unchanged".into())
                .into())
        }
        Err(error) => {
            let bytes = error.into_bytes();
            let mut payload = Vec::with_capacity(bytes.len() + 5);
            rmp::encode::write_bin(&mut payload, &bytes)?;
            Ok((payload, None))
        }
    }
}

/// The payload as JSON, or its size if JSON cannot represent it.
pub fn show(body: Option<&Body>) -> String {
    body.map(Body::payload).map_or_else(String::new, show_bytes)
}

/// The same for the bytes of a payload.
pub fn show_bytes(payload: &[u8]) -> String {
    match msgpack_to_json(payload) {
        Ok(json) => printable(&json),
        Err(_) => {
            format!("({} bytes that JSON cannot represent; --json shows them)", payload.len())
        }
    }
}

/// The payload for the standard input of a command: texts and binary data unchanged, anything else as JSON.
pub fn plain(body: Option<&Body>) -> Vec<u8> {
    let payload = body.map(Body::payload).unwrap_or_default();
    let content = content_of(payload);
    let json = || msgpack_to_json(payload).map(String::into_bytes);
    content.map_or_else(|| json().unwrap_or_else(|_| payload.to_vec()), <[u8]>::to_vec)
}

/// The content of a text or binary value.
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
        show(Some(&Body::new(&read(argument, None).unwrap().0)))
    }

    #[test]
    fn valid_json_is_stored_as_json_and_the_rest_as_text() {
        assert_eq!(shown("{\"a\": 1}"), "{\"a\":1}");
        assert_eq!(shown("17"), "17");
        assert_eq!(shown("null"), "null");
        assert_eq!(shown("hello"), "\"hello\"");
        assert_eq!(shown("{broken"), "\"{broken\"");
        assert_eq!(shown(""), "\"\"");
    }

    /// A text that was meant as JSON was stored as text without a hint.
    #[test]
    fn invalid_json_gets_a_hint() {
        for text in ["{\"to\": ann}", " [1, 2", "\"ann"] {
            let (_, hint) = from_text(text, None).unwrap();
            let hint = hint.expect(text);
            assert!(hint.starts_with(text) && hint.contains("--as text"), "{hint}");
            assert!(from_text(text, Some(Form::Json)).unwrap_err().is::<UsageError>(), "{text}");
            assert_eq!(from_text(text, Some(Form::Text)).unwrap().1, None, "{text}");
        }
        assert_eq!(from_text("hello {", None).unwrap().1, None);
        let text = Body::new(&from_text("17", Some(Form::Text)).unwrap().0);
        assert_eq!(show(Some(&text)), "\"17\"");
        assert!(from_bytes(vec![0xff], Some(Form::Text)).is_err());
    }

    #[test]
    fn numbers_that_would_lose_digits_are_refused() {
        let error = read("123456789012345678901234567890", None).unwrap_err();
        assert!(error.is::<UsageError>(), "{error}");
    }

    #[test]
    fn commands_read_texts_unchanged() {
        for (argument, expected) in [("hello", "hello"), ("{\"a\":1}", "{\"a\":1}")] {
            let body = Body::new(&read(argument, None).unwrap().0);
            assert_eq!(plain(Some(&body)), expected.as_bytes());
        }
        let binary = Body::new(&from_bytes(vec![0xff, 0], None).unwrap().0);
        assert_eq!(plain(Some(&binary)), [0xff, 0]);
    }

    #[test]
    fn a_missing_file_is_a_usage_error() {
        assert!(read("@no/such/file", None).unwrap_err().is::<UsageError>());
    }
}

//! What tasks carry, as people write and read it.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read as _};

use anyhow::Context;
use taskyard_core::Body;
use taskyard_wire::{PayloadError, json_to_msgpack, msgpack_to_json};

use crate::failure::Wrong;
use crate::output::printable;

/// What DATA is, whatever it looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// JSON; what does not parse is refused.
    Json,
    /// Text.
    Text,
}

/// A payload, and a hint where it may not be what was meant.
pub type Read = (Vec<u8>, Option<String>);

/// How much of a text a hint shows, in characters.
const HINT_CHARS_MAX: usize = 40;

/// The payload that DATA stands for: `@file` and `-` are read, the rest is taken as it is.
pub fn read(argument: &str, form: Option<Form>) -> anyhow::Result<Read> {
    if argument == "-" {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read the standard input")?;
        return from_bytes(bytes, form);
    }
    if let Some(path) = argument.strip_prefix('@') {
        let bytes = fs::read(path).map_err(|error| {
            Wrong(format!("cannot read '{path}': {error}; a text that begins with @ is '\"@…\"'"))
        })?;
        return from_bytes(bytes, form);
    }
    from_text(argument, form)
}

/// JSON when it parses as JSON, text otherwise, unless it is said what it is.
pub fn from_text(text: &str, form: Option<Form>) -> anyhow::Result<Read> {
    if form == Some(Form::Text) {
        return Ok((text_payload(text)?, None));
    }
    match json_to_msgpack(text) {
        Ok(payload) => Ok((payload, None)),
        Err(PayloadError::Json(error)) if form == Some(Form::Json) => {
            let what = beginning(text);
            Err(Wrong(format!("{what} is no JSON: {error}; to store it as text say --as text"))
                .into())
        }
        Err(PayloadError::Json(error)) => Ok((text_payload(text)?, hint(text, &error))),
        Err(error) => Err(Wrong(format!("the data cannot be sent: {error}")).into()),
    }
}

fn text_payload(text: &str) -> anyhow::Result<Vec<u8>> {
    let mut payload = Vec::with_capacity(text.len() + 5);
    rmp::encode::write_str(&mut payload, text)?;
    Ok(payload)
}

/// What to say of a text that begins as JSON does.
fn hint(text: &str, error: &dyn Display) -> Option<String> {
    text.trim_start().starts_with(['{', '[', '"']).then(|| {
        format!(
            "{} looks like JSON but is not ({error}), so it is stored as text; \
             to say which it is: --as json or --as text",
            beginning(text)
        )
    })
}

/// As much of a text as is enough to know it again.
fn beginning(text: &str) -> String {
    let text = printable(text);
    if text.chars().count() <= HINT_CHARS_MAX {
        return text;
    }
    text.chars().take(HINT_CHARS_MAX).chain(['…']).collect()
}

/// The same for what was read; what is not text is kept as binary data.
fn from_bytes(bytes: Vec<u8>, form: Option<Form>) -> anyhow::Result<Read> {
    match String::from_utf8(bytes) {
        // The line end belongs to the file, not to the text.
        Ok(text) => from_text(text.strip_suffix('\n').unwrap_or(&text), form),
        Err(_) if form.is_some() => {
            Err(Wrong("the data is not UTF-8; without --as it is kept byte for byte".into()).into())
        }
        Err(error) => {
            let bytes = error.into_bytes();
            let mut payload = Vec::with_capacity(bytes.len() + 5);
            rmp::encode::write_bin(&mut payload, &bytes)?;
            Ok((payload, None))
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
        show(Some(&Body::new(&read(argument, None).unwrap().0)))
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

    /// A text that was meant as JSON was stored as text without a word.
    #[test]
    fn what_looks_like_json_and_is_none_is_told() {
        for text in ["{\"to\": ann}", " [1, 2", "\"ann"] {
            let (_, hint) = from_text(text, None).unwrap();
            let hint = hint.expect(text);
            assert!(hint.starts_with(text) && hint.contains("--as text"), "{hint}");
            assert!(from_text(text, Some(Form::Json)).unwrap_err().is::<Wrong>(), "{text}");
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
        assert!(error.is::<Wrong>(), "{error}");
    }

    #[test]
    fn commands_read_texts_as_they_are() {
        for (argument, expected) in [("hello", "hello"), ("{\"a\":1}", "{\"a\":1}")] {
            let body = Body::new(&read(argument, None).unwrap().0);
            assert_eq!(plain(Some(&body)), expected.as_bytes());
        }
        let binary = Body::new(&from_bytes(vec![0xff, 0], None).unwrap().0);
        assert_eq!(plain(Some(&binary)), [0xff, 0]);
    }

    #[test]
    fn a_file_that_is_not_there_is_a_wrong_argument() {
        assert!(read("@no/such/file", None).unwrap_err().is::<Wrong>());
    }
}

//! The same in one JSON object and one answer, over HTTP.

use serde::{Deserialize, Serialize};

use super::{Options, StartHead, Stream};

/// A whole task.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlainRequest {
    /// The files.
    pub input: Vec<PlainFile>,
    /// How to run.
    #[serde(default)]
    pub options: Options,
    /// Which file to begin with.
    #[serde(default)]
    pub start: StartHead,
}

/// A file, as text or as base64.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlainFile {
    /// Its name.
    pub filename: String,
    /// What is in it, if that is text.
    pub text: Option<String>,
    /// What is in it.
    pub base64: Option<String>,
}

/// What came of it: exactly one of the two.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PlainAnswer {
    /// It ran to its end.
    Ok(PlainResult),
    /// It did not.
    Error(PlainResult),
}

/// What a task left behind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PlainResult {
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What it wrote.
    pub output: Vec<PlainOutput>,
    /// The format of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The result, as base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// A piece of output; what is not text has replacement characters.
#[derive(Clone, Debug, Serialize)]
pub struct PlainOutput {
    /// Where it was written.
    pub stream: Stream,
    /// What was written.
    pub text: String,
}

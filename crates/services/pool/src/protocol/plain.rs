//! The plain HTTP variant of the protocol: one JSON object as request, one as response.

use serde::{Deserialize, Serialize};

use super::{Options, StartHead, Stream};

/// A complete task.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlainRequest {
    /// The files.
    pub input: Vec<PlainFile>,
    /// How to run it.
    #[serde(default)]
    pub options: Options,
    /// The main file.
    #[serde(default)]
    pub start: StartHead,
}

/// A file, as text or as base64.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlainFile {
    /// Its name.
    pub filename: String,
    /// Its content, if that is text.
    pub text: Option<String>,
    /// Its content in base64.
    pub base64: Option<String>,
}

/// The response: exactly one of the two.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PlainAnswer {
    /// The task ended without an error.
    Ok(PlainResult),
    /// The task failed.
    Error(PlainResult),
}

/// Output and result of a task.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PlainResult {
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The output of the program.
    pub output: Vec<PlainOutput>,
    /// The format of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The result, as base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// A piece of output; bytes that are not UTF-8 become replacement characters.
#[derive(Clone, Debug, Serialize)]
pub struct PlainOutput {
    /// The stream it was written to.
    pub stream: Stream,
    /// The text.
    pub text: String,
}

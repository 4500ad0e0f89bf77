//! Parses the frames that clients send.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A text frame of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum IncomingFrame {
    /// A file, or bytes for the standard input; they follow in the next frame unless the file is to be restored.
    Input(InputHead),
    /// How to run the program.
    Options(Options),
    /// The input is complete.
    Start(StartHead),
}

/// Describes the binary frame that follows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputHead {
    /// The name of the file.
    pub filename: Option<String>,
    /// `stdin` instead of a file.
    pub stream: Option<String>,
    /// The SHA-256 of a file that was sent before, in hexadecimal.
    pub hash: Option<String>,
    /// Whether the file was sent before and is taken from the cache; no bytes follow then.
    #[serde(default)]
    pub restore: bool,
}

/// How to run the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Time limit in seconds. Without it the pool decides.
    pub duration: Option<f64>,
    /// The format of the result.
    pub format: Option<String>,
    /// Whether standard error is merged into standard output; the default is true.
    #[serde(rename = "stderrRedir")]
    pub stderr_redir: Option<bool>,
    /// Verbosity level, from 0.
    pub verbosity: Option<usize>,
}

/// Names the main file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartHead {
    /// The main file; optional if there is only one file.
    pub main: Option<String>,
}

/// Why a frame is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Unknown verb.
    #[error("unknown verb {0:?}: use input, options or start")]
    Verb(String),
    /// The JSON object after the verb is invalid.
    #[error("{verb}: {why}")]
    Body {
        /// The verb.
        verb: &'static str,
        /// What is wrong.
        why: String,
    },
}

impl Options {
    /// Merges later options: the latest value of each option counts, but a duration can only be lowered.
    pub fn then(self, later: Options) -> Self {
        let duration = match (self.duration, later.duration) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Options {
            duration,
            format: later.format.or(self.format),
            stderr_redir: later.stderr_redir.or(self.stderr_redir),
            verbosity: later.verbosity.or(self.verbosity),
        }
    }
}

impl IncomingFrame {
    /// Parses a text frame.
    pub fn read(text: &str) -> Result<Self, FrameError> {
        let (verb, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match verb {
            // The first clients of this protocol sent `add` instead of `input`.
            "input" | "add" => Ok(IncomingFrame::Input(body("input", rest)?)),
            "options" => Ok(IncomingFrame::Options(body("options", rest)?)),
            "start" => Ok(IncomingFrame::Start(body("start", rest)?)),
            other => Err(FrameError::Verb(other.chars().take(40).collect())),
        }
    }
}

fn body<T: DeserializeOwned + Default>(verb: &'static str, text: &str) -> Result<T, FrameError> {
    if text.trim().is_empty() {
        return Ok(T::default());
    }
    serde_json::from_str(text).map_err(|error| FrameError::Body { verb, why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_consist_of_a_verb_and_an_object() {
        let options = Options { duration: Some(3.0), ..Options::default() };
        assert_eq!(
            IncomingFrame::read(r#"options {"duration": 3}"#),
            Ok(IncomingFrame::Options(options))
        );
        assert_eq!(IncomingFrame::read("start"), Ok(IncomingFrame::Start(StartHead::default())));
        let head = InputHead { filename: Some("a.asy".into()), ..InputHead::default() };
        for verb in ["input", "add"] {
            let read = IncomingFrame::read(&format!(r#"{verb} {{"filename": "a.asy"}}"#));
            assert_eq!(read, Ok(IncomingFrame::Input(head.clone())));
        }
    }

    // A second `options` frame reset the first: a duration followed by a format left a task without a duration.
    #[test]
    fn later_options_change_only_their_own_fields_and_lower_the_duration() {
        let read = |text: &str| serde_json::from_str::<Options>(text).unwrap();
        let first = read(r#"{"duration": 3, "verbosity": 2, "format": "svg"}"#);
        let both = first.clone().then(read(r#"{"format": "pdf", "stderrRedir": false}"#));
        let wanted = r#"{"duration": 3, "verbosity": 2, "format": "pdf", "stderrRedir": false}"#;
        assert_eq!(both, read(wanted));
        assert_eq!(first.clone().then(read(r#"{"duration": 30}"#)), first);
        assert_eq!(first.then(read(r#"{"duration": 0}"#)).duration, Some(0.0));
        assert_eq!(Options::default().then(read(r#"{"duration": 5}"#)).duration, Some(5.0));
    }

    #[test]
    fn invalid_frames_are_refused_with_a_reason() {
        assert_eq!(IncomingFrame::read("dance {}"), Err(FrameError::Verb("dance".into())));
        assert_eq!(IncomingFrame::read(""), Err(FrameError::Verb(String::new())));
        for text in ["start {\"main\": 1}", "options []", "input {\"x\": 1}", "options {"] {
            assert!(matches!(IncomingFrame::read(text), Err(FrameError::Body { .. })), "{text}");
        }
    }
}

//! What a client says.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A text frame of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// A file, or bytes for the standard input; the next frame has them unless they are to be restored.
    Input(InputHead),
    /// How the program is to run.
    Options(Options),
    /// Everything is here.
    Start(StartHead),
}

/// What comes in the binary frame after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputHead {
    /// The name of the file.
    pub filename: Option<String>,
    /// `stdin` instead of a file.
    pub stream: Option<String>,
    /// The SHA-256 of a file that was sent before, in hexadecimal.
    pub hash: Option<String>,
    /// Whether the file was sent before and does not follow.
    #[serde(default)]
    pub restore: bool,
}

/// How the program is to run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The longest it may run, in seconds. Without it the pool decides.
    pub duration: Option<f64>,
    /// The format of the result.
    pub format: Option<String>,
    /// Whether what it writes to standard error comes as standard output; that is the usual way.
    #[serde(rename = "stderrRedir")]
    pub stderr_redir: Option<bool>,
    /// How much it tells, from 0.
    pub verbosity: Option<usize>,
}

/// Which file to begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartHead {
    /// The name of the main file; the only one if there is just one.
    pub main: Option<String>,
}

/// Why a frame is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No such verb.
    #[error("{0:?} is no verb; there are input, options and start")]
    Verb(String),
    /// What follows the verb is wrong.
    #[error("{verb}: {why}")]
    Body {
        /// The verb.
        verb: &'static str,
        /// What is wrong.
        why: String,
    },
}

impl Options {
    /// What holds after the client said more: the latest word on everything, but the least time.
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

impl Frame {
    /// Reads a text frame.
    pub fn read(text: &str) -> Result<Self, FrameError> {
        let (verb, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match verb {
            // The first clients of this protocol said `add`.
            "input" | "add" => Ok(Frame::Input(body("input", rest)?)),
            "options" => Ok(Frame::Options(body("options", rest)?)),
            "start" => Ok(Frame::Start(body("start", rest)?)),
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
    fn frames_are_verbs_and_objects() {
        let options = Options { duration: Some(3.0), ..Options::default() };
        assert_eq!(Frame::read(r#"options {"duration": 3}"#), Ok(Frame::Options(options)));
        assert_eq!(Frame::read("start"), Ok(Frame::Start(StartHead::default())));
        let head = InputHead { filename: Some("a.asy".into()), ..InputHead::default() };
        for verb in ["input", "add"] {
            let read = Frame::read(&format!(r#"{verb} {{"filename": "a.asy"}}"#));
            assert_eq!(read, Ok(Frame::Input(head.clone())));
        }
    }

    // A second word made the first one undone: three seconds and then a format were a task without a duration.
    #[test]
    fn a_later_word_changes_only_what_it_says_and_lowers_the_time() {
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
    fn anything_else_is_refused_with_a_word_about_it() {
        assert_eq!(Frame::read("dance {}"), Err(FrameError::Verb("dance".into())));
        assert_eq!(Frame::read(""), Err(FrameError::Verb(String::new())));
        for text in ["start {\"main\": 1}", "options []", "input {\"x\": 1}", "options {"] {
            assert!(matches!(Frame::read(text), Err(FrameError::Body { .. })), "{text}");
        }
    }
}

//! Encodes the frames that the gateway sends and parses those of backends.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use taskyard_core::Reason;

/// A frame to a client, with the binary frame that may follow it.
#[derive(Clone, Debug, PartialEq)]
pub enum OutgoingFrame {
    /// These files were to be restored and are not cached; the client sends them and starts again.
    Missing(Vec<MissingFile>),
    /// The position in the queue.
    Queue(QueuePosition),
    /// An announcement for the user.
    Status(String),
    /// Output of the program; the first one is empty and means that the program runs.
    Output(Stream, Vec<u8>),
    /// The result of the program.
    Result {
        /// Its format.
        format: String,
        /// Its media type.
        media: String,
        /// The file.
        bytes: Vec<u8>,
    },
    /// The task has ended; the text is the error, if there was one.
    Complete(Option<String>),
    /// The task was denied.
    Deny(String),
}

/// A file that was to be restored and is not cached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingFile {
    /// Its name.
    pub filename: String,
    /// The hash that the client sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// An output stream of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Position of a task in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuePosition {
    /// The task starts within this many seconds if all tasks ahead use their whole time; none if unknown.
    pub estimate: Option<f64>,
    /// Half of such tasks start within this many seconds; none if unknown.
    pub p50: Option<f64>,
    /// Nine of ten such tasks start within this many seconds; none if unknown.
    pub p90: Option<f64>,
    /// Number of tasks ahead.
    pub ahead: usize,
    /// Why it does not run now, as a code.
    pub reason: Cow<'static, str>,
    /// The reason as text. The protocol calls this field `words`.
    #[serde(rename = "words")]
    pub text: String,
}

impl QueuePosition {
    /// Position of a task that waits outside the queue because its client has reached its limit of tasks.
    pub fn client_limit() -> Self {
        let reason = Reason::ClientLimit;
        QueuePosition {
            estimate: None,
            p50: None,
            p90: None,
            ahead: 0,
            reason: reason.name().into(),
            text: reason.to_string(),
        }
    }
}

impl OutgoingFrame {
    /// The text frame.
    pub fn text(&self) -> String {
        let (verb, body) = match self {
            OutgoingFrame::Missing(files) => ("missing", json!(files)),
            OutgoingFrame::Queue(position) => {
                ("queue", serde_json::to_value(position).unwrap_or_default())
            }
            OutgoingFrame::Status(text) => ("status", json!({ "announcement": text })),
            OutgoingFrame::Output(stream, _) => ("output", json!({ "stream": stream })),
            OutgoingFrame::Result { format, media, .. } => {
                ("result", json!({ "format": format, "media": media }))
            }
            OutgoingFrame::Complete(None) => ("complete", json!({})),
            OutgoingFrame::Complete(Some(error)) => ("complete", json!({ "error": error })),
            OutgoingFrame::Deny(error) => ("deny", json!({ "error": error })),
        };
        format!("{verb} {body}")
    }

    /// Parses a frame of a backend; the bytes of the binary frame are set afterwards.
    pub fn read(text: &str) -> Option<Self> {
        let (verb, body) = text.split_once(' ')?;
        let body: Value = serde_json::from_str(body).ok()?;
        let text_field = |name: &str| body[name].as_str().map(str::to_owned);
        match verb {
            "status" => Some(OutgoingFrame::Status(text_field("announcement")?)),
            "output" => {
                let stream = serde_json::from_value(body["stream"].clone()).ok()?;
                Some(OutgoingFrame::Output(stream, Vec::new()))
            }
            "result" => {
                let (format, media) = (text_field("format")?, text_field("media")?);
                Some(OutgoingFrame::Result { format, media, bytes: Vec::new() })
            }
            "complete" => Some(OutgoingFrame::Complete(text_field("error"))),
            // Backends do not send frames about the queue.
            _ => None,
        }
    }

    /// Sets the bytes of the binary frame.
    pub fn set_bytes(&mut self, new: Vec<u8>) {
        if let OutgoingFrame::Output(_, bytes) | OutgoingFrame::Result { bytes, .. } = self {
            *bytes = new;
        }
    }

    /// The bytes of the binary frame, for frames that have one.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            OutgoingFrame::Output(_, bytes) | OutgoingFrame::Result { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Whether the client learns from it that the program did something.
    pub fn is_visible(&self) -> bool {
        match self {
            OutgoingFrame::Output(_, bytes) => !bytes.is_empty(),
            OutgoingFrame::Result { .. } => true,
            _ => false,
        }
    }

    /// Whether it is the last frame of a task.
    pub fn is_last(&self) -> bool {
        matches!(self, OutgoingFrame::Complete(_) | OutgoingFrame::Deny(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_documented_form() {
        let position = QueuePosition {
            estimate: Some(1.5),
            p50: Some(0.25),
            p90: None,
            ahead: 2,
            reason: "limit_reached".into(),
            text: "busy".into(),
        };
        let queue = r#"queue {"ahead":2,"estimate":1.5,"p50":0.25,"p90":null,"reason":"limit_reached","words":"busy"}"#;
        assert_eq!(OutgoingFrame::Queue(position).text(), queue);
        let output = OutgoingFrame::Output(Stream::Stderr, b"x".to_vec());
        assert_eq!(output.text(), r#"output {"stream":"stderr"}"#);
        assert_eq!(output.bytes(), Some(&b"x"[..]));
        assert_eq!(OutgoingFrame::Complete(None).text(), "complete {}");
        assert_eq!(OutgoingFrame::Deny("no".into()).text(), r#"deny {"error":"no"}"#);
        for frame in
            [output, OutgoingFrame::Complete(Some("x".into())), OutgoingFrame::Status("y".into())]
        {
            let mut read = OutgoingFrame::read(&frame.text()).unwrap();
            read.set_bytes(frame.bytes().unwrap_or_default().to_vec());
            assert_eq!(read, frame);
        }
        for wrong in
            ["", "output", "output {}", "deny {}", "queue {}", "output {", "result {\"format\": 1}"]
        {
            assert_eq!(OutgoingFrame::read(wrong), None, "{wrong}");
        }
        let file = MissingFile { filename: "a.asy".into(), hash: Some("00".into()) };
        let missing = OutgoingFrame::Missing(vec![file]).text();
        assert_eq!(missing, r#"missing [{"filename":"a.asy","hash":"00"}]"#);
    }
}

//! What the gateway says.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use taskyard_core::Reason;

/// A frame to a client, with the binary frame that may follow it.
#[derive(Clone, Debug, PartialEq)]
pub enum Outgoing {
    /// These files were to be restored and are not known; send them and start again.
    Missing(Vec<MissingFile>),
    /// Where it stands in the queue.
    Queue(QueueNews),
    /// Something a person may want to know.
    Status(String),
    /// What the program wrote; the first is empty and says that it runs.
    Output(Stream, Vec<u8>),
    /// What came out.
    Result {
        /// Its format.
        format: String,
        /// Its media type.
        media: String,
        /// The file.
        bytes: Vec<u8>,
    },
    /// The end; with a text, what went wrong.
    Complete(Option<String>),
    /// It was turned away.
    Deny(String),
}

/// A file that was to be restored and is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingFile {
    /// Its name.
    pub filename: String,
    /// What the client said it is known by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// Which output of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Where a task stands in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueNews {
    /// It starts within so many seconds, whatever the tasks before it do; nothing if nobody knows.
    pub estimate: Option<f64>,
    /// It probably starts then.
    pub expected: Option<f64>,
    /// How many wait before it.
    pub ahead: usize,
    /// Why it does not run now.
    pub reason: Cow<'static, str>,
    /// The same for a person.
    pub words: String,
}

impl QueueNews {
    /// Of a task that waits outside the queue, because its client has as many in it as it may.
    pub fn outside() -> Self {
        let reason = Reason::ClientLimit;
        let (estimate, expected, ahead) = (None, None, 0);
        QueueNews {
            estimate,
            expected,
            ahead,
            reason: reason.name().into(),
            words: reason.to_string(),
        }
    }
}

impl Outgoing {
    /// The text frame.
    pub fn text(&self) -> String {
        let (verb, body) = match self {
            Outgoing::Missing(files) => ("missing", json!(files)),
            Outgoing::Queue(news) => ("queue", serde_json::to_value(news).unwrap_or_default()),
            Outgoing::Status(text) => ("status", json!({ "announcement": text })),
            Outgoing::Output(stream, _) => ("output", json!({ "stream": stream })),
            Outgoing::Result { format, media, .. } => {
                ("result", json!({ "format": format, "media": media }))
            }
            Outgoing::Complete(None) => ("complete", json!({})),
            Outgoing::Complete(Some(error)) => ("complete", json!({ "error": error })),
            Outgoing::Deny(error) => ("deny", json!({ "error": error })),
        };
        format!("{verb} {body}")
    }

    /// Reads a frame that a backend wrote; one with bytes gets them afterwards.
    pub fn read(text: &str) -> Option<Self> {
        let (verb, body) = text.split_once(' ')?;
        let body: Value = serde_json::from_str(body).ok()?;
        let word = |name: &str| body[name].as_str().map(str::to_owned);
        match verb {
            "status" => Some(Outgoing::Status(word("announcement")?)),
            "output" => {
                let stream = serde_json::from_value(body["stream"].clone()).ok()?;
                Some(Outgoing::Output(stream, Vec::new()))
            }
            "result" => {
                let (format, media) = (word("format")?, word("media")?);
                Some(Outgoing::Result { format, media, bytes: Vec::new() })
            }
            "complete" => Some(Outgoing::Complete(word("error"))),
            // What concerns the queue is not a backend's to say.
            _ => None,
        }
    }

    /// Gives it the bytes that followed it.
    pub fn set_bytes(&mut self, new: Vec<u8>) {
        if let Outgoing::Output(_, bytes) | Outgoing::Result { bytes, .. } = self {
            *bytes = new;
        }
    }

    /// The bytes that follow it, for those frames that have some.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Outgoing::Output(_, bytes) | Outgoing::Result { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Whether a client sees by it that the program did something.
    pub fn is_visible(&self) -> bool {
        match self {
            Outgoing::Output(_, bytes) => !bytes.is_empty(),
            Outgoing::Result { .. } => true,
            _ => false,
        }
    }

    /// Whether nothing follows.
    pub fn is_last(&self) -> bool {
        matches!(self, Outgoing::Complete(_) | Outgoing::Deny(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_look_as_written_down() {
        let news = QueueNews {
            estimate: Some(1.5),
            expected: None,
            ahead: 2,
            reason: "limit_reached".into(),
            words: "busy".into(),
        };
        let queue = r#"queue {"ahead":2,"estimate":1.5,"expected":null,"reason":"limit_reached","words":"busy"}"#;
        assert_eq!(Outgoing::Queue(news).text(), queue);
        let output = Outgoing::Output(Stream::Stderr, b"x".to_vec());
        assert_eq!(output.text(), r#"output {"stream":"stderr"}"#);
        assert_eq!(output.bytes(), Some(&b"x"[..]));
        assert_eq!(Outgoing::Complete(None).text(), "complete {}");
        assert_eq!(Outgoing::Deny("no".into()).text(), r#"deny {"error":"no"}"#);
        for frame in [output, Outgoing::Complete(Some("x".into())), Outgoing::Status("y".into())] {
            let mut read = Outgoing::read(&frame.text()).unwrap();
            read.set_bytes(frame.bytes().unwrap_or_default().to_vec());
            assert_eq!(read, frame);
        }
        for wrong in
            ["", "output", "output {}", "deny {}", "queue {}", "output {", "result {\"format\": 1}"]
        {
            assert_eq!(Outgoing::read(wrong), None, "{wrong}");
        }
        let file = MissingFile { filename: "a.asy".into(), hash: Some("00".into()) };
        let missing = Outgoing::Missing(vec![file]).text();
        assert_eq!(missing, r#"missing [{"filename":"a.asy","hash":"00"}]"#);
    }
}

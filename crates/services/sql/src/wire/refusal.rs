//! What a database says when it refuses, and how it is written down.

use std::fmt::Write;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorResponseBody;

use crate::encoding::Charset;

/// What a database says when it refuses.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Refusal {
    /// `ERROR`, `FATAL` or `PANIC`.
    pub severity: String,
    /// The five characters of the SQLSTATE.
    pub code: String,
    /// What happened.
    pub message: String,
    /// Where in the text, counted in characters from 1.
    pub position: Option<String>,
    /// More about it.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// The query inside the query.
    pub query: Option<String>,
    /// Where it happened.
    pub context: Option<String>,
}

impl Refusal {
    /// One of our own, in the same form.
    pub fn own(message: impl Into<String>) -> Self {
        Refusal { severity: "ERROR".into(), message: message.into(), ..Refusal::default() }
    }

    /// The same with a detail.
    pub fn detailed(message: impl Into<String>, detail: impl Into<String>) -> Self {
        Refusal { detail: Some(detail.into()), ..Refusal::own(message) }
    }

    pub(crate) fn read(body: &ErrorResponseBody) -> Self {
        Self::read_in(body, None)
    }

    /// The same where the session may have chosen another encoding.
    pub(crate) fn read_in(body: &ErrorResponseBody, charset: Option<Charset>) -> Self {
        let mut refusal = Refusal { severity: "ERROR".into(), ..Refusal::default() };
        let mut fields = body.fields();
        // What cannot be read further is left out.
        while let Ok(Some(field)) = fields.next() {
            let value = Charset::decode(charset, field.value_bytes());
            match field.type_() {
                b'S' if refusal.severity == "ERROR" => refusal.severity = value,
                // The one that is not translated.
                b'V' => refusal.severity = value,
                b'C' => refusal.code = value,
                b'M' => refusal.message = value,
                b'P' | b'p' => refusal.position = Some(value),
                b'D' => refusal.detail = Some(value),
                b'H' => refusal.hint = Some(value),
                b'q' => refusal.query = Some(value),
                b'W' => refusal.context = Some(value),
                _ => {}
            }
        }
        refusal
    }

    /// Whether there is no room for another connection now.
    pub fn is_full(&self) -> bool {
        // 53300 too many connections, other 53: out of memory or disk; 57P03 it is starting or stopping.
        self.code.starts_with("53") || self.code == "57P03"
    }

    /// Whether the same may go well a little later: it is about the server or about somebody else.
    pub fn is_passing(&self) -> bool {
        // 25 read-only, 40 undone because of others, 53 no room, 57 interrupted, 58 the system; 55P03 locked.
        let class = self.code.get(..2).unwrap_or_default();
        ["25", "40", "53", "57", "58"].contains(&class) || self.code == "55P03"
    }

    /// Whether the session ended with it.
    pub fn is_fatal(&self) -> bool {
        self.severity == "FATAL" || self.severity == "PANIC"
    }

    /// As it stands in the column `error`; `statement` is left out where nothing was run.
    pub fn text(&self, statement: Option<&str>) -> String {
        let mut text = format!("{}:  {}", self.severity, indented(&self.message));
        if let Some(position) = &self.position {
            let _ = write!(text, " at character {position}");
        }
        for (label, part) in [
            ("DETAIL", self.detail.as_deref()),
            ("HINT", self.hint.as_deref()),
            ("QUERY", self.query.as_deref()),
            ("CONTEXT", self.context.as_deref()),
            ("STATEMENT", statement),
        ] {
            if let Some(part) = part {
                let _ = write!(text, "\n{label}:  {}", indented(part));
            }
        }
        text
    }

    /// In one line, for a log.
    pub fn line(&self) -> String {
        let mut line = self.message.clone();
        for part in [&self.detail, &self.hint].into_iter().flatten() {
            let _ = write!(line, "; {part}");
        }
        line
    }
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_its_line() {
        let refusal = Refusal {
            severity: "ERROR".into(),
            message: "multi\nline".into(),
            position: Some("8".into()),
            detail: Some("det".into()),
            hint: Some("hint".into()),
            query: Some("SELECT x".into()),
            context: Some("here".into()),
            ..Refusal::default()
        };
        let expected = "ERROR:  multi\n\tline at character 8\nDETAIL:  det\nHINT:  hint\n\
                        QUERY:  SELECT x\nCONTEXT:  here\nSTATEMENT:  SELECT\n\t1";
        assert_eq!(refusal.text(Some("SELECT\n1")), expected);
        assert_eq!(Refusal::own("task not active").text(None), "ERROR:  task not active");
    }
}

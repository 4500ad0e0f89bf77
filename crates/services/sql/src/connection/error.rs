//! An error message of PostgreSQL, and its form in the column `error`.

use std::fmt::Write;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorResponseBody;

use crate::encoding::Charset;

/// An error message of PostgreSQL, or one of the scheduler in the same form.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SqlError {
    /// `ERROR`, `FATAL` or `PANIC`.
    pub severity: String,
    /// The five characters of the SQLSTATE.
    pub code: String,
    /// The message.
    pub message: String,
    /// The position in the statement, counted in characters from 1.
    pub position: Option<String>,
    /// The detail.
    pub detail: Option<String>,
    /// The hint.
    pub hint: Option<String>,
    /// The internal query.
    pub query: Option<String>,
    /// The call stack.
    pub context: Option<String>,
}

impl SqlError {
    /// An error of the scheduler.
    pub fn new(message: impl Into<String>) -> Self {
        SqlError { severity: "ERROR".into(), message: message.into(), ..SqlError::default() }
    }

    /// An error of the scheduler with a detail.
    pub fn with_detail(message: impl Into<String>, detail: impl Into<String>) -> Self {
        SqlError { detail: Some(detail.into()), ..SqlError::new(message) }
    }

    pub(crate) fn read(body: &ErrorResponseBody) -> Self {
        Self::read_in(body, None)
    }

    /// Reads an error message in the encoding that the session has chosen.
    pub(crate) fn read_in(body: &ErrorResponseBody, charset: Option<Charset>) -> Self {
        let mut error = SqlError { severity: "ERROR".into(), ..SqlError::default() };
        let mut fields = body.fields();
        // Fields that cannot be read are left out.
        while let Ok(Some(field)) = fields.next() {
            let value = Charset::decode(charset, field.value_bytes());
            match field.type_() {
                b'S' if error.severity == "ERROR" => error.severity = value,
                // The severity that is not translated.
                b'V' => error.severity = value,
                b'C' => error.code = value,
                b'M' => error.message = value,
                b'P' | b'p' => error.position = Some(value),
                b'D' => error.detail = Some(value),
                b'H' => error.hint = Some(value),
                b'q' => error.query = Some(value),
                b'W' => error.context = Some(value),
                _ => {}
            }
        }
        error
    }

    /// Whether the server cannot accept another connection now.
    pub fn is_full(&self) -> bool {
        // 53300 too many connections, other 53: out of memory or disk; 57P03 the server is starting or stopping.
        self.code.starts_with("53") || self.code == "57P03"
    }

    /// Whether the same query may succeed a little later: the cause is the server or another transaction.
    pub fn is_transient(&self) -> bool {
        // 25 read-only, 40 transaction rollback, 53 insufficient resources, 57 operator intervention, 58 system error;
        // 55P03 lock not available.
        let class = self.code.get(..2).unwrap_or_default();
        ["25", "40", "53", "57", "58"].contains(&class) || self.code == "55P03"
    }

    /// Whether the server ended the session.
    pub fn is_fatal(&self) -> bool {
        self.severity == "FATAL" || self.severity == "PANIC"
    }

    /// The text of the column `error`; `statement` is `None` where nothing was run.
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

    /// The error in one line, for a log.
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
    fn every_field_has_its_line() {
        let error = SqlError {
            severity: "ERROR".into(),
            message: "multi\nline".into(),
            position: Some("8".into()),
            detail: Some("det".into()),
            hint: Some("hint".into()),
            query: Some("SELECT x".into()),
            context: Some("here".into()),
            ..SqlError::default()
        };
        let expected = "ERROR:  multi\n\tline at character 8\nDETAIL:  det\nHINT:  hint\n\
                        QUERY:  SELECT x\nCONTEXT:  here\nSTATEMENT:  SELECT\n\t1";
        assert_eq!(error.text(Some("SELECT\n1")), expected);
        assert_eq!(SqlError::new("task not active").text(None), "ERROR:  task not active");
    }
}

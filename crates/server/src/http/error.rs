//! Turns errors into HTTP responses.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use taskyard_core::limits::{TUBES_MAX, TUBES_RESERVED};
use taskyard_core::{Error, TubeName};
use taskyard_wire::Code;
use taskyard_wire::http::ErrorAnswer;

use super::answer;

/// A refused request: a status, and a message that says what to do.
#[derive(Debug)]
pub(crate) struct Refusal {
    code: Code,
    answer: Box<ErrorAnswer>,
    /// After how many seconds the same request may succeed.
    retry_after: Option<u32>,
}

impl Refusal {
    /// A refusal by the server itself.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Refusal::of(code, ErrorAnswer::new(code, message))
    }

    fn of(code: Code, answer: ErrorAnswer) -> Self {
        Refusal { code, answer: Box::new(answer), retry_after: code.retry_after_secs() }
    }

    /// Its code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Its message.
    pub fn message(&self) -> &str {
        &self.answer.error.message
    }

    /// Sets after how many seconds the same request may succeed.
    pub fn retry_after(self, seconds: u32) -> Self {
        Refusal { retry_after: Some(seconds), ..self }
    }

    /// An unknown tube, with advice.
    pub fn no_tube(tube: TubeName, advice: &str) -> Self {
        let message = format!("tube '{tube}' does not exist; {advice}");
        Refusal::with_message(&Error::TubeNotFound(tube), message)
    }

    /// An error of the engine with another message.
    pub fn with_message(error: &Error, message: String) -> Self {
        let mut answer = ErrorAnswer::from(error);
        answer.error.message = message;
        Refusal::of(Code::of(error), answer)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        // The name is usually mistyped in a take or a peek; creating the tube would not help.
        if let Error::TubeNotFound(tube) = error {
            return Refusal::no_tube(tube, "GET /v1/tubes lists all tubes");
        }
        if let Error::TooManyTubes(limit) = error
            && limit < TUBES_MAX
        {
            return Refusal::with_message(&error, too_many_tubes(limit));
        }
        let code = Code::of(&error);
        if code == Code::Store {
            tracing::error!(%error, "request failed");
        }
        Refusal::of(code, ErrorAnswer::from(&error))
    }
}

/// The message for a limit on tubes that is not the limit of the store.
fn too_many_tubes(limit: usize) -> String {
    if limit == TUBES_MAX - TUBES_RESERVED {
        return format!(
            "the store has {limit} tubes, and the remaining ones are reserved for an administrator; drop some tubes, or \
             start the server with a token"
        );
    }
    format!("a user may create {limit} tubes; drop some, or raise --tubes-per-user")
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status());
        let status = status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let Ok(mut response) = answer(status, &self.answer) else { return status.into_response() };
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.code == Code::Unauthorized {
            let scheme = HeaderValue::from_static("Bearer realm=\"taskyard\"");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The message for a mistyped tube name in a take suggested to create that tube.
    #[test]
    fn the_message_for_an_unknown_tube_says_where_to_look() {
        let refusal = Refusal::from(Error::TubeNotFound(TubeName::new("nope").unwrap()));
        let detail = &refusal.answer.error;
        assert_eq!(
            (detail.code.as_str(), detail.tube.as_deref()),
            ("tube_not_found", Some("nope"))
        );
        assert_eq!(detail.message, "tube 'nope' does not exist; GET /v1/tubes lists all tubes");
    }
}

//! Refusals as answers.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use taskyard_core::Error;
use taskyard_wire::Code;
use taskyard_wire::http::ErrorAnswer;

use super::answer;

/// Why a request was refused: a status, and a message that says what to do.
#[derive(Debug)]
pub(crate) struct Refusal {
    code: Code,
    answer: Box<ErrorAnswer>,
}

impl Refusal {
    /// A refusal by the server itself.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Refusal { code, answer: Box::new(ErrorAnswer::new(code, message)) }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let code = Code::of(&error);
        if code == Code::Store {
            tracing::error!(%error, "a request failed");
        }
        Refusal { code, answer: Box::new(ErrorAnswer::from(&error)) }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status());
        let status = status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let Ok(mut response) = answer(status, &self.answer) else { return status.into_response() };
        let headers = response.headers_mut();
        if let Some(seconds) = self.code.retry_after_secs() {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.code == Code::Unauthorized {
            let scheme = HeaderValue::from_static("Bearer realm=\"taskyard\"");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

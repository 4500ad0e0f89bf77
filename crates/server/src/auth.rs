//! The token: who may ask.

use std::fmt;

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use subtle::ConstantTimeEq;
use taskyard_wire::Code;

use crate::http::Refusal;

/// What stands before the token in the header.
const SCHEME: &str = "bearer ";
/// What stands before the token among the protocols of a WebSocket.
const PROTOCOL: &[u8] = b"bearer.";

/// The secret that callers show. It is never printed.
#[derive(Clone)]
pub struct Token(Box<str>);

/// Why a text cannot be a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is nothing in it.
    #[error("the token is empty; give at least one character, better 32")]
    Empty,
    /// It would not survive the way through a header.
    #[error("the token may contain visible ASCII characters only, without spaces")]
    NotVisible,
}

impl Token {
    /// The token, without the line end that files have.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::NotVisible);
        }
        Ok(Token(text.into()))
    }

    /// The token itself, for a password that is the same.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Refuses a request that does not show the token.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        if headers.get(AUTHORIZATION).is_none() && self.is_in_protocols(headers) {
            return Ok(());
        }
        let Some(value) = values.next() else {
            let message = "a token is needed; send the header 'Authorization: Bearer TOKEN'";
            return Err(Refusal::new(Code::Unauthorized, message));
        };
        let shown = bearer(value.as_bytes());
        if values.next().is_none() && shown.is_some_and(|shown| self.is(shown)) {
            return Ok(());
        }
        let message = "the token is wrong; the header is 'Authorization: Bearer TOKEN'";
        Err(Refusal::new(Code::Unauthorized, message))
    }

    /// Whether it stands among the protocols of a WebSocket, where a page can show it: a browser lets no
    /// page set other headers there.
    fn is_in_protocols(&self, headers: &HeaderMap) -> bool {
        let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
        let mut names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        names.any(|name| name.trim_ascii().strip_prefix(PROTOCOL).is_some_and(|it| self.is(it)))
    }

    /// Compares in a time that tells nothing about how much of it is right.
    fn is(&self, shown: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(shown).into()
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes()).then(|| token.trim_ascii())
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_visible_text() {
        assert!(Token::new(" secret\n").is_ok());
        assert_eq!(Token::new(" \n").unwrap_err(), TokenError::Empty);
        assert_eq!(Token::new("two words").unwrap_err(), TokenError::NotVisible);
        assert_eq!(Token::new("schlüssel").unwrap_err(), TokenError::NotVisible);
    }

    #[test]
    fn a_token_is_not_printed() {
        assert_eq!(format!("{:?}", Token::new("secret")), "Ok(Token(..))");
    }

    #[test]
    fn only_the_whole_token_is_right() {
        let token = Token::new("secret").unwrap();
        for (shown, right) in [
            ("Bearer secret", true),
            ("bearer  secret", true),
            ("Bearer secre", false),
            ("Bearer secret2", false),
            ("Basic secret", false),
            ("secret", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, shown.parse().unwrap())]);
            assert_eq!(token.check(&headers).is_ok(), right, "{shown}");
        }
        assert!(token.check(&HeaderMap::new()).is_err());
    }
}

//! The token: its format, and how a request is checked for it.

use std::fmt;

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use subtle::ConstantTimeEq;
use taskyard_core::limits::{TOKEN_CHARS_MAX, TOKEN_CHARS_MIN};

/// The prefix of the token in the Authorization header.
const SCHEME: &str = "bearer ";
/// The prefix of the token among the protocols of a WebSocket.
const PROTOCOL: &[u8] = b"bearer.";

/// The secret that callers send. It is never printed.
#[derive(Clone)]
pub struct Token(Box<str>);

/// The result of checking a request for the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenCheck {
    /// The request has no token.
    Missing,
    /// The request has a wrong token or another scheme.
    Wrong,
    /// The request has the correct token.
    Correct,
}

/// Why a text is not accepted as a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is empty.
    #[error("the token is empty; make one: openssl rand -hex 32")]
    Empty,
    /// It is short enough to be guessed.
    #[error(
        "the token has {0} characters, so it could be guessed; use at least {TOKEN_CHARS_MIN}: openssl rand -hex 32"
    )]
    Short(usize),
    /// It is too long to be sent with every request.
    #[error("the token has {0} characters; use at most {TOKEN_CHARS_MAX}")]
    Long(usize),
    /// It cannot be sent in a header.
    #[error("the token may contain visible ASCII characters only, without spaces")]
    NotVisible,
}

impl Token {
    /// Parses a token; surrounding white space is removed.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::NotVisible);
        }
        match text.len() {
            ..TOKEN_CHARS_MIN => Err(TokenError::Short(text.len())),
            TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX => Ok(Token(text.into())),
            _ => Err(TokenError::Long(text.len())),
        }
    }

    /// The text of the token, for an iproto password.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Checks the headers of a request.
    pub(crate) fn check(&self, headers: &HeaderMap) -> TokenCheck {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let Some(value) = values.next() else { return self.check_protocols(headers) };
        let shown = bearer(value.as_bytes());
        // Compared in any case, so that every wrong request takes the same time.
        let is_right = self.is(shown.unwrap_or_default());
        if values.next().is_none() && shown.is_some() && is_right {
            TokenCheck::Correct
        } else {
            TokenCheck::Wrong
        }
    }

    /// Checks the protocols of a WebSocket. A web page can send the token only there: browsers do
    /// not let it set other headers.
    fn check_protocols(&self, headers: &HeaderMap) -> TokenCheck {
        let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
        let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let tokens = names.filter_map(|name| name.trim_ascii().strip_prefix(PROTOCOL));
        tokens.fold(TokenCheck::Missing, |shown, token| {
            match self.is(token) || shown == TokenCheck::Correct {
                true => TokenCheck::Correct,
                false => TokenCheck::Wrong,
            }
        })
    }

    /// Compares in constant time, which reveals neither the token nor its length.
    fn is(&self, shown: &[u8]) -> bool {
        let equal = padded(self.0.as_bytes()).ct_eq(&padded(shown));
        (equal & self.0.len().ct_eq(&shown.len())).into()
    }
}

/// The text, padded to the length of the longest token.
fn padded(text: &[u8]) -> [u8; TOKEN_CHARS_MAX] {
    let mut bytes = [0; TOKEN_CHARS_MAX];
    let length = text.len().min(TOKEN_CHARS_MAX);
    bytes[..length].copy_from_slice(&text[..length]);
    bytes
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

    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn a_token_is_visible_text() {
        assert!(Token::new(&format!(" {TOKEN}\n")).is_ok());
        assert_eq!(Token::new(" \n").unwrap_err(), TokenError::Empty);
        assert_eq!(Token::new("two words and more").unwrap_err(), TokenError::NotVisible);
        assert_eq!(Token::new("schlüssel-schlüssel").unwrap_err(), TokenError::NotVisible);
    }

    // Any single character was accepted as a token.
    #[test]
    fn a_short_token_is_refused_with_advice() {
        let refused = Token::new(&TOKEN[1..]).unwrap_err();
        assert_eq!(refused, TokenError::Short(15));
        assert!(refused.to_string().contains("openssl rand -hex 32"), "{refused}");
        assert!(Token::new(&"x".repeat(TOKEN_CHARS_MAX)).is_ok());
        let long = Token::new(&"x".repeat(TOKEN_CHARS_MAX + 1)).unwrap_err();
        assert_eq!(long, TokenError::Long(TOKEN_CHARS_MAX + 1));
    }

    #[test]
    fn a_token_is_not_printed() {
        assert_eq!(format!("{:?}", Token::new(TOKEN)), "Ok(Token(..))");
    }

    #[test]
    fn only_the_whole_token_is_right() {
        let token = Token::new(TOKEN).unwrap();
        let long = format!("Bearer {TOKEN}{}", "x".repeat(TOKEN_CHARS_MAX));
        for (shown, right) in [
            ("Bearer 0123456789abcdef", true),
            ("bearer  0123456789abcdef", true),
            ("Bearer 0123456789abcde", false),
            ("Bearer 0123456789abcdef0", false),
            ("Basic 0123456789abcdef", false),
            ("0123456789abcdef", false),
            ("", false),
            (&long, false),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, shown.parse().unwrap())]);
            let expected = if right { TokenCheck::Correct } else { TokenCheck::Wrong };
            assert_eq!(token.check(&headers), expected, "{shown}");
        }
        assert_eq!(token.check(&HeaderMap::new()), TokenCheck::Missing);
        for (names, shown) in [
            ("taskyard.events, bearer.0123456789abcdef", TokenCheck::Correct),
            ("bearer.0123456789abcdef, bearer.wrong", TokenCheck::Correct),
            ("bearer.wrong", TokenCheck::Wrong),
            ("taskyard.events", TokenCheck::Missing),
        ] {
            let headers = HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, names.parse().unwrap())]);
            assert_eq!(token.check(&headers), shown, "{names}");
        }
    }
}

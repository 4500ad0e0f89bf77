//! The token: who may ask.

use std::fmt;

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use subtle::ConstantTimeEq;
use taskyard_core::limits::{TOKEN_CHARS_MAX, TOKEN_CHARS_MIN};

/// What stands before the token in the header.
const SCHEME: &str = "bearer ";
/// What stands before the token among the protocols of a WebSocket.
const PROTOCOL: &[u8] = b"bearer.";

/// The secret that callers show. It is never printed.
#[derive(Clone)]
pub struct Token(Box<str>);

/// What a request shows of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// No token at all.
    Nothing,
    /// Another token, or something else.
    Wrong,
    /// The token.
    Right,
}

/// Why a text cannot be a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is nothing in it.
    #[error("the token is empty; make one: openssl rand -hex 32")]
    Empty,
    /// It could be guessed.
    #[error(
        "the token has {0} characters, so it could be guessed; use at least {TOKEN_CHARS_MIN}: openssl rand -hex 32"
    )]
    Short(usize),
    /// It is too long to be shown with every request.
    #[error("the token has {0} characters; use at most {TOKEN_CHARS_MAX}")]
    Long(usize),
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
        match text.len() {
            ..TOKEN_CHARS_MIN => Err(TokenError::Short(text.len())),
            TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX => Ok(Token(text.into())),
            _ => Err(TokenError::Long(text.len())),
        }
    }

    /// The token itself, for a password that is the same.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// What a request shows.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Shown {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let Some(value) = values.next() else { return self.check_protocols(headers) };
        let shown = bearer(value.as_bytes());
        // Compared in any case, so that every wrong request costs the same.
        let is_right = self.is(shown.unwrap_or_default());
        if values.next().is_none() && shown.is_some() && is_right {
            Shown::Right
        } else {
            Shown::Wrong
        }
    }

    /// Looks among the protocols of a WebSocket, where a page can show it: a browser lets no page set other
    /// headers there.
    fn check_protocols(&self, headers: &HeaderMap) -> Shown {
        let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
        let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let tokens = names.filter_map(|name| name.trim_ascii().strip_prefix(PROTOCOL));
        tokens.fold(Shown::Nothing, |shown, token| match self.is(token) || shown == Shown::Right {
            true => Shown::Right,
            false => Shown::Wrong,
        })
    }

    /// Compares in a time that tells nothing about the token, not even its length.
    fn is(&self, shown: &[u8]) -> bool {
        let equal = padded(self.0.as_bytes()).ct_eq(&padded(shown));
        (equal & self.0.len().ct_eq(&shown.len())).into()
    }
}

/// The text in as many bytes as the longest token has.
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

    // Any one character was accepted as a token.
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
            let expected = if right { Shown::Right } else { Shown::Wrong };
            assert_eq!(token.check(&headers), expected, "{shown}");
        }
        assert_eq!(token.check(&HeaderMap::new()), Shown::Nothing);
        for (names, shown) in [
            ("taskyard.events, bearer.0123456789abcdef", Shown::Right),
            ("bearer.0123456789abcdef, bearer.wrong", Shown::Right),
            ("bearer.wrong", Shown::Wrong),
            ("taskyard.events", Shown::Nothing),
        ] {
            let headers = HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, names.parse().unwrap())]);
            assert_eq!(token.check(&headers), shown, "{names}");
        }
    }
}

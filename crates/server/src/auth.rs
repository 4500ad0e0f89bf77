//! The token: its format, and how a request is checked for it.

use std::fmt;

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use taskyard_core::limits::{TOKEN_CHARS_MAX, TOKEN_CHARS_MIN};

/// The prefix of the token in the Authorization header.
const SCHEME: &str = "bearer ";
/// The prefix of the token among the protocols of a WebSocket.
const PROTOCOL: &[u8] = b"bearer.";
/// Maximum number of tokens among the protocols of a WebSocket that are checked.
const PROTOCOL_TOKENS_MAX: usize = 4;

/// The secret that callers send. It is never printed.
#[derive(Clone)]
pub struct Token(Box<str>);

/// The tokens of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShownTokens<'a> {
    /// The request has no token.
    Missing,
    /// The request has another scheme, or several headers.
    Malformed,
    /// The request has these tokens, at least one. Only a WebSocket can have several.
    These(Vec<&'a [u8]>),
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

    /// The text of the token, for its user.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl<'a> ShownTokens<'a> {
    /// Reads the headers of a request.
    pub fn read(headers: &'a HeaderMap) -> Self {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let Some(value) = values.next() else { return ShownTokens::of_protocols(headers) };
        match bearer(value.as_bytes()) {
            Some(token) if values.next().is_none() => ShownTokens::These(vec![token]),
            _ => ShownTokens::Malformed,
        }
    }

    /// Reads the protocols of a WebSocket. A web page can send the token only there: browsers do not
    /// let it set other headers.
    fn of_protocols(headers: &'a HeaderMap) -> Self {
        let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
        let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let tokens = names.filter_map(|name| name.trim_ascii().strip_prefix(PROTOCOL));
        let tokens: Vec<_> = tokens.take(PROTOCOL_TOKENS_MAX).collect();
        if tokens.is_empty() { ShownTokens::Missing } else { ShownTokens::These(tokens) }
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
    fn a_token_is_read_from_one_header() {
        for (value, shown) in [
            ("Bearer 0123456789abcdef", Some("0123456789abcdef")),
            ("bearer  0123456789abcdef", Some("0123456789abcdef")),
            ("Bearer ", Some("")),
            ("Basic 0123456789abcdef", None),
            ("0123456789abcdef", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            let expected = shown
                .map_or(ShownTokens::Malformed, |token| ShownTokens::These(vec![token.as_bytes()]));
            assert_eq!(ShownTokens::read(&headers), expected, "{value}");
        }
        let mut twice = HeaderMap::new();
        for value in ["Bearer one", "Bearer two"] {
            twice.append(AUTHORIZATION, value.parse().unwrap());
        }
        assert_eq!(ShownTokens::read(&twice), ShownTokens::Malformed);
        assert_eq!(ShownTokens::read(&HeaderMap::new()), ShownTokens::Missing);
    }

    #[test]
    fn a_web_page_names_tokens_among_the_protocols() {
        for (names, tokens) in [
            ("taskyard.events, bearer.one", &["one"][..]),
            ("bearer.one, bearer.two", &["one", "two"]),
            ("bearer.1,bearer.2,bearer.3,bearer.4,bearer.5", &["1", "2", "3", "4"]),
            ("taskyard.events", &[]),
        ] {
            let headers = HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, names.parse().unwrap())]);
            let tokens: Vec<_> = tokens.iter().map(|token| token.as_bytes()).collect();
            let expected = match tokens.is_empty() {
                true => ShownTokens::Missing,
                false => ShownTokens::These(tokens),
            };
            assert_eq!(ShownTokens::read(&headers), expected, "{names}");
        }
    }
}

//! Parses the URL of a server and builds the request targets below it.

use crate::url::{Url, host_and_port};

/// The ports of URLs that name none.
const PORT: u16 = 80;
const ENCRYPTED_PORT: u16 = 443;

/// The URL of a server: host, port and the path before `/v1`.
#[derive(Clone)]
pub(super) struct ServerUrl {
    is_encrypted: bool,
    host: String,
    port: Option<u16>,
    /// Without a slash at its end.
    path: String,
}

impl ServerUrl {
    /// Parses a URL such as `http://127.0.0.1:7070`. A user name or password in it is ignored: the access
    /// token travels in a header.
    pub fn parse(text: &str) -> Option<Self> {
        let Url { scheme, host, port, path, .. } = Url::parse(text)?;
        let path = path.trim_end_matches('/').to_owned();
        let is_encrypted = scheme == "https" && cfg!(feature = "tls");
        (scheme == "http" || is_encrypted).then_some(ServerUrl { is_encrypted, host, port, path })
    }

    /// The URL, as it is shown to users.
    pub fn url(&self) -> String {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }

    /// Whether connections to the server are encrypted.
    #[cfg(feature = "tls")]
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// The value of the `Host` header.
    pub fn authority(&self) -> String {
        host_and_port(&self.host, self.port)
    }

    /// What to resolve and connect to.
    pub fn endpoint(&self) -> (&str, u16) {
        (&self.host, self.port.unwrap_or(if self.is_encrypted { ENCRYPTED_PORT } else { PORT }))
    }

    /// The target of a call: these segments below `/v1`.
    pub fn call(&self, segments: &[&str]) -> RequestTarget {
        let mut target = format!("{}/v1", self.path);
        for segment in segments {
            target.push('/');
            percent_encode(segment, &mut target);
        }
        RequestTarget(target)
    }

    /// The target of a path beside the API of the queue, such as `/healthz`.
    pub fn page(&self, path: &str) -> RequestTarget {
        RequestTarget(format!("{}{path}", self.path))
    }
}

/// The path and query of a request.
pub(super) struct RequestTarget(String);

impl RequestTarget {
    /// The same with one more field in its query.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        percent_encode(name, &mut self.0);
        self.0.push('=');
        percent_encode(value, &mut self.0);
        self
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Appends a path segment or a part of a query with everything but unreserved characters encoded.
fn percent_encode(text: &str, target: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            target.push(char::from(byte));
        } else {
            target.push('%');
            target.push(char::from(DIGITS[usize::from(byte >> 4)]));
            target.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_shown_as_given_but_without_credentials() {
        for (url, shown) in [
            ("http://127.0.0.1:7070", "http://127.0.0.1:7070"),
            ("http://127.0.0.1:7070/", "http://127.0.0.1:7070"),
            ("http://Queue.example/", "http://queue.example"),
            ("http://ann:secret@[::1]:80/behind/a/proxy/", "http://[::1]:80/behind/a/proxy"),
            (" http://localhost:7070 ", "http://localhost:7070"),
        ] {
            assert_eq!(
                ServerUrl::parse(url).map(|server| server.url()),
                Some(shown.into()),
                "{url}"
            );
        }
        assert_eq!(ServerUrl::parse("http://[::1]").unwrap().endpoint(), ("::1", 80));
        assert_eq!(ServerUrl::parse("http://a:1").unwrap().endpoint(), ("a", 1));
        let encrypted = ServerUrl::parse("https://a");
        assert_eq!(encrypted.is_some(), cfg!(feature = "tls"));
        assert!(encrypted.is_none_or(|server| server.endpoint() == ("a", 443)));
    }

    #[test]
    fn other_schemes_are_refused() {
        for url in ["", "localhost:7070", "ftp://a", "iproto://a"] {
            assert!(ServerUrl::parse(url).is_none(), "{url}");
        }
    }

    #[test]
    fn segments_are_encoded() {
        let server = ServerUrl::parse("http://a/b").unwrap();
        let target =
            server.call(&["tubes", "a/b ?ü.~", "take"]).with("count", "1").with("after", "a&b");
        assert_eq!(target.as_str(), "/b/v1/tubes/a%2Fb%20%3F%C3%BC.~/take?count=1&after=a%26b");
        assert_eq!(server.page("/pool/status").as_str(), "/b/pool/status");
    }
}

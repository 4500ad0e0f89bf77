//! Splits the URL of a server into its parts.

use hyper::Uri;

/// The parts of a URL such as `iproto://ann:secret@queue:3301/path`. A query or a fragment is ignored.
pub(crate) struct Url {
    pub scheme: String,
    /// User name and password, as they are after percent-decoding.
    pub user: Option<(String, String)>,
    /// In lower case; an IPv6 address without brackets.
    pub host: String,
    pub port: Option<u16>,
    /// Empty, or a path that begins with a slash.
    pub path: String,
}

impl Url {
    /// The parts; `None` if the text is not a URL with a host.
    pub fn parse(text: &str) -> Option<Self> {
        let url: Uri = text.trim().parse().ok()?;
        let authority = url.authority()?;
        let (user, address) = match authority.as_str().rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority.as_str()),
        };
        let port = match address.strip_prefix(authority.host())?.strip_prefix(':') {
            None | Some("") => None,
            Some(port) => Some(port.parse().ok()?),
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return None;
        }
        let user = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            Some((user, password)) if !user.is_empty() => {
                Some((percent_decode(user)?, percent_decode(password)?))
            }
            _ => None,
        };
        let path = if url.path() == "/" { "" } else { url.path() };
        Some(Url {
            scheme: url.scheme_str()?.to_owned(),
            user,
            host: host.to_ascii_lowercase(),
            port,
            path: path.to_owned(),
        })
    }
}

/// A URL or an address as messages show it, however malformed: what stands before its last `@` may be a password.
pub(crate) fn without_password(text: &str) -> String {
    match text.trim().rsplit_once('@') {
        Some((_, rest)) => format!("***@{rest}"),
        None => text.trim().to_owned(),
    }
}

/// Host and port as they are written in a URL; an IPv6 host gets brackets.
pub(crate) fn host_and_port(host: &str, port: Option<u16>) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    port.map_or(host.clone(), |port| format!("{host}:{port}"))
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_url() {
        let url = Url::parse(" iproto://ann:se%2Fcret@[::1]:33/a/b?c=d ").unwrap();
        assert_eq!(url.scheme, "iproto");
        assert_eq!(url.user, Some(("ann".into(), "se/cret".into())));
        assert_eq!((url.host.as_str(), url.port, url.path.as_str()), ("::1", Some(33), "/a/b"));
        assert_eq!(host_and_port(&url.host, url.port), "[::1]:33");
        let short = Url::parse("http://Queue/").unwrap();
        assert_eq!((short.host.as_str(), short.port, short.path.as_str()), ("queue", None, ""));
    }

    #[test]
    fn nothing_before_the_last_at_sign_is_shown() {
        for (text, shown) in [
            ("http://ann:se@cret@a b", "***@a b"),
            (" ann:secret@queue ", "***@queue"),
            ("http://queue:port", "http://queue:port"),
        ] {
            assert_eq!(without_password(text), shown);
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
        for text in [
            "",
            "x",
            "/v1",
            "queue:33",
            "http://",
            "http://:80",
            "http://a:x",
            "http://a:70000",
            "http://[::1",
            "http://%zz@a",
            "http://a b",
        ] {
            assert!(Url::parse(text).is_none(), "{text}");
        }
    }
}

//! The cookie of a session of the page: how it is written, and the checks of requests that use it.
//!
//! A browser sends the cookie with every request to the server, whichever page causes the request.
//! So a request that may change something must also send a value that only the page of this server
//! can read, and a WebSocket must name its origin.

use axum::http::header::{COOKIE, HOST, HeaderValue, ORIGIN, UPGRADE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, Request};
use taskyard_wire::Code;

use crate::app::App;
use crate::http::Refusal;
use crate::users::Principal;

/// The header with the value that actions of a session must send.
const CSRF: HeaderName = HeaderName::from_static("x-taskyard-csrf");
/// The header of requests that follow an input of the user. Others, such as those that refresh the
/// page, do not keep a session from ending.
const ACTIVE: HeaderName = HeaderName::from_static("x-taskyard-active");
/// Browsers accept a cookie with this prefix only over TLS and from the host itself.
const HOST_PREFIX: &str = "__Host-";
/// Maximum number of cookies with the same name that are checked. Another host of the same domain
/// may have set some.
const COOKIES_MAX: usize = 4;

/// The cookie of one server. Browsers do not separate cookies by port, so its name has the port that
/// the browser uses, or without one that of the server.
#[derive(Debug)]
pub(crate) struct SessionCookie {
    port: u16,
    is_encrypted: bool,
}

/// The ids of sessions that a request shows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShownIds<'a> {
    ids: Vec<&'a str>,
    /// Whether their cookies belong to a page that was loaded over TLS.
    is_secure: bool,
}

/// What the cookie of a request proves.
#[derive(Debug)]
pub(crate) enum ShownSession {
    /// The request has no cookie of this server.
    Missing,
    /// The session has ended.
    Ended,
    /// The session of this user goes on.
    Open(Principal),
}

impl SessionCookie {
    /// The cookie of the server at this port; `is_encrypted` if it uses TLS itself.
    pub fn new(port: u16, is_encrypted: bool) -> Self {
        SessionCookie { port, is_encrypted }
    }

    /// Whether the server uses TLS itself.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    fn name(&self, request: &HeaderMap) -> String {
        let host = request.get(HOST).and_then(|host| host.to_str().ok());
        let host = host.and_then(|host| host.parse::<Authority>().ok());
        let port = host.and_then(|host| host.port_u16()).unwrap_or(self.port);
        format!("taskyard_session_{port}")
    }

    /// The header that stores this id in the browser which sent `request`, until it is closed.
    pub fn set(&self, request: &HeaderMap, id: &str) -> Option<HeaderValue> {
        self.header(request, id, "")
    }

    /// The header that removes the cookie.
    pub fn remove(&self, request: &HeaderMap) -> Option<HeaderValue> {
        self.header(request, "", "; Max-Age=0")
    }

    fn header(&self, request: &HeaderMap, id: &str, more: &str) -> Option<HeaderValue> {
        // A proxy may have ended TLS before this server; then the browser says so.
        let origin = request.get(ORIGIN).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_secure = self.is_encrypted || origin.starts_with(b"https://");
        let (prefix, secure) = if is_secure { (HOST_PREFIX, "; Secure") } else { ("", "") };
        let name = self.name(request);
        let text = format!("{prefix}{name}={id}; Path=/; HttpOnly; SameSite=Strict{secure}{more}");
        HeaderValue::from_str(&text).ok()
    }

    /// The ids that the request shows. Another host could set the cookie without the prefix, so that
    /// one counts only where there is no other.
    pub fn ids<'a>(&self, headers: &'a HeaderMap) -> ShownIds<'a> {
        let name = self.name(headers);
        let secure = values(headers, &format!("{HOST_PREFIX}{name}"));
        if !secure.is_empty() || self.is_encrypted {
            return ShownIds { ids: secure, is_secure: true };
        }
        ShownIds { ids: values(headers, &name), is_secure: false }
    }
}

impl<'a> ShownIds<'a> {
    /// The ids.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> {
        self.ids.iter().copied()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// The values of the cookies of this name. Those of other programs may have any bytes.
fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let lines = headers.get_all(COOKIE).into_iter().map(HeaderValue::as_bytes);
    let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
    let pairs = pairs.filter_map(|pair| str::from_utf8(pair).ok()?.split_once('='));
    let values = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    values.take(COOKIES_MAX).collect()
}

/// The user of the session whose cookie a request shows. The origin of the request was checked, if
/// it has one.
pub(crate) fn session_of<B>(app: &App, request: &Request<B>) -> Result<ShownSession, Refusal> {
    let headers = request.headers();
    let ids = app.session_cookie.ids(headers);
    if ids.is_empty() {
        return Ok(ShownSession::Missing);
    }
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    // Only what passes the checks below is a use.
    let find = |id: &str, renews| app.page_sessions.find(&app.users, id, renews);
    let found = ids.iter().find_map(|id| find(id, false).map(|principal| (id, principal)));
    let Some((id, principal)) = found else { return Ok(ShownSession::Ended) };
    let origin = headers.get(ORIGIN).map(HeaderValue::as_bytes);
    if ids.is_secure && origin.is_some_and(|origin| !origin.starts_with(b"https://")) {
        let message = "the session began over TLS; a page without TLS cannot use it";
        return Err(Refusal::new(Code::Forbidden, message));
    }
    if headers.contains_key(UPGRADE) && !headers.contains_key(ORIGIN) {
        let message = "a WebSocket with the cookie of a session needs an Origin header";
        return Err(Refusal::new(Code::Forbidden, message));
    }
    if !is_safe {
        let value = headers.get(&CSRF).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_of_page =
            principal.session().is_some_and(|session| app.page_sessions.has_csrf(session, value));
        if !is_of_page {
            let message = "the header X-Taskyard-CSRF is missing or wrong; a request with the cookie \
                           of a session needs it, and GET /v1/session shows its value";
            return Err(Refusal::new(Code::Forbidden, message));
        }
    }
    if !is_safe || headers.contains_key(&ACTIVE) {
        find(id, true);
    }
    Ok(ShownSession::Open(principal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    #[test]
    fn the_cookie_is_secure_where_the_browser_uses_tls() {
        let plain = "taskyard_session_7070=x; Path=/; HttpOnly; SameSite=Strict";
        let secure = "__Host-taskyard_session_7070=x; Path=/; HttpOnly; SameSite=Strict; Secure";
        let proxied = request(&[(ORIGIN, "https://queue.example")]);
        let direct = request(&[(ORIGIN, "http://queue.example")]);
        let (open, encrypted) = (SessionCookie::new(7070, false), SessionCookie::new(7070, true));
        for (cookie, headers, text) in [
            (&open, &HeaderMap::new(), plain),
            (&open, &direct, plain),
            (&open, &proxied, secure),
            (&encrypted, &HeaderMap::new(), secure),
            (&encrypted, &proxied, secure),
        ] {
            assert_eq!(cookie.set(headers, "x").unwrap(), text);
            let removed = text.replace("=x;", "=;") + "; Max-Age=0";
            assert_eq!(cookie.remove(headers).unwrap(), removed.as_str());
        }
    }

    #[test]
    fn ids_are_read_from_the_cookies_of_this_server_only() {
        let open = SessionCookie::new(7070, false);
        for (lines, ids) in [
            (&["taskyard_session_7070=a"][..], &["a"][..]),
            (&["other=1; taskyard_session_7070=a;x=2"], &["a"]),
            (&["taskyard_session_7070=a; __Host-taskyard_session_7070=b"], &["b"]),
            (&["name=J\u{f6}rg; taskyard_session_7070=a"], &["a"]),
            (&["taskyard_session_7070=a", "taskyard_session_7070=b"], &["a", "b"]),
            (&["taskyard_session_7071=a; taskyard_session_707=b; Taskyard_session_7070=c"], &[]),
            (&["taskyard_session_7070", "=", ";;"], &[]),
            (&[], &[]),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| (COOKIE, *line)).collect();
            assert_eq!(open.ids(&request(&lines)).ids, ids, "{lines:?}");
        }
        let many = vec![(COOKIE, "taskyard_session_7070=a"); COOKIES_MAX + 1];
        assert_eq!(open.ids(&request(&many)).ids.len(), COOKIES_MAX);
        // Two servers at different ports of one host, which are the same port of their machines.
        let other = request(&[(HOST, "queue.example:8001"), (COOKIE, "taskyard_session_8001=a")]);
        assert_eq!(open.ids(&other).ids, ["a"]);
        assert!(open.set(&other, "x").unwrap().as_bytes().starts_with(b"taskyard_session_8001=x;"));
        // Another host could set the cookie without the prefix.
        let encrypted = SessionCookie::new(7070, true);
        let both = "taskyard_session_7070=a; __Host-taskyard_session_7070=b";
        let both = request(&[(COOKIE, both)]);
        assert_eq!(encrypted.ids(&both), ShownIds { ids: vec!["b"], is_secure: true });
    }
}

//! Checks every request: host name, origin, token and content type.
//!
//! A page of another site may send requests to this machine. It cannot use one of the server's host
//! names, cannot hide its origin, and cannot send JSON without a preflight request.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Request as HttpRequest};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use taskyard_wire::Code;

use crate::app::{App, SharedApp};
use crate::auth::ShownTokens;
use crate::dashboard;
use crate::http::{self, Refusal};
use crate::metrics::CountedRequest;
use crate::session_cookie::{ShownSession, session_of};
use crate::users::{Principal, TokenHash};
use crate::worker_origins::LatestWorker;

/// Endpoints that need no token, in addition to the dashboard: they show nothing about tasks.
const OPEN: [&str; 2] = ["/healthz", "/openapi.json"];
/// A longer Host header is not remembered.
const HOST_BYTES_MAX: usize = 256;
/// How often a connection with the correct token renews the proof for its address.
const PROVE_EVERY_SECONDS: u64 = 60;

/// The connection over which a request arrived.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    /// The address of the client.
    pub peer: IpAddr,
    /// The fingerprint of the last correct token that was sent on it, or 0.
    pub proven_token: AtomicU64,
    /// When the proof was last renewed, in seconds since the server started.
    pub proven: AtomicU64,
    /// The first Host header with which a guest was admitted.
    pub admitted_host: OnceLock<Box<str>>,
    /// The worker of its latest take.
    pub worker: Mutex<LatestWorker>,
}

/// Admits or refuses a request, counts it, and sets the headers of every response.
pub(crate) async fn admit(
    State(app): State<SharedApp>,
    mut request: Request,
    next: Next,
) -> Response {
    let counted = app.requests.begin(&request);
    let client = request.extensions().get::<Arc<ClientConnection>>();
    let response = match check(&app, &request, client) {
        Ok(principal) => {
            request.extensions_mut().insert(principal);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    };
    finish(&app, counted, response)
}

/// Counts a request and its response, and sets the headers of every response.
pub(crate) fn finish(app: &App, counted: CountedRequest, response: Response) -> Response {
    let mut response = http::count(app, response);
    app.requests.end(counted, response.status());
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// The user that sends the request. What the user may do is checked with each command; see
/// `http::RequestApp`.
pub(crate) fn check<B>(
    app: &App,
    request: &HttpRequest<B>,
    client: Option<&Arc<ClientConnection>>,
) -> Result<Principal, Refusal> {
    let headers = request.headers();
    check_origin(headers, app.session_cookie.is_encrypted())?;
    let guest = app.users.guest();
    let may_be_guest = guest.permissions().allows_anything();
    let as_guest = || {
        if may_be_guest {
            // A page of another site could use its own name for this server, and the rights of the guest.
            app.hosts.check_once(headers, client.map(|client| &client.admitted_host))?;
        }
        Ok(guest.clone())
    };
    if app.users.is_empty() {
        return as_guest();
    }
    if is_open(app, request.uri().path()) || http::is_sign_in(request) {
        return Ok(guest);
    }
    match ShownTokens::read(headers) {
        ShownTokens::Missing => match session_of(app, request)? {
            ShownSession::Open(principal) => Ok(principal),
            ShownSession::Missing if may_be_guest => as_guest(),
            // The page has to know that the rights of its user are gone; what it asks next is who it is.
            ShownSession::Ended if may_be_guest && http::is_session(request) => as_guest(),
            ShownSession::Ended => {
                Err(Refusal::new(Code::Unauthorized, "the session has ended; sign in again"))
            }
            ShownSession::Missing => {
                let message = "a token is needed; send the header 'Authorization: Bearer TOKEN'";
                Err(Refusal::new(Code::Unauthorized, message))
            }
        },
        ShownTokens::Malformed => log_in(app, client, &[]),
        ShownTokens::These(tokens) => {
            let hashes: Vec<_> = tokens.into_iter().map(TokenHash::of).collect();
            log_in(app, client, &hashes)
        }
    }
}

/// The user with one of these tokens. Guessing is slowed down: a token that was correct at this
/// address in the last minutes is never refused, nor is the correct token of a listed user, which is
/// random and cannot be guessed; all others share the attempts of the address.
pub(crate) fn log_in(
    app: &App,
    caller: Option<&Arc<ClientConnection>>,
    tokens: &[TokenHash],
) -> Result<Principal, Refusal> {
    let peer = caller.map_or(Ipv4Addr::UNSPECIFIED.into(), |caller| caller.peer);
    let now = Instant::now();
    let of_token = |token: &TokenHash| Some((*token, app.users.with_secret(token)?));
    let (token, found) = match tokens.iter().find_map(of_token) {
        Some((token, principal)) => (Some(token), Some(principal)),
        // All of them are one attempt.
        None => (TokenHash::all(tokens), None),
    };
    let (number, name) = token.as_ref().map(TokenHash::fingerprint).unwrap_or_default();
    let name = Some(name.as_str()).filter(|name| !name.is_empty());
    let is_proven = |caller: &Arc<ClientConnection>| {
        number != 0 && caller.proven_token.load(Ordering::Relaxed) == number
    };
    let is_known = found.is_some() && caller.is_some_and(is_proven);
    let is_random = found.as_ref().is_some_and(Principal::is_listed);
    if !is_known
        && !is_random
        && let Err(wait) = app.throttle.admit(peer, name, now)
    {
        let seconds = wait.as_secs_f64().ceil().max(1.0) as u32;
        let message = format!("too many logins from this address failed; try again in {seconds} s");
        return Err(Refusal::new(Code::Overloaded, message).retry_after(seconds));
    }
    let Some(principal) = found else {
        app.throttle.failed(peer, name, now);
        let message = "the token is wrong; the header is 'Authorization: Bearer TOKEN'";
        return Err(Refusal::new(Code::Unauthorized, message));
    };
    if let Some(caller) = caller {
        caller.proven_token.store(number, Ordering::Relaxed);
        // A connection that stays open renews the proof for its address from time to time.
        let seconds = app.started.elapsed().as_secs() + 1;
        if seconds >= caller.proven.load(Ordering::Relaxed) + PROVE_EVERY_SECONDS || !is_known {
            caller.proven.store(seconds, Ordering::Relaxed);
            app.throttle.succeeded(peer, name, now);
        }
    }
    Ok(principal)
}

fn is_open(app: &App, path: &str) -> bool {
    let is_extra = app.extra_routes.iter().any(|extra_routes| (extra_routes.is_open)(path));
    OPEN.contains(&path) || dashboard::has(path) || is_extra
}

/// Refuses content that is not JSON where JSON is required: in a POST, PUT or PATCH, and in any
/// body.
pub(crate) fn require_json<B: HttpBody>(request: &HttpRequest<B>) -> Result<(), Refusal> {
    let changes = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
    let needed = changes || !request.body().is_end_stream();
    if needed && !is_json(request.headers()) {
        let message = "send JSON with the header 'Content-Type: application/json'";
        return Err(Refusal::new(Code::UnsupportedMediaType, message));
    }
    Ok(())
}

/// Refuses a query string where none is defined, because it would be ignored.
pub(crate) fn refuse_query<B>(request: &HttpRequest<B>) -> Result<(), Refusal> {
    if request.uri().query().is_some_and(|query| !query.is_empty()) {
        let message = "this endpoint has no query parameters; put the fields into the JSON body";
        return Err(Refusal::new(Code::Invalid, message));
    }
    Ok(())
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE);
    if value.is_some_and(|value| value == "application/json") {
        return true;
    }
    let value = value.and_then(|value| value.to_str().ok());
    let kind = value.and_then(|value| value.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

/// The host names under which the server may be called while no token protects it.
#[derive(Debug)]
pub(crate) struct AllowedHosts {
    bound: IpAddr,
    /// The port of the server.
    pub port: u16,
    names: Vec<String>,
}

impl AllowedHosts {
    /// The names of this address, and `names`.
    pub fn new(bound: SocketAddr, names: Vec<String>) -> Self {
        AllowedHosts { bound: bound.ip(), port: bound.port(), names }
    }

    /// The same for a connection, whose requests usually have the same host.
    fn check_once(
        &self,
        headers: &HeaderMap,
        admitted: Option<&OnceLock<Box<str>>>,
    ) -> Result<(), Refusal> {
        let host = only(headers, HOST)?;
        let known = admitted.and_then(OnceLock::get);
        if known.is_some_and(|known| host == Some(known)) {
            return Ok(());
        }
        self.check(headers)?;
        if let (Some(admitted), Some(host)) = (admitted, host)
            && host.len() <= HOST_BYTES_MAX
        {
            // The first one stays: a connection with several hosts is rare.
            _ = admitted.set(host.into());
        }
        Ok(())
    }

    fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(host) = only(headers, HOST)? else {
            return Err(Refusal::new(Code::Invalid, "the Host header is missing"));
        };
        if authority(host).is_some_and(|host| self.has(host.host())) {
            return Ok(());
        }
        Err(Refusal::new(
            Code::Forbidden,
            "the server does not answer to this Host; use 127.0.0.1 or localhost, set a token, or \
             allow the name with --host-name",
        ))
    }

    fn has(&self, host: &str) -> bool {
        if host.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let plain = host.trim_start_matches('[').trim_end_matches(']');
        match plain.parse::<IpAddr>() {
            // A foreign name cannot look like a bare address, so a server that listens on all
            // addresses accepts each of them.
            Ok(ip) => ip.is_loopback() || ip == self.bound || self.bound.is_unspecified(),
            Err(_) => self.names.iter().any(|name| name.eq_ignore_ascii_case(host)),
        }
    }
}

/// Refuses requests from a page of another site.
fn check_origin(headers: &HeaderMap, is_encrypted: bool) -> Result<(), Refusal> {
    let Some(origin) = only(headers, ORIGIN)? else { return Ok(()) };
    let host = only(headers, HOST)?.unwrap_or_default();
    // A page that was loaded without TLS may come from any host in the network.
    if is_same(origin, host) && (!is_encrypted || origin.starts_with("https://")) {
        return Ok(());
    }
    let message = "the request comes from a page of another site; that is never allowed. A proxy has \
                   to pass the Host header of the browser on";
    Err(Refusal::new(Code::Forbidden, message))
}

fn is_same(origin: &str, host: &str) -> bool {
    let Some((scheme, origin)) = origin.split_once("://") else { return false };
    let port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let (Some(origin), Some(host)) = (authority(origin), authority(host)) else { return false };
    origin.host().eq_ignore_ascii_case(host.host())
        && origin.port_u16().unwrap_or(port) == host.port_u16().unwrap_or(port)
}

/// The value of a header that may occur once.
fn only(headers: &HeaderMap, name: axum::http::HeaderName) -> Result<Option<&str>, Refusal> {
    let mut values = headers.get_all(&name).iter();
    let value = values.next().map(|value| value.to_str());
    match (value, values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value)),
        _ => Err(Refusal::new(Code::Invalid, format!("the {name} header is not one plain text"))),
    }
}

/// Host and port, without user information.
fn authority(text: &str) -> Option<Authority> {
    text.parse::<Authority>().ok().filter(|_| !text.contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(bound: &str) -> AllowedHosts {
        AllowedHosts::new(bound.parse().unwrap(), vec!["queue.example".into()])
    }

    fn allowed(bound: &str, host: &str) -> bool {
        hosts(bound).check(&HeaderMap::from_iter([(HOST, host.parse().unwrap())])).is_ok()
    }

    #[test]
    fn a_server_on_loopback_answers_to_its_own_names_only() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:7070",
            "localhost:7070",
            "LOCALHOST",
            "[::1]:7070",
            "127.9.9.9",
            "queue.example:80",
        ] {
            assert!(allowed("127.0.0.1:7070", host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1",
            "user@localhost",
            "",
            "127.0.0.1.evil.example",
            "[::2]",
        ] {
            assert!(!allowed("127.0.0.1:7070", host), "{host}");
        }
    }

    #[test]
    fn a_server_on_all_addresses_answers_to_addresses_but_not_to_foreign_names() {
        assert!(allowed("0.0.0.0:7070", "10.0.0.1:7070"));
        assert!(allowed("10.0.0.1:7070", "10.0.0.1:7070"));
        assert!(!allowed("10.0.0.1:7070", "10.0.0.2:7070"));
        assert!(!allowed("0.0.0.0:7070", "evil.example:7070"));
    }

    #[test]
    fn an_origin_is_the_same_or_refused() {
        for (origin, host, same) in [
            ("http://localhost:7070", "localhost:7070", true),
            ("http://LocalHost:7070", "localhost:7070", true),
            ("https://queue.example", "queue.example", true),
            ("https://queue.example:443", "queue.example", true),
            ("http://localhost:7071", "localhost:7070", false),
            ("http://localhost", "localhost:7070", false),
            ("http://evil.example", "localhost:7070", false),
            ("null", "localhost:7070", false),
            ("file://", "localhost:7070", false),
            ("http://localhost:7070", "", false),
        ] {
            assert_eq!(is_same(origin, host), same, "{origin} {host}");
        }
    }

    #[test]
    fn a_page_without_tls_is_another_site_for_a_server_with_tls() {
        let origin = |origin: &str| {
            let pairs = [(ORIGIN, origin), (HOST, "queue.example:7070")];
            HeaderMap::from_iter(pairs.map(|(name, value)| (name, value.parse().unwrap())))
        };
        let (plain, encrypted) =
            (origin("http://queue.example:7070"), origin("https://queue.example:7070"));
        assert!(check_origin(&plain, false).is_ok() && check_origin(&encrypted, false).is_ok());
        assert!(check_origin(&plain, true).is_err() && check_origin(&encrypted, true).is_ok());
    }

    #[test]
    fn json_is_recognised_with_and_without_a_charset() {
        for (value, json) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain", false),
            ("application/jsonx", false),
            ("text/plain; application/json", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, value.parse().unwrap())]);
            assert_eq!(is_json(&headers), json, "{value}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}

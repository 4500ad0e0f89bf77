//! Sends requests over connections that are kept open between requests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

#[cfg(feature = "tls")]
use crate::tls::{Encryption, EncryptionError};

use super::server_url::{RequestTarget, ServerUrl};

/// What the server's list of workers shows as the version.
const AGENT: &str = concat!("taskyard/", env!("CARGO_PKG_VERSION"));
/// How long a server may take to accept a connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long a connection is kept open while no request uses it: less than servers and firewalls keep it.
const IDLE_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a kept connection may take to be ready: it may still be sending the end of a request that was refused early.
const READY_MAX: Duration = Duration::from_millis(100);
/// How many connections are kept open while no request uses them.
const IDLE_MAX: usize = 64;

/// A request before it is sent.
pub(super) struct HttpCall {
    method: Method,
    target: RequestTarget,
    body: Option<serde_json::Result<Vec<u8>>>,
}

impl HttpCall {
    pub fn new(method: Method, target: RequestTarget) -> Self {
        HttpCall { method, target, body: None }
    }

    /// Sets a JSON body.
    pub fn json<B: Serialize>(self, body: &B) -> Self {
        HttpCall { body: Some(serde_json::to_vec(body)), ..self }
    }
}

/// Why there is no response.
#[derive(Debug)]
pub(super) enum RequestError {
    /// With the message of the system.
    Failed(String),
    /// The server cannot prove who it is: another try does not help.
    #[cfg_attr(
        not(feature = "tls"),
        expect(dead_code, reason = "only encrypted servers are checked")
    )]
    Untrusted(String),
}

impl From<String> for RequestError {
    fn from(why: String) -> Self {
        RequestError::Failed(why)
    }
}

/// The HTTP connections to one server. Clones share them.
#[derive(Clone)]
pub(super) struct ConnectionPool {
    server: Arc<ServerUrl>,
    token: Option<HeaderValue>,
    /// For an encrypted server; the error is reported at the first connection.
    #[cfg(feature = "tls")]
    encryption: Option<Result<Encryption, String>>,
    /// Connections without a request, and since when.
    idle: Arc<Mutex<Vec<(HttpConnection, Instant)>>>,
}

type HttpConnection = SendRequest<Full<Bytes>>;

impl ConnectionPool {
    pub fn new(server: ServerUrl) -> Self {
        ConnectionPool {
            server: Arc::new(server),
            token: None,
            #[cfg(feature = "tls")]
            encryption: None,
            idle: Arc::default(),
        }
    }

    /// Sets how connections are encrypted.
    #[cfg(feature = "tls")]
    pub fn with_encryption(self, encryption: Result<Encryption, String>) -> Self {
        ConnectionPool { encryption: Some(encryption), idle: Arc::default(), ..self }
    }

    /// Sets the value of the `Authorization` header.
    pub fn with_token(self, token: HeaderValue) -> Self {
        ConnectionPool { token: Some(token), ..self }
    }

    pub fn server(&self) -> &ServerUrl {
        &self.server
    }

    /// Sends a call and reads the whole response, within this time.
    pub async fn send(
        &self,
        call: HttpCall,
        within: Duration,
    ) -> Result<(StatusCode, Bytes), RequestError> {
        let request = self.request(call)?;
        match timeout(within, self.exchange(request)).await {
            Ok(response) => response,
            Err(_) => Err(format!("no response within {} s", within.as_secs()).into()),
        }
    }

    fn request(&self, call: HttpCall) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder()
            .method(call.method)
            .uri(call.target.as_str())
            .header(HOST, self.server.authority())
            .header(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let body = match call.body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                body.map_err(|error| error.to_string())?
            }
            None => Vec::new(),
        };
        request.body(Full::from(body)).map_err(|error| error.to_string())
    }

    async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), RequestError> {
        loop {
            let (mut connection, reused) = self.connection().await?;
            let response = match connection.try_send_request(request).await {
                Ok(response) => response,
                Err(mut failed) => match failed.take_message() {
                    // The server closed an idle connection before any byte of the request was sent.
                    Some(unsent) if reused => {
                        request = unsent;
                        continue;
                    }
                    _ => return Err(root_cause(failed.error()).into()),
                },
            };
            let status = response.status();
            let body = response.into_body().collect().await;
            let body = body.map_err(|error| root_cause(&error))?.to_bytes();
            self.keep(connection);
            return Ok((status, body));
        }
    }

    /// A connection that can take a request, and whether it has served one before.
    async fn connection(&self) -> Result<(HttpConnection, bool), RequestError> {
        loop {
            let Some((mut idle, since)) = self.lock().pop() else { break };
            let is_fresh = since.elapsed() < IDLE_TIME_MAX;
            if is_fresh && matches!(timeout(READY_MAX, idle.ready()).await, Ok(Ok(()))) {
                return Ok((idle, true));
            }
        }
        #[cfg(feature = "tls")]
        if let Some(Err(why)) = &self.encryption {
            return Err(RequestError::Untrusted(why.clone()));
        }
        let connecting = timeout(CONNECT_MAX, TcpStream::connect(self.server.endpoint()));
        let stream = match connecting.await {
            Ok(stream) => stream.map_err(|error| error.to_string())?,
            Err(_) => {
                return Err(format!("no connection within {} s", CONNECT_MAX.as_secs()).into());
            }
        };
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        #[cfg(feature = "tls")]
        if let Some(Ok(encryption)) = &self.encryption {
            let connecting = encryption.connect(self.server.endpoint().0, stream);
            let stream = match timeout(CONNECT_MAX, connecting).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(EncryptionError::Failed(error))) => return Err(error.to_string().into()),
                Ok(Err(EncryptionError::Untrusted(why))) => {
                    return Err(RequestError::Untrusted(why));
                }
                Err(_) => return Err(format!("no TLS within {} s", CONNECT_MAX.as_secs()).into()),
            };
            return Ok((open(stream).await?, false));
        }
        Ok((open(stream).await?, false))
    }

    fn keep(&self, connection: HttpConnection) {
        let mut idle = self.lock();
        idle.retain(|(_, since)| since.elapsed() < IDLE_TIME_MAX);
        if idle.len() < IDLE_MAX && !connection.is_closed() {
            idle.push((connection, Instant::now()));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(HttpConnection, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens an HTTP connection over a stream.
async fn open<S>(stream: S) -> Result<HttpConnection, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let opened = handshake(TokioIo::new(stream)).await;
    let (connection, driver) = opened.map_err(|error| root_cause(&error))?;
    // Its errors reach the request that uses the connection; the task ends with the connection.
    tokio::spawn(driver);
    Ok(connection)
}

/// The innermost cause, which is the message of the system.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use super::*;

    /// A system without root certificates refused the client before its own could be set.
    #[tokio::test]
    async fn missing_root_certificates_are_reported_at_the_first_connection() {
        let server = ServerUrl::parse("https://127.0.0.1:1").unwrap();
        let pool = ConnectionPool::new(server.clone()).with_encryption(Err("no roots".into()));
        let call = HttpCall::new(Method::GET, server.call(&["tubes"]));
        let error = pool.send(call, CONNECT_MAX).await.unwrap_err();
        assert!(matches!(&error, RequestError::Untrusted(why) if why == "no roots"), "{error:?}");
    }
}

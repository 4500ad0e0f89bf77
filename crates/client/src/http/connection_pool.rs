//! Sends requests over connections that are kept open between requests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};

#[cfg(feature = "tls")]
use crate::tls::{Encryption, EncryptionError};
#[cfg(feature = "tls")]
use taskyard_tls::explain;

use super::server_url::{RequestTarget, ServerUrl};
use super::stream::{HttpDialer, HttpOverTcp};
use crate::error::HttpError;

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

impl RequestError {
    /// The error for the caller of a request to the server at this address.
    pub fn of_server(self, url: String) -> HttpError {
        match self {
            // A server that speaks first, as that of another protocol does.
            RequestError::Failed(why) if why.contains("unexpected message") => {
                let what = "it does not speak HTTP; a taskyard server does on port 7070, and has clients of Tarantool's queue on port 3301";
                HttpError::NotTaskyard { url, what: what.into() }
            }
            RequestError::Failed(why) => HttpError::Unreachable { url, why },
            RequestError::Untrusted(why) => HttpError::Certificates(why),
        }
    }
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
    /// Opens the connections.
    dialer: Arc<dyn HttpDialer>,
    token: Option<HeaderValue>,
    /// The largest response.
    answer_bytes_max: usize,
    /// For an encrypted server.
    #[cfg(feature = "tls")]
    encryption: Option<Encryption>,
    /// Connections without a request, and since when.
    idle: Arc<Mutex<Vec<(HttpConnection, Instant)>>>,
}

type HttpConnection = SendRequest<Full<Bytes>>;

/// A response that is read part by part.
pub(super) struct StreamedResponse {
    pool: ConnectionPool,
    pub status: StatusCode,
    body: Incoming,
    /// How long each part may take.
    within: Duration,
    /// The response ends with its connection.
    _connection: HttpConnection,
}

impl StreamedResponse {
    /// The next part; `None` at the end of a complete response.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RequestError> {
        loop {
            let frame = match timeout(self.within, self.body.frame()).await {
                Ok(Some(frame)) => frame.map_err(|error| self.pool.failure(&error))?,
                Ok(None) => return Ok(None),
                Err(_) => {
                    return Err(format!("nothing within {} s", self.within.as_secs()).into());
                }
            };
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// The rest of a short response.
    pub async fn collect(self) -> Result<Bytes, RequestError> {
        let StreamedResponse { pool, body, .. } = self;
        let body = Limited::new(body, pool.answer_bytes_max).collect().await;
        Ok(body.map_err(|error| pool.failure(&*error))?.to_bytes())
    }
}

impl ConnectionPool {
    pub fn new(server: ServerUrl) -> Self {
        ConnectionPool {
            server: Arc::new(server),
            dialer: Arc::new(HttpOverTcp),
            token: None,
            answer_bytes_max: usize::MAX,
            #[cfg(feature = "tls")]
            encryption: None,
            idle: Arc::default(),
        }
    }

    /// Sets how connections are encrypted.
    #[cfg(feature = "tls")]
    pub fn with_encryption(self, encryption: Encryption) -> Self {
        ConnectionPool { encryption: Some(encryption), idle: Arc::default(), ..self }
    }

    /// How connections are encrypted, if they are.
    #[cfg(feature = "tls")]
    pub fn encryption(&self) -> Option<&Encryption> {
        self.encryption.as_ref()
    }

    /// Sets what opens the connections.
    pub fn with_dialer(self, dialer: Arc<dyn HttpDialer>) -> Self {
        ConnectionPool { dialer, idle: Arc::default(), ..self }
    }

    /// Sets the value of the `Authorization` header.
    pub fn with_token(self, token: HeaderValue) -> Self {
        ConnectionPool { token: Some(token), ..self }
    }

    /// Sets the largest response, in bytes.
    pub fn with_answer_bytes_max(self, answer_bytes_max: usize) -> Self {
        ConnectionPool { answer_bytes_max, ..self }
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

    /// Sends a call and returns the response as soon as it begins, within this time.
    pub async fn open(
        &self,
        call: HttpCall,
        within: Duration,
    ) -> Result<StreamedResponse, RequestError> {
        let request = self.request(call)?;
        match timeout(within, self.begin(request)).await {
            Ok(begun) => {
                let (response, connection) = begun?;
                let (pool, status) = (self.clone(), response.status());
                let body = response.into_body();
                Ok(StreamedResponse { pool, status, body, within, _connection: connection })
            }
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
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), RequestError> {
        let (response, connection) = self.begin(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), self.answer_bytes_max).collect().await;
        let body = body.map_err(|error| self.failure(&*error))?.to_bytes();
        self.keep(connection);
        Ok((status, body))
    }

    /// Sends a request and waits for the beginning of its response.
    async fn begin(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, HttpConnection), RequestError> {
        loop {
            let (mut connection, reused) = self.connection().await?;
            match connection.try_send_request(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(mut failed) => match failed.take_message() {
                    // The server closed an idle connection before any byte of the request was sent.
                    Some(unsent) if reused => {
                        request = unsent;
                        continue;
                    }
                    _ => return Err(self.failure(failed.error())),
                },
            }
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
        if let Some(why) = self.encryption().and_then(Encryption::problem) {
            return Err(RequestError::Untrusted(why.into()));
        }
        let (host, port) = self.server.endpoint();
        let stream = match timeout(CONNECT_MAX, self.dialer.dial(host, port)).await {
            Ok(stream) => stream.map_err(|error| error.to_string())?,
            Err(_) => {
                return Err(format!("no connection within {} s", CONNECT_MAX.as_secs()).into());
            }
        };
        #[cfg(feature = "tls")]
        if let Some(encryption) = &self.encryption {
            let connecting = encryption.connect(host, stream);
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

    /// Why a request failed. A server refuses the certificate of a client only after the client has begun to send.
    fn failure(&self, error: &(dyn std::error::Error + 'static)) -> RequestError {
        #[cfg(feature = "tls")]
        if self.encryption.is_some() {
            let mut causes = std::iter::successors(Some(error), |error| error.source());
            let refused =
                causes.find_map(|cause| explain(self.server.endpoint().0, cause.downcast_ref()?));
            if let Some(why) = refused {
                return RequestError::Untrusted(why);
            }
        }
        RequestError::Failed(root_cause(error))
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

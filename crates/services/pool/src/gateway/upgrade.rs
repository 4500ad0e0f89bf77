//! Upgrades a request to a WebSocket and closes the connection so that the client receives the last frame.
//!
//! The system resets a connection that is closed while bytes of the client are unread, and the client then loses what
//! it has not read yet. So everything the client still sends is read, up to a limit, before the connection is closed.
//! Input that is longer than a message may be has to be read past the protocol, which the WebSocket of the HTTP
//! library does not support; hence this implementation.

use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::refusal;

/// The sub-protocols that a client may ask for.
const PROTOCOLS: [&str; 2] = ["taskyard.pool", "asyonline.asy"];
/// How long a client may take to accept a frame.
const SEND_MAX: Duration = Duration::from_secs(30);
/// How many bytes a client may still send after the last frame, and for how long.
const DISCARD_BYTES_MAX: usize = 64 << 20;
const DISCARD_MAX: Duration = Duration::from_secs(10);
/// How many bytes are read at once.
const PIECE: usize = 16 << 10;

/// A request for a WebSocket.
pub(super) struct Upgrade {
    upgrade: OnUpgrade,
    accept: HeaderValue,
    protocol: Option<&'static str>,
}

/// A WebSocket with a client.
pub(super) struct ClientSocket(WebSocketStream<TokioIo<Upgraded>>);

/// Why no further message comes from a client.
pub(super) enum SocketError {
    /// The connection is closed.
    Closed,
    /// A message is too long.
    TooLong,
    /// A frame is invalid.
    Protocol(String),
}

impl<S: Sync> FromRequestParts<S> for Upgrade {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let headers = &parts.headers;
        let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
        let wanted = header_contains(headers, &CONNECTION, "upgrade")
            && header_contains(headers, &UPGRADE, "websocket")
            && header_contains(headers, &SEC_WEBSOCKET_VERSION, "13");
        let (Some(key), true) = (key, wanted) else {
            let why = "connect with a WebSocket (version 13), or send the whole task with POST";
            return Err(refusal(StatusCode::BAD_REQUEST, why));
        };
        let accept = HeaderValue::try_from(derive_accept_key(key));
        let accept = accept.map_err(|error| error_response(&error))?;
        let asked = |name: &&str| header_contains(headers, &SEC_WEBSOCKET_PROTOCOL, name);
        let protocol = PROTOCOLS.into_iter().find(asked);
        let Some(upgrade) = parts.extensions.remove::<OnUpgrade>() else {
            let why = "this connection cannot become a WebSocket; use HTTP/1.1";
            return Err(refusal(StatusCode::UPGRADE_REQUIRED, why));
        };
        Ok(Upgrade { upgrade, accept, protocol })
    }
}

fn error_response(error: &dyn std::error::Error) -> Response {
    refusal(StatusCode::BAD_REQUEST, &error.to_string())
}

/// Whether a header with comma-separated values contains this value.
fn header_contains(headers: &HeaderMap, name: &HeaderName, value: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|line| line.split(',')).any(|one| one.trim().eq_ignore_ascii_case(value))
}

impl Upgrade {
    /// Accepts the upgrade; a message may have at most `bytes_max` bytes. The client is served by a task of its own.
    pub fn serve<F: Future<Output = ()> + Send>(
        self,
        bytes_max: usize,
        serve: impl FnOnce(ClientSocket) -> F + Send + 'static,
    ) -> Response {
        let Upgrade { upgrade, accept, protocol } = self;
        tokio::spawn(async move {
            let upgraded = match upgrade.await {
                Ok(upgraded) => TokioIo::new(upgraded),
                // The client disconnected before it received the response.
                Err(error) => return tracing::debug!(%error, "a WebSocket upgrade failed"),
            };
            let config = WebSocketConfig::default();
            let config = config.max_message_size(Some(bytes_max)).max_frame_size(Some(bytes_max));
            let role = Role::Server;
            let socket = WebSocketStream::from_raw_socket(upgraded, role, Some(config)).await;
            serve(ClientSocket(socket)).await;
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        if let Some(protocol) = protocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        }
        response.into_response()
    }
}

impl ClientSocket {
    /// The next message. Cancel-safe.
    pub async fn next(&mut self) -> Result<Message, SocketError> {
        match self.0.next().await {
            Some(Ok(Message::Close(_))) | None => Err(SocketError::Closed),
            Some(Ok(message)) => Ok(message),
            Some(Err(Error::Capacity(_))) => Err(SocketError::TooLong),
            Some(Err(error @ (Error::Protocol(_) | Error::Utf8(_)))) => {
                Err(SocketError::Protocol(error.to_string()))
            }
            Some(Err(_)) => Err(SocketError::Closed),
        }
    }

    /// Sends a message; a client that does not read it in time counts as disconnected.
    pub async fn send(&mut self, message: Message) -> Result<(), SocketError> {
        let sent = timeout(SEND_MAX, self.0.send(message)).await;
        sent.map_err(|_| SocketError::Closed)?.map_err(|_| SocketError::Closed)
    }

    /// Closes the connection in order: sends a close frame, reads and discards what the client still sends up to the
    /// limits, then closes the connection.
    pub async fn finish(mut self) {
        let rest = async {
            // A close frame of the client is answered by the flush.
            let _ = self.0.send(Message::Close(None)).await;
            let _ = self.0.flush().await;
            let stream = self.0.get_mut();
            let _ = stream.shutdown().await;
            discard(stream).await;
        };
        // A client that is gone or does not read has received what it could.
        let _ = timeout(DISCARD_MAX, rest).await;
    }
}

/// Reads to the end or to the limit.
async fn discard(stream: &mut (impl AsyncReadExt + Unpin)) {
    let mut piece = [0; PIECE];
    let mut size = 0;
    while size < DISCARD_BYTES_MAX {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(more) => size += more,
        }
    }
}

//! A WebSocket of a client: how it begins, and how it ends so that the client hears the last frame.
//!
//! A connection that is closed while bytes of the client are unread is reset by the system, and the client loses what it
//! has not read yet. So everything the client still sends is read, up to a limit, before the connection is closed. Input
//! that is longer than a message may be has to be read past the protocol, which the WebSocket of the HTTP library does
//! not allow; hence this one.

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

/// The names of the protocol that a client may ask for.
const PROTOCOLS: [&str; 2] = ["taskyard.pool", "asyonline.asy"];
/// How long a client may take to accept a frame.
const SEND_MAX: Duration = Duration::from_secs(30);
/// What a client may still send after the last frame, and how long that may take.
const REST_BYTES_MAX: usize = 64 << 20;
const REST_MAX: Duration = Duration::from_secs(10);
/// How much of it is read at once.
const PIECE: usize = 16 << 10;

/// A request for a WebSocket.
pub(super) struct Upgrade {
    upgrade: OnUpgrade,
    accept: HeaderValue,
    protocol: Option<&'static str>,
}

/// A WebSocket with a client.
pub(super) struct Socket(WebSocketStream<TokioIo<Upgraded>>);

/// Why nothing more comes from a client.
pub(super) enum End {
    /// It left.
    Left,
    /// It sent a message that is longer than one may be.
    TooLong,
    /// It sent what is no WebSocket frame.
    Wrong(String),
}

impl<S: Sync> FromRequestParts<S> for Upgrade {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let headers = &parts.headers;
        let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
        let wanted = has(headers, &CONNECTION, "upgrade")
            && has(headers, &UPGRADE, "websocket")
            && has(headers, &SEC_WEBSOCKET_VERSION, "13");
        let (Some(key), true) = (key, wanted) else {
            let why = "connect with a WebSocket (version 13), or send the whole task with POST";
            return Err(refusal(StatusCode::BAD_REQUEST, why));
        };
        let accept = HeaderValue::try_from(derive_accept_key(key));
        let accept = accept.map_err(|error| error_response(&error))?;
        let asked = |name: &&str| has(headers, &SEC_WEBSOCKET_PROTOCOL, name);
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

/// Whether one of the words in this header, with commas between them, is this one.
fn has(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
}

impl Upgrade {
    /// Accepts it; messages have so many bytes at most. The client is served by a task of its own.
    pub fn serve<F: Future<Output = ()> + Send>(
        self,
        bytes_max: usize,
        serve: impl FnOnce(Socket) -> F + Send + 'static,
    ) -> Response {
        let Upgrade { upgrade, accept, protocol } = self;
        tokio::spawn(async move {
            let upgraded = match upgrade.await {
                Ok(upgraded) => TokioIo::new(upgraded),
                // The client has gone before it had the answer.
                Err(error) => return tracing::debug!(%error, "no WebSocket came of a request"),
            };
            let config = WebSocketConfig::default();
            let config = config.max_message_size(Some(bytes_max)).max_frame_size(Some(bytes_max));
            let role = Role::Server;
            let socket = WebSocketStream::from_raw_socket(upgraded, role, Some(config)).await;
            serve(Socket(socket)).await;
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

impl Socket {
    /// The next message. It may be dropped and asked again without losing anything.
    pub async fn next(&mut self) -> Result<Message, End> {
        match self.0.next().await {
            Some(Ok(Message::Close(_))) | None => Err(End::Left),
            Some(Ok(message)) => Ok(message),
            Some(Err(Error::Capacity(_))) => Err(End::TooLong),
            Some(Err(error @ (Error::Protocol(_) | Error::Utf8(_)))) => {
                Err(End::Wrong(error.to_string()))
            }
            Some(Err(_)) => Err(End::Left),
        }
    }

    /// Sends a message; a client that does not read is as good as gone.
    pub async fn send(&mut self, message: Message) -> Result<(), End> {
        let sent = timeout(SEND_MAX, self.0.send(message)).await;
        sent.map_err(|_| End::Left)?.map_err(|_| End::Left)
    }

    /// Ends the connection in order: the client is told, what it still sends is read and thrown away, and only then, or
    /// when that becomes too much, the connection is closed.
    pub async fn finish(mut self) {
        let rest = async {
            // One that has said so first is answered by the flush.
            let _ = self.0.send(Message::Close(None)).await;
            let _ = self.0.flush().await;
            let stream = self.0.get_mut();
            let _ = stream.shutdown().await;
            throw_away(stream).await;
        };
        // A client that is gone, or does not read, has heard what it could.
        let _ = timeout(REST_MAX, rest).await;
    }
}

/// Reads to the end, or until it becomes too much.
async fn throw_away(stream: &mut (impl AsyncReadExt + Unpin)) {
    let mut piece = [0; PIECE];
    let mut size = 0;
    while size < REST_BYTES_MAX {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(more) => size += more,
        }
    }
}

//! Accepts connections of gateways for claimed tasks, each with a token that is valid once.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::random_token;
use super::tls::{Identity, TlsConnections};

/// Longest message of a gateway, in bytes: standard input.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The valid tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenListener(Arc<Mutex<HashMap<String, oneshot::Sender<WebSocket>>>>);

/// An unused token, and the connection that uses it. It is invalid when this is dropped.
#[derive(Debug)]
pub(super) struct OneTimeToken {
    pub text: String,
    pub connection: oneshot::Receiver<WebSocket>,
    listener: TokenListener,
}

impl TokenListener {
    /// Starts to listen, for encrypted connections only if there is an identity; returns the local address.
    pub async fn open(
        address: SocketAddr,
        identity: Option<&Identity>,
    ) -> io::Result<(Self, SocketAddr, JoinHandle<()>)> {
        let tcp_listener = TcpListener::bind(address).await?;
        let local_address = tcp_listener.local_addr()?;
        let (listener, serving) = match identity {
            None => Self::serve(tcp_listener),
            Some(identity) => Self::serve(TlsConnections::new(tcp_listener, identity)?),
        };
        Ok((listener, local_address, serving))
    }

    /// Serves the connections that this listener accepts.
    pub fn serve<L: Listener<Addr: Debug>>(listener: L) -> (Self, JoinHandle<()>) {
        let tokens = TokenListener::default();
        let router =
            Router::new().route("/pool/backend/{token}", get(accept)).with_state(tokens.clone());
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the listener for gateways failed");
            }
        });
        (tokens, serving)
    }

    /// Creates a token.
    pub fn token(&self) -> OneTimeToken {
        let (sender, connection) = oneshot::channel();
        let text = random_token();
        self.lock().insert(text.clone(), sender);
        OneTimeToken { text, connection, listener: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<WebSocket>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OneTimeToken {
    fn drop(&mut self) {
        self.listener.lock().remove(&self.text);
    }
}

async fn accept(
    State(listener): State<TokenListener>,
    Path(token): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Response {
    // Removed before anything else, so that it is valid only once.
    let Some(sender) = listener.lock().remove(&token) else {
        let why = "invalid token: unknown, used or expired";
        return (StatusCode::FORBIDDEN, why).into_response();
    };
    let upgrade = upgrade.max_message_size(MESSAGE_BYTES_MAX).max_frame_size(MESSAGE_BYTES_MAX);
    upgrade.on_upgrade(async move |socket| drop(sender.send(socket))).into_response()
}

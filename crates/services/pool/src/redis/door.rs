//! Where gateways come for the tasks that backends have claimed: each with a token that opens once.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::secret;
use super::tls::{Encrypted, Identity};

/// Most bytes of one message of a gateway: words for a standard input.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The tokens that still open.
#[derive(Clone, Debug, Default)]
pub(super) struct Door(Arc<Mutex<HashMap<String, oneshot::Sender<WebSocket>>>>);

/// A token that nobody has used, and who comes with it. It opens nothing any more when this is dropped.
#[derive(Debug)]
pub(super) struct Token {
    pub text: String,
    pub comes: oneshot::Receiver<WebSocket>,
    door: Door,
}

impl Door {
    /// Opens a door here, for encrypted connections only where there is an identity; answers where it is.
    pub async fn open(
        listen: SocketAddr,
        identity: Option<&Identity>,
    ) -> io::Result<(Self, SocketAddr, JoinHandle<()>)> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let door = Door::default();
        let router =
            Router::new().route("/pool/backend/{token}", get(enter)).with_state(door.clone());
        let identity = identity.cloned();
        let serving = tokio::spawn(async move {
            let served = match identity {
                None => axum::serve(listener, router).await,
                Some(identity) => match Encrypted::new(listener, &identity) {
                    Ok(listener) => axum::serve(listener, router).await,
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = served {
                tracing::error!(%error, "the door is closed");
            }
        });
        Ok((door, address, serving))
    }

    /// A new token.
    pub fn token(&self) -> Token {
        let (sender, comes) = oneshot::channel();
        let text = secret();
        self.lock().insert(text.clone(), sender);
        Token { text, comes, door: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<WebSocket>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.door.lock().remove(&self.text);
    }
}

async fn enter(
    State(door): State<Door>,
    Path(token): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Response {
    // Taken out before anything else is done, so that it opens once.
    let Some(sender) = door.lock().remove(&token) else {
        let why = "this token opens nothing: it is unknown, was used, or came too late";
        return (StatusCode::FORBIDDEN, why).into_response();
    };
    let upgrade = upgrade.max_message_size(MESSAGE_BYTES_MAX).max_frame_size(MESSAGE_BYTES_MAX);
    upgrade.on_upgrade(async move |socket| drop(sender.send(socket))).into_response()
}

//! Connects a gateway to the backend that has claimed one of its tasks.

use std::fmt;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::SplitStream;
use futures_util::{SinkExt, StreamExt};
use taskyard_tls::connector;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::RedisError;
use crate::gateway::BoxFuture;
use crate::protocol::OutgoingFrame;

/// How long a connection to a backend may take.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// Messages that wait to be sent to a backend.
const OUTGOING_MAX: usize = 4;

/// A byte stream to a backend, encrypted or not.
pub trait BackendStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> BackendStream for T {}

/// Opens streams to backends.
pub trait BackendDialer: Send + Sync {
    /// Opens a stream to this `HOST:PORT`.
    fn dial<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Box<dyn BackendStream>>>;
}

/// Opens TCP connections.
struct TcpDialer;

impl BackendDialer for TcpDialer {
    fn dial<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Box<dyn BackendStream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect(host_port).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn BackendStream>)
        })
    }
}

type BackendSocket = WebSocketStream<Box<dyn BackendStream>>;

/// A connection to a backend. Messages are sent by a task of its own: a program that does not read its input must not
/// block the frames to its client.
pub(super) struct BackendConnection {
    frames: SplitStream<BackendSocket>,
    /// A frame whose bytes have not arrived yet.
    head: Option<OutgoingFrame>,
    /// Whether bytes have arrived since the last check: long frames take time.
    active: Arc<AtomicBool>,
    /// Messages to the backend; sending fails once the backend has ended.
    pub outgoing: mpsc::Sender<Message>,
    sending: AbortHandle,
}

/// Notes that bytes arrive.
struct ActivityStream {
    stream: Box<dyn BackendStream>,
    active: Arc<AtomicBool>,
}

impl AsyncRead for ActivityStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = bytes.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, bytes);
        if bytes.filled().len() > before {
            self.active.store(true, Ordering::Release);
        }
        read
    }
}

impl AsyncWrite for ActivityStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Which backends a gateway trusts, and how it reaches them.
#[derive(Clone)]
pub struct BackendTrust {
    dialer: Arc<dyn BackendDialer>,
    /// The only trusted certificates.
    only: Option<TlsConnector>,
    /// The certificates that the system trusts, loaded on first use.
    system: Arc<OnceLock<Result<TlsConnector, String>>>,
}

impl Default for BackendTrust {
    fn default() -> Self {
        BackendTrust { dialer: Arc::new(TcpDialer), only: None, system: Arc::default() }
    }
}

impl BackendTrust {
    /// Trusts only encrypted backends with a certificate signed by one in this file, for the name that they
    /// advertise. The default also trusts unencrypted ones, and certificates that the system trusts.
    pub fn read(roots: &Path) -> Result<Self, RedisError> {
        let advice = "give a PEM file with the certificate that signed those of the backends";
        let only = connector(Some(roots), advice).map_err(RedisError::Tls)?;
        Ok(BackendTrust { only: Some(only), ..BackendTrust::default() })
    }

    /// Reaches backends with this dialer instead of TCP.
    pub fn with_dialer(self, dialer: Arc<dyn BackendDialer>) -> Self {
        BackendTrust { dialer, ..self }
    }

    /// Connects to a backend, whose messages may have at most `bytes_max` bytes.
    pub(super) async fn connect(
        &self,
        address: &str,
        bytes_max: usize,
    ) -> Option<BackendConnection> {
        match timeout(CONNECT_MAX, self.try_connect(address, bytes_max)).await {
            Ok(Ok((socket, active))) => Some(BackendConnection::new(socket, active)),
            Ok(Err(error)) => {
                tracing::warn!(address = without_token(address), %error, "cannot connect to a backend");
                None
            }
            Err(_) => {
                tracing::warn!(
                    address = without_token(address),
                    "connecting to a backend timed out"
                );
                None
            }
        }
    }

    async fn try_connect(
        &self,
        address: &str,
        bytes_max: usize,
    ) -> io::Result<(BackendSocket, Arc<AtomicBool>)> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
        let (scheme, rest) =
            address.split_once("://").ok_or_else(|| wrong("the address has no scheme"))?;
        let host_port = rest.split('/').next().unwrap_or_default();
        let (name, _) =
            host_port.rsplit_once(':').ok_or_else(|| wrong("the address has no port"))?;
        let encrypted = match (scheme, &self.only) {
            ("wss", _) => true,
            ("ws", None) => false,
            ("ws", Some(_)) => {
                return Err(wrong("the backend does not encrypt, but --backend-ca requires it"));
            }
            _ => return Err(wrong("the address is neither ws:// nor wss://")),
        };
        let stream = self.dialer.dial(host_port).await?;
        let stream: Box<dyn BackendStream> = match encrypted {
            true => Box::new(self.encrypt(name, stream).await?),
            false => stream,
        };
        let active = Arc::new(AtomicBool::new(false));
        let stream: Box<dyn BackendStream> =
            Box::new(ActivityStream { stream, active: active.clone() });
        let most = Some(bytes_max);
        let config = WebSocketConfig::default().max_message_size(most).max_frame_size(most);
        let url = format!("ws://{rest}");
        let opened = client_async_with_config(url, stream, Some(config)).await;
        opened.map(|(socket, _)| (socket, active)).map_err(io::Error::other)
    }

    async fn encrypt(
        &self,
        name: &str,
        stream: Box<dyn BackendStream>,
    ) -> io::Result<impl BackendStream + use<>> {
        let system = || connector(None, "give the gateway a file with the backends' authority");
        let connector = match &self.only {
            Some(only) => only,
            None => {
                let known = self.system.get_or_init(system);
                known.as_ref().map_err(|why| io::Error::other(why.as_str()))?
            }
        };
        let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        connector.connect(name, stream).await
    }
}

impl fmt::Debug for BackendTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.only.is_some() { "Trust(encrypted)" } else { "Trust(all)" })
    }
}

impl BackendConnection {
    fn new(socket: BackendSocket, active: Arc<AtomicBool>) -> Self {
        // Bytes of the handshake do not count.
        active.store(false, Ordering::Release);
        let (mut sink, frames) = socket.split();
        let (outgoing, mut inbox) = mpsc::channel(OUTGOING_MAX);
        let sending = tokio::spawn(async move {
            while let Some(message) = inbox.recv().await {
                // A backend that has ended reads nothing, but its frames may not be read yet.
                if sink.send(message).await.is_err() {
                    break;
                }
            }
        });
        BackendConnection { frames, head: None, active, outgoing, sending: sending.abort_handle() }
    }

    /// Whether bytes have arrived since the last call.
    pub fn was_active(&self) -> bool {
        self.active.swap(false, Ordering::AcqRel)
    }

    /// The next frame of the backend. Cancel-safe.
    pub async fn next(&mut self) -> Option<OutgoingFrame> {
        loop {
            match (self.frames.next().await?.ok()?, self.head.take()) {
                (Message::Text(text), None) => {
                    let frame = OutgoingFrame::read(text.as_str())?;
                    if frame.bytes().is_none() {
                        return Some(frame);
                    }
                    self.head = Some(frame);
                }
                (Message::Binary(bytes), Some(mut frame)) => {
                    frame.set_bytes(bytes.to_vec());
                    return Some(frame);
                }
                (Message::Ping(_) | Message::Pong(_), waiting) => self.head = waiting,
                _ => return None,
            }
        }
    }
}

impl Drop for BackendConnection {
    fn drop(&mut self) {
        // The connection is closed when both halves are dropped.
        self.sending.abort();
    }
}

/// An address without its token, which must not be logged.
fn without_token(address: &str) -> &str {
    address.split("/pool/").next().unwrap_or_default()
}

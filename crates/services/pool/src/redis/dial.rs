//! The way of a gateway to a backend that has claimed one of its tasks.

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
use taskyard_redis::tls::connector;
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
use crate::protocol::Outgoing;

/// How long a backend may take to let its gateway in.
const DIAL_MAX: Duration = Duration::from_secs(15);
/// Words that wait to be sent to a backend.
const WORDS: usize = 4;

/// Bytes both ways, encrypted or not.
pub(super) trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

type Socket = WebSocketStream<Box<dyn Pipe>>;

/// A connection to a backend. Words are sent by a task of its own: a program that does not read them must not keep its
/// client from hearing what it says.
pub(super) struct Talk {
    frames: SplitStream<Socket>,
    /// A frame whose bytes have not come yet.
    head: Option<Outgoing>,
    /// Whether any bytes have come since somebody asked: long frames take their time.
    heard: Arc<AtomicBool>,
    /// What the backend is told; nobody is told anything any more once it has ended.
    pub words: mpsc::Sender<Message>,
    sending: AbortHandle,
}

/// Notes that bytes come.
struct Noticed {
    stream: Box<dyn Pipe>,
    heard: Arc<AtomicBool>,
}

impl AsyncRead for Noticed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = bytes.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, bytes);
        if bytes.filled().len() > before {
            self.heard.store(true, Ordering::Release);
        }
        read
    }
}

impl AsyncWrite for Noticed {
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

/// Which backends a gateway believes.
#[derive(Clone, Default)]
pub struct Trust {
    /// Only whom this believes.
    only: Option<TlsConnector>,
    /// Whom the system believes, once somebody had to know.
    system: Arc<OnceLock<Result<TlsConnector, String>>>,
}

impl Trust {
    /// Only those that encrypt and that the certificates in this file vouch for, under the name that they advertise.
    /// By default those that do not encrypt as well, and those for whom somebody vouches whom the system trusts.
    pub fn read(roots: &Path) -> Result<Self, RedisError> {
        let advice = "give a PEM file with the certificate that signed those of the backends";
        let only = connector(Some(roots), advice).map_err(RedisError::Tls)?;
        Ok(Trust { only: Some(only), ..Trust::default() })
    }

    /// Goes to a backend, whose messages have so many bytes at most.
    pub(super) async fn dial(&self, address: &str, bytes_max: usize) -> Option<Talk> {
        match timeout(DIAL_MAX, self.try_dial(address, bytes_max)).await {
            Ok(Ok((socket, heard))) => Some(Talk::new(socket, heard)),
            Ok(Err(error)) => {
                tracing::warn!(address = host(address), %error, "a backend cannot be reached");
                None
            }
            Err(_) => {
                tracing::warn!(address = host(address), "a backend does not answer");
                None
            }
        }
    }

    async fn try_dial(
        &self,
        address: &str,
        bytes_max: usize,
    ) -> io::Result<(Socket, Arc<AtomicBool>)> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
        let (scheme, rest) = address.split_once("://").ok_or_else(|| wrong("no address"))?;
        let place = rest.split('/').next().unwrap_or_default();
        let (name, _) = place.rsplit_once(':').ok_or_else(|| wrong("an address has a port"))?;
        let encrypted = match (scheme, &self.only) {
            ("wss", _) => true,
            ("ws", None) => false,
            ("ws", Some(_)) => return Err(wrong("it does not encrypt, which is asked for here")),
            _ => return Err(wrong("the address is neither ws:// nor wss://")),
        };
        let stream = TcpStream::connect(place).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Pipe> = match encrypted {
            true => Box::new(self.encrypt(name, stream).await?),
            false => Box::new(stream),
        };
        let heard = Arc::new(AtomicBool::new(false));
        let stream: Box<dyn Pipe> = Box::new(Noticed { stream, heard: heard.clone() });
        let most = Some(bytes_max);
        let config = WebSocketConfig::default().max_message_size(most).max_frame_size(most);
        let url = format!("ws://{rest}");
        let opened = client_async_with_config(url, stream, Some(config)).await;
        opened.map(|(socket, _)| (socket, heard)).map_err(io::Error::other)
    }

    async fn encrypt(&self, name: &str, stream: TcpStream) -> io::Result<impl Pipe + use<>> {
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

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.only.is_some() { "Trust(encrypted)" } else { "Trust(all)" })
    }
}

impl Talk {
    fn new(socket: Socket, heard: Arc<AtomicBool>) -> Self {
        // What it said to let us in does not count.
        heard.store(false, Ordering::Release);
        let (mut sink, frames) = socket.split();
        let (words, mut inbox) = mpsc::channel(WORDS);
        let sending = tokio::spawn(async move {
            while let Some(word) = inbox.recv().await {
                // One that has ended hears nothing, but what it said may not be read yet.
                if sink.send(word).await.is_err() {
                    break;
                }
            }
        });
        Talk { frames, head: None, heard, words, sending: sending.abort_handle() }
    }

    /// Whether anything has come since this was asked last.
    pub fn was_heard(&self) -> bool {
        self.heard.swap(false, Ordering::AcqRel)
    }

    /// The next frame of the backend. It may be dropped and asked again without losing anything.
    pub async fn next(&mut self) -> Option<Outgoing> {
        loop {
            match (self.frames.next().await?.ok()?, self.head.take()) {
                (Message::Text(text), None) => {
                    let frame = Outgoing::read(text.as_str())?;
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

impl Drop for Talk {
    fn drop(&mut self) {
        // The connection ends when both its halves are gone.
        self.sending.abort();
    }
}

/// An address without its token, which belongs into no log.
fn host(address: &str) -> &str {
    address.split("/pool/").next().unwrap_or_default()
}

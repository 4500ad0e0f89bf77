//! Opens byte streams to Redis: over TCP, or over another network that a caller brings.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::url::Address;

/// A byte stream.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> ByteStream for T {}

/// An open stream.
pub struct DialedStream {
    /// The stream.
    pub stream: Box<dyn ByteStream>,
    /// Whether the other side has closed it and nothing is left to read.
    pub has_ended: Box<dyn Fn() -> bool + Send + Sync>,
}

/// A stream, or why there is none.
pub type Dialing<'a> = Pin<Box<dyn Future<Output = io::Result<DialedStream>> + Send + 'a>>;

/// Opens streams to Redis.
pub trait RedisDialer: Send + Sync {
    /// Opens a stream to this address.
    fn dial<'a>(&'a self, address: &'a Address) -> Dialing<'a>;
}

/// Opens TCP connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDialer;

impl RedisDialer for TcpDialer {
    fn dial<'a>(&'a self, address: &'a Address) -> Dialing<'a> {
        Box::pin(async move {
            let socket = TcpStream::connect((address.host.as_str(), address.port)).await?;
            dialed(socket.into_std()?)
        })
    }
}

/// A stream over this socket. The operating system is asked for its end, because the runtime may not know it yet.
pub(crate) fn dialed(socket: std::net::TcpStream) -> io::Result<DialedStream> {
    socket.set_nodelay(true)?;
    let same_socket = socket.try_clone()?;
    let has_ended = move || match same_socket.peek(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    let stream = Box::new(TcpStream::from_std(socket)?);
    Ok(DialedStream { stream, has_ended: Box::new(has_ended) })
}

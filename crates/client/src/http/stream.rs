//! The stream of a connection over HTTP, and what opens it.

use std::io;

use taskyard_worker::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection as a stream of bytes in both directions.
pub trait HttpStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> HttpStream for S {}

/// Opens the connections of an [`Http`](crate::Http).
pub trait HttpDialer: Send + Sync {
    /// Connects to a host and port.
    fn dial<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Box<dyn HttpStream>>>;
}

/// Connects over TCP.
#[derive(Clone, Copy, Debug)]
pub(super) struct HttpOverTcp;

impl HttpDialer for HttpOverTcp {
    fn dial<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Box<dyn HttpStream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            let stream: Box<dyn HttpStream> = Box::new(stream);
            Ok(stream)
        })
    }
}

//! A connection of a client, encrypted or not, or within this process, as one type: what serves connections is compiled once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A connection of a client.
pub(crate) enum ServerStream {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
    InProcess(Box<dyn ByteStream>),
}

/// A stream of bytes in both directions that is no socket of the system.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Sends the last bytes of a connection and closes it.
pub(crate) async fn send_and_close<S>(mut stream: S, bytes: &[u8]) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(bytes).await?;
    close_gracefully(&mut stream).await
}

/// Closes a connection so that the last written bytes arrive: unread bytes would reset it.
pub(crate) async fn close_gracefully<S>(stream: &mut S) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.shutdown().await?;
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

impl AsyncRead for ServerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            ServerStream::Encrypted(stream) => Pin::new(stream).poll_read(cx, buffer),
            ServerStream::InProcess(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            ServerStream::Encrypted(stream) => Pin::new(stream).poll_write(cx, bytes),
            ServerStream::InProcess(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            ServerStream::Encrypted(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            ServerStream::InProcess(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            ServerStream::Plain(stream) => stream.is_write_vectored(),
            ServerStream::Encrypted(stream) => stream.is_write_vectored(),
            ServerStream::InProcess(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            ServerStream::Encrypted(stream) => Pin::new(stream).poll_flush(cx),
            ServerStream::InProcess(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            ServerStream::Encrypted(stream) => Pin::new(stream).poll_shutdown(cx),
            ServerStream::InProcess(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

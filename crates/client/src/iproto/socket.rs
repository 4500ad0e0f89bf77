//! The socket of a connection as something that is read and written without waiting, and what opens it.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use taskyard_worker::BoxFuture;
#[cfg(feature = "tls")]
use tokio::net::UnixStream;
use tokio::net::{TcpSocket, TcpStream, lookup_host};

/// TCP keepalive: the idle time before the first probe, the interval and the number of probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// A connected socket. One task reads, and others write.
pub trait IprotoSocket: fmt::Debug + Send + Sync {
    /// Ready when something can be read, or reading fails.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ready when something can be written, or writing fails.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Reads what has arrived; an error of the kind `WouldBlock` if there is nothing.
    fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize>;

    /// The same into the free capacity of a vector.
    fn try_read_buf(&self, bytes: &mut Vec<u8>) -> io::Result<usize>;

    /// Writes as much as is accepted now; an error of the kind `WouldBlock` if that is nothing.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
}

/// Opens sockets.
pub trait IprotoDialer: Send + Sync {
    /// Connects to a host and port.
    fn dial<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Box<dyn IprotoSocket>>>;
}

/// Connects over TCP.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpDialer;

impl IprotoDialer for TcpDialer {
    fn dial<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Box<dyn IprotoSocket>>> {
        Box::pin(async move {
            let socket: Box<dyn IprotoSocket> = Box::new(connect_tcp(host, port).await?);
            Ok(socket)
        })
    }
}

/// Connects to the first address of the host that accepts.
pub(super) async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut refusal = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for to in lookup_host((host, port)).await? {
        let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A take may wait for days; the failure of its server must be detected.
        SockRef::from(&socket).set_tcp_keepalive(&keepalive())?;
        match socket.connect(to).await {
            Ok(stream) => {
                // Requests are batched before they are written.
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

/// After an idle minute the system sends three probes in half a minute.
fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES)
}

impl IprotoSocket for TcpStream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_ready(cx)
    }

    fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        TcpStream::try_read(self, bytes)
    }

    fn try_read_buf(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        TcpStream::try_read_buf(self, bytes)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        TcpStream::try_write(self, bytes)
    }
}

/// The near end of a pair of sockets; a task encrypts what the far end reads and writes.
#[cfg(feature = "tls")]
impl IprotoSocket for UnixStream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_ready(cx)
    }

    fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        UnixStream::try_read(self, bytes)
    }

    fn try_read_buf(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        UnixStream::try_read_buf(self, bytes)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        UnixStream::try_write(self, bytes)
    }
}

/// A socket whose bytes travel over an encrypted stream.
#[cfg(feature = "tls")]
pub(super) fn encrypted(
    mut stream: tokio_rustls::client::TlsStream<TcpStream>,
) -> io::Result<Box<dyn IprotoSocket>> {
    let (near, mut far) = UnixStream::pair()?;
    // It ends when both sides have ended or one fails. The end of one side is passed on to the other at once.
    tokio::spawn(async move {
        let _ = tokio::io::copy_bidirectional(&mut far, &mut stream).await;
    });
    Ok(Box::new(near))
}

impl dyn IprotoSocket {
    /// Waits until something can be read.
    pub(super) async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_readable(cx)).await
    }

    /// Waits until something can be written.
    pub(super) async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_writable(cx)).await
    }

    /// Fills all bytes.
    pub(super) async fn read_exact(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut read = 0;
        while read < bytes.len() {
            self.readable().await?;
            match self.try_read(&mut bytes[read..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    // A take without a limit never ended when its server failed silently.
    #[tokio::test]
    async fn keepalive_is_enabled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = connect_tcp("127.0.0.1", address.port()).await.unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        // The default of Linux is two hours.
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
    }
}

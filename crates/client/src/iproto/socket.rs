//! The socket of a connection, encrypted or not, as something that is read and written without waiting.

use std::io;

use tokio::net::TcpStream;
#[cfg(feature = "tls")]
use tokio::net::UnixStream;

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    Plain(TcpStream),
    /// The near end of a pair of sockets; a task encrypts what the far end reads and writes.
    #[cfg(feature = "tls")]
    Encrypted(UnixStream),
}

impl Socket {
    /// A socket whose bytes travel over an encrypted stream.
    #[cfg(feature = "tls")]
    pub fn encrypted(mut stream: tokio_rustls::client::TlsStream<TcpStream>) -> io::Result<Self> {
        let (near, mut far) = UnixStream::pair()?;
        // It ends when both sides have ended or one fails. The end of one side is passed on to the other at once.
        tokio::spawn(async move {
            let _ = tokio::io::copy_bidirectional(&mut far, &mut stream).await;
        });
        Ok(Socket::Encrypted(near))
    }

    /// Waits until something can be read.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Socket::Plain(stream) => stream.readable().await,
            #[cfg(feature = "tls")]
            Socket::Encrypted(stream) => stream.readable().await,
        }
    }

    /// Waits until something can be written.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            Socket::Plain(stream) => stream.writable().await,
            #[cfg(feature = "tls")]
            Socket::Encrypted(stream) => stream.writable().await,
        }
    }

    /// Reads what has arrived.
    pub fn try_read_buf(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Socket::Plain(stream) => stream.try_read_buf(bytes),
            #[cfg(feature = "tls")]
            Socket::Encrypted(stream) => stream.try_read_buf(bytes),
        }
    }

    /// Writes as much as is accepted now.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(stream) => stream.try_write(bytes),
            #[cfg(feature = "tls")]
            Socket::Encrypted(stream) => stream.try_write(bytes),
        }
    }
}

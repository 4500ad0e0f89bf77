//! Encrypts connections of the driver. `taskyard_postgres` decides which certificates are trusted.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use taskyard_postgres::{Security, SslMode, client_config, server_end_point};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Socket, config};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsConnector, client};

/// Encrypts connections. The driver uses it for unencrypted connections too, so that its code is compiled once.
#[derive(Clone)]
pub(super) struct Encryption {
    /// `None` if connections are not encrypted.
    config: Option<Arc<ClientConfig>>,
}

impl Encryption {
    /// The encryption that these settings require.
    pub fn new(security: &Security) -> Result<Self, String> {
        Ok(Encryption { config: client_config(security)?.map(Arc::new) })
    }
}

/// The mode for the driver, which does not check certificates itself.
pub(super) fn to_driver(mode: SslMode) -> config::SslMode {
    match mode {
        SslMode::Disable => config::SslMode::Disable,
        SslMode::Prefer => config::SslMode::Prefer,
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => config::SslMode::Require,
    }
}

impl MakeTlsConnect<Socket> for Encryption {
    type Stream = EncryptedStream;
    type TlsConnect = HostEncryption;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<HostEncryption> {
        Ok(HostEncryption { host: host.to_owned(), config: self.config.clone() })
    }
}

/// Encrypts one connection to this host.
pub(super) struct HostEncryption {
    host: String,
    config: Option<Arc<ClientConfig>>,
}

impl TlsConnect<Socket> for HostEncryption {
    type Stream = EncryptedStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<EncryptedStream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            // The driver does not ask for it with `sslmode=disable`.
            let config = self.config.ok_or_else(|| io::Error::other("encryption is disabled"))?;
            let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
            TlsConnector::from(config).connect(name, socket).await.map(EncryptedStream)
        })
    }
}

/// An encrypted connection.
pub(super) struct EncryptedStream(client::TlsStream<Socket>);

impl TlsStream for EncryptedStream {
    fn channel_binding(&self) -> ChannelBinding {
        let certificates = self.0.get_ref().1.peer_certificates();
        let own = certificates.and_then(<[_]>::first);
        let binding = own.and_then(|certificate| server_end_point(certificate));
        binding.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl AsyncRead for EncryptedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for EncryptedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

//! Encrypts the connections between gateways and backends.

use std::fmt;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

use super::RedisError;

/// How long a TLS handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Accepted connections that wait to be served.
const ACCEPTED_MAX: usize = 16;
/// Delay when the machine has no free connections.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Certificate and private key of a backend; the key is never printed.
#[derive(Clone)]
pub struct Identity(TlsAcceptor);

impl Identity {
    /// Reads the certificate, followed by those it depends on, and its key, both in PEM form.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, RedisError> {
        let unreadable = |what: &str, path: &Path, why: &dyn fmt::Display| {
            RedisError::Tls(format!("cannot read {what} from {}: {why}", path.display()))
        };
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect)
            .map_err(|error| unreadable("a certificate", certificate, &error))?;
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| unreadable("a private key", key, &error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(certificates, key))
            .map_err(|error| {
                RedisError::Tls(format!("cannot use the certificate with its key: {error}"))
            })?;
        Ok(Identity(TlsAcceptor::from(Arc::new(config))))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(..)")
    }
}

/// Encrypted connections, each handed over after its handshake: a slow handshake does not delay others.
pub(super) struct TlsConnections {
    streams: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsConnections {
    /// Accepts connections until this is dropped.
    pub fn new(listener: TcpListener, identity: &Identity) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (sender, streams) = mpsc::channel(ACCEPTED_MAX);
        tokio::spawn(accept_all(listener, identity.0.clone(), sender));
        Ok(TlsConnections { streams, address })
    }
}

async fn accept_all(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    sender: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = sender.closed() => return,
        };
        let Ok((stream, address)) = accepted else {
            sleep(RETRY_DELAY).await;
            continue;
        };
        let (acceptor, sender) = (acceptor.clone(), sender.clone());
        tokio::spawn(async move {
            match timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => _ = sender.send((stream, address)).await,
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => {}
            }
        });
    }
}

impl Listener for TlsConnections {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.streams.recv().await {
            Some(stream) => stream,
            None => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

//! Encrypts the connections between gateways and backends.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use axum::serve::Listener;
use taskyard_tls::{ServerFiles, ServerTls};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::RedisError;

/// How long a TLS handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Accepted connections that wait to be served.
const ACCEPTED_MAX: usize = 16;
/// Delay when the machine has no free connections.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Certificate and private key of a backend; the key is never printed.
#[derive(Clone, Debug)]
pub struct Identity(ServerTls);

impl Identity {
    /// Reads the certificate, followed by those it depends on, and its key, both in PEM form.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, RedisError> {
        let files =
            ServerFiles { certificate: certificate.into(), key: key.into(), client_ca: None };
        let tls =
            ServerTls::read(files, &[]).map_err(|error| RedisError::Tls(error.to_string()))?;
        Ok(Identity(tls))
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
        tokio::spawn(accept_all(listener, identity.0.acceptor(), sender));
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

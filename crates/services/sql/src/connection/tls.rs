//! Encrypts connections; `taskyard_postgres` decides which certificates are trusted.

use std::io;
use std::sync::Arc;

use taskyard_postgres::{Conninfo, client_config};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// The TLS configuration for a connection string; `None` where it disables encryption.
pub async fn config(conninfo: &Conninfo) -> io::Result<Option<Arc<ClientConfig>>> {
    let security = conninfo.security();
    // It reads files, and a slow disk must not delay other sessions.
    let made = tokio::task::spawn_blocking(move || client_config(&security)).await;
    let config = made.map_err(io::Error::other)?.map_err(io::Error::other)?;
    Ok(config.map(Arc::new))
}

/// Encrypts a connection to this host.
pub async fn encrypt(
    stream: TcpStream,
    host: &str,
    config: Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(config).connect(name, stream).await
}

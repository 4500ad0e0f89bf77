//! TLS for iproto connections.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

/// How long the TLS handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The TLS configuration. The key is never printed.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

/// Why a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read or has other content.
    #[error("cannot read {what} in PEM form from {}: {source}", path.display())]
    Read {
        /// What the file should contain.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: pem::Error,
    },
    /// The certificate and the key cannot be used together, or not at all.
    #[error("cannot use the certificate with its key: {0}")]
    Unusable(rustls::Error),
}

impl Tls {
    /// Reads the certificate chain and its key.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let certificates = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect)
            .map_err(|source| unreadable("a certificate", certificate, source))?;
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|source| unreadable("a private key", key, source))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(certificates, key))
            .map_err(TlsError::Unusable)?;
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }

    /// Accepts a TLS connection; `None` if the handshake fails.
    pub(super) async fn accept(&self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        match timeout(HANDSHAKE_MAX, self.0.accept(stream)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS handshake of an iproto connection failed");
                None
            }
            Err(_) => None,
        }
    }
}

fn unreadable(what: &'static str, path: &Path, source: pem::Error) -> TlsError {
    TlsError::Read { what, path: path.into(), source }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

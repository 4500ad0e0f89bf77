//! Encrypted connections to servers, and the root certificates that sign the certificates of servers.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, Error as RustlsError, RootCertStore};

/// The environment variable that names a file of root certificates.
const ROOTS_VARIABLE: &str = "TASKYARD_CA";
/// The files in which systems keep trusted root certificates.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Encrypts connections and checks the certificate and the host name of servers.
#[derive(Clone)]
pub(crate) struct Encryption(TlsConnector);

impl Encryption {
    /// With the root certificates of the file that TASKYARD_CA names, or of the system.
    pub fn new() -> Result<Self, String> {
        let named = std::env::var_os(ROOTS_VARIABLE).filter(|path| !path.is_empty());
        let roots = named
            .map(PathBuf::from)
            .or_else(|| SYSTEM.iter().map(PathBuf::from).find(|path| path.exists()));
        match roots {
            Some(roots) => Encryption::with_roots(&roots),
            None => Err(format!(
                "no root certificates in this system; name a file of them in {ROOTS_VARIABLE}"
            )),
        }
    }

    /// With the root certificates of this file, in PEM form.
    pub fn with_roots(path: &Path) -> Result<Self, String> {
        let unreadable = |why: &dyn Display| {
            format!("cannot read root certificates in PEM form from {}: {why}", path.display())
        };
        let certificates: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        let mut roots = RootCertStore::empty();
        let certificates = certificates.map_err(|error| unreadable(&error))?;
        let (added, _) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(unreadable(&"there is none in it"));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Encryption(TlsConnector::from(Arc::new(config))))
    }

    /// Encrypts a connection to this host.
    pub async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, EncryptionError> {
        let untrusted = |why: &dyn Display| {
            EncryptionError::Untrusted(format!(
                "the certificate of {host} is refused: {why}; if it is right, name a file with its root certificate in \
                 {ROOTS_VARIABLE}"
            ))
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| untrusted(&error))?;
        self.0.connect(name, stream).await.map_err(|error| {
            match error.get_ref().and_then(|inner| inner.downcast_ref()) {
                Some(refused @ RustlsError::InvalidCertificate(_)) => untrusted(refused),
                _ => EncryptionError::Failed(error),
            }
        })
    }
}

/// Why a connection is not encrypted.
#[derive(Debug)]
pub(crate) enum EncryptionError {
    Failed(io::Error),
    /// The certificate of the server is refused, or there are no root certificates: another try does not help.
    Untrusted(String),
}

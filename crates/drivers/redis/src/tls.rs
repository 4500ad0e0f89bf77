//! TLS connections to Redis (`rediss://`) and their root certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The files in which systems keep trusted root certificates.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// A TLS connector that checks the host name, and that the certificate is signed by `root` or by a
/// root certificate of the system. `advice` says what to do if there is none.
pub fn connector(root: Option<&Path>, advice: &str) -> Result<TlsConnector, String> {
    let path = match root {
        Some(path) => path.to_owned(),
        None => {
            let found = SYSTEM.iter().map(PathBuf::from).find(|path| path.exists());
            found.ok_or_else(|| format!("no root certificates in this system; {advice}"))?
        }
    };
    let unreadable = |why: &dyn std::fmt::Display| {
        format!("cannot read the root certificate {}: {why}; {advice}", path.display())
    };
    let certificates: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(&path).and_then(Iterator::collect);
    let mut roots = RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(certificates.map_err(|error| unreadable(&error))?);
    if added == 0 {
        return Err(unreadable(&"there is none in it"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

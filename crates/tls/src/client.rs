//! Builds the TLS configuration of a client: which certificates it trusts, and the one that it shows.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::crypto::ring;

use crate::pem_file::{PemFile, read_pair, unusable};
use crate::verifier::Verifier;

/// The environment variable that names a file of trusted certificates.
pub const CA_VARIABLE: &str = "TASKYARD_CA";
/// The environment variable that names the file of a client's certificate.
pub const CERT_VARIABLE: &str = "TASKYARD_CLIENT_CERT";
/// The environment variable that names the file of the key of a client's certificate.
pub const KEY_VARIABLE: &str = "TASKYARD_CLIENT_KEY";

/// The environment variable that names the trusted root certificates of the system to many programs.
const SYSTEM_VARIABLE: &str = "SSL_CERT_FILE";

/// The files in which systems keep trusted root certificates, where the variable does not name one.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The files of a client, in PEM form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Certificates that are trusted, and with them what they signed; those of the system if there are none.
    pub roots: Option<PathBuf>,
    /// The certificate that is shown to a server that asks for one, followed by those that signed it.
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate.
    pub key: Option<PathBuf>,
}

impl ClientFiles {
    /// The files that the environment names.
    pub fn from_env() -> Self {
        ClientFiles {
            roots: named_file(CA_VARIABLE),
            certificate: named_file(CERT_VARIABLE),
            key: named_file(KEY_VARIABLE),
        }
    }

    /// Encrypts connections, checks the certificates and names of servers, and shows the own certificate. `advice` says
    /// what to do if there are no trusted certificates.
    pub fn connector(&self, advice: &str) -> Result<TlsConnector, String> {
        let provider = Arc::new(ring::default_provider());
        let path = roots_path(self.roots.as_deref(), advice)?;
        let file = PemFile::read(&path, "root certificates");
        let verifier = file.and_then(|file| file.certificates());
        let verifier = verifier.map_err(|error| format!("{error}; {advice}"))?;
        let verifier = Verifier::new(verifier, provider.clone()).map_err(|why| {
            format!(
                "cannot read root certificates in PEM form from {}: {why}; {advice}",
                path.display()
            )
        })?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match (&self.certificate, &self.key) {
            (None, None) => config.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let (chain, private) =
                    read_pair(certificate, key).map_err(|error| error.to_string())?;
                let config = config.with_client_auth_cert(chain, private);
                config.map_err(|error| unusable(certificate, key, error).to_string())?
            }
            (Some(_), None) => {
                return Err(format!(
                    "a client certificate needs its private key; name it in {KEY_VARIABLE}"
                ));
            }
            (None, Some(_)) => {
                return Err(format!(
                    "the key of a client needs its certificate; name it in {CERT_VARIABLE}"
                ));
            }
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// Encrypts connections and checks the certificates and names of servers, with the certificates in this file or those that
/// the system trusts. `advice` says what to do if there are none.
pub fn connector(roots: Option<&Path>, advice: &str) -> Result<TlsConnector, String> {
    let roots = roots.map(Path::to_owned);
    ClientFiles { roots, ..ClientFiles::default() }.connector(advice)
}

/// The file that an environment variable names.
fn named_file(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn roots_path(named: Option<&Path>, advice: &str) -> Result<PathBuf, String> {
    let system = || SYSTEM.iter().map(PathBuf::from).find(|path| path.exists());
    let path = named.map(Path::to_owned).or_else(|| named_file(SYSTEM_VARIABLE)).or_else(system);
    path.ok_or_else(|| format!("no root certificates in this system; {advice}"))
}

//! TLS for connections to PostgreSQL, as strict as `sslmode` requires, with certificates on both
//! sides.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, InconsistentKeys, RootCertStore,
    SignatureScheme,
};

use crate::conninfo::SslMode;
use crate::passfile::{contents, is_accessible_to_others};

/// The TLS settings of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// The mode.
    pub mode: SslMode,
    /// A file with the trusted root certificates.
    pub root: Option<PathBuf>,
    /// A file with our own certificate.
    pub cert: Option<PathBuf>,
    /// A file with the key of our certificate.
    pub key: Option<PathBuf>,
}

/// The TLS configuration; `None` if the connection is not encrypted.
pub fn client_config(security: &Security) -> Result<Option<ClientConfig>, String> {
    if security.mode == SslMode::Disable {
        return Ok(None);
    }
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier::new(security, provider.clone())?));
    let config = match (&security.cert, &security.key) {
        (Some(cert), Some(key)) => builder.with_client_cert_resolver(own(cert, key, &provider)?),
        (None, None) => builder.with_no_client_auth(),
        _ => return Err("sslcert and sslkey must be given together".into()),
    };
    Ok(Some(config))
}

/// Our own certificate and its key. For an old form of certificates, which databases still accept,
/// it cannot be checked here whether the key matches; the database checks it.
fn own(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<Arc<SingleCertAndKey>, String> {
    let loaded = provider.key_provider.load_private_key(private_key(key)?);
    let loaded = loaded.map_err(|error| unreadable("sslkey", key, &error))?;
    let own = CertifiedKey::new(certificates(cert, "sslcert")?, loaded);
    match own.keys_match() {
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err("sslkey is not the key to sslcert".into())
        }
        _ => Ok(Arc::new(own.into())),
    }
}

/// How the certificate of the server is checked. Without a root certificate `prefer` and `require`
/// accept every server, as libpq does: they protect against eavesdropping, not against
/// impersonation. A root certificate that is named is always used.
#[derive(Debug)]
struct Verifier {
    roots: Option<Arc<WebPkiServerVerifier>>,
    any_name: bool,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(security: &Security, provider: Arc<CryptoProvider>) -> Result<Self, String> {
        let strict = matches!(security.mode, SslMode::VerifyCa | SslMode::VerifyFull);
        let any_name = security.mode != SslMode::VerifyFull;
        let file = security.root.clone().or_else(|| default_root().filter(|_| strict));
        let Some(file) = file else {
            if strict {
                return Err("set sslrootcert=FILE to verify the certificate of the database".into());
            }
            return Ok(Verifier { roots: None, any_name, provider });
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&file, "sslrootcert")? {
            let added = roots.add(certificate);
            added.map_err(|error| unreadable("sslrootcert", &file, &error))?;
        }
        let built = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
        let roots = built.build().map_err(|error| unreadable("sslrootcert", &file, &error))?;
        Ok(Verifier { roots: Some(roots), any_name, provider })
    }
}

/// The default path of the root certificates.
fn default_root() -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("HOME")?).join(".postgresql/root.crt"))
}

fn certificates(file: &Path, name: &'static str) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = contents(file).map_err(|error| unreadable(name, file, &error))?;
    let read = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found = read.map_err(|error| unreadable(name, file, &error))?;
    if found.is_empty() {
        return Err(unreadable(name, file, &"there is no certificate in it"));
    }
    Ok(found)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    if is_accessible_to_others(file) {
        return Err(unreadable("sslkey", file, &"other users may read it; run chmod 0600 on it"));
    }
    let text = contents(file).map_err(|error| unreadable("sslkey", file, &error))?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| unreadable("sslkey", file, &error))
}

fn unreadable(name: &'static str, file: &Path, why: &dyn Display) -> String {
    format!("cannot use {}: {why}; name another file with {name}=FILE", file.display())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        match roots.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            // The name is checked last, so everything else is valid.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_name => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn refused(security: Security) -> String {
        client_config(&security).map(drop).unwrap_err()
    }

    #[test]
    fn without_tls_there_is_no_configuration() {
        let missing = Some(PathBuf::from("/not/there"));
        let security = Security { mode: SslMode::Disable, root: missing, ..Security::default() };
        assert!(client_config(&security).unwrap().is_none());
        assert!(client_config(&Security::default()).unwrap().is_some());
    }

    #[test]
    fn an_unusable_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "no certificate").unwrap();
        let path = Some(file.clone());
        for mode in [SslMode::Prefer, SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
            let said = refused(Security { mode, root: path.clone(), ..Security::default() });
            let expected = format!("cannot use {}: ", file.display());
            assert!(said.starts_with(&expected) && said.contains("sslrootcert=FILE"), "{said}");
        }
        let alone = Security { cert: path.clone(), ..Security::default() };
        assert!(refused(alone).contains("must be given together"));
        let own = Security { cert: path.clone(), key: path.clone(), ..Security::default() };
        let said = refused(own);
        assert!(said.contains("sslkey=FILE") && said.contains("chmod 0600"), "{said}");
    }

    #[test]
    fn only_regular_files_of_limited_length_are_read() {
        // A device returns bytes endlessly and a pipe none: a user who could name one could stop the
        // whole process.
        let device = Security { root: Some("/dev/null".into()), ..Security::default() };
        assert!(refused(device).contains("not a regular file"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::File::create(&file).and_then(|file| file.set_len(1 << 30)).unwrap();
        let long = Security { root: Some(file), ..Security::default() };
        assert!(refused(long).contains("the file is too long"));
    }

    #[test]
    fn a_key_that_others_may_read_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        fs::write(&file, "no key").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert!(private_key(&file).unwrap_err().contains("chmod 0600"));
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert!(private_key(&file).unwrap_err().contains("sslkey=FILE"));
    }
}

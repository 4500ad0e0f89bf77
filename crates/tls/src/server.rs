//! The certificate that a server shows, and its replacement while the server runs.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::pem_file::{PemFile, TlsError, unusable};

/// The files of a server, in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate, followed by those that signed it.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// Clients must show a certificate that one of these signed; without it they show none.
    pub client_ca: Option<PathBuf>,
}

/// The TLS configuration of a server, which can be read again while the server runs. Clones share it. The key is never
/// printed.
#[derive(Clone)]
pub struct ServerTls(Arc<SharedTls>);

struct SharedTls {
    files: ServerFiles,
    /// The protocols above TLS that the server speaks; any if this is empty.
    protocols: Vec<Vec<u8>>,
    current: RwLock<Identity>,
    /// The fingerprint of the files when they were last read, whether or not they could be used.
    last_read: Mutex<u64>,
}

/// What is shown to new connections. Established ones keep what they began with.
#[derive(Clone)]
struct Identity {
    config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
}

impl ServerTls {
    /// Reads the files. `protocols` are the names of what the server speaks above TLS; any protocol if there is none.
    pub fn read(files: ServerFiles, protocols: &[&str]) -> Result<Self, TlsError> {
        let protocols: Vec<Vec<u8>> = protocols.iter().map(|name| (*name).into()).collect();
        let contents = FileContents::read(&files);
        let last_read = Mutex::new(fingerprint(&contents));
        let current = RwLock::new(contents?.identity(&protocols)?);
        Ok(ServerTls(Arc::new(SharedTls { files, protocols, current, last_read })))
    }

    /// The files.
    pub fn files(&self) -> &ServerFiles {
        &self.0.files
    }

    /// Accepts one connection with the certificate of now.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current().config)
    }

    /// Reads the files again. If they cannot be used, the certificate of before stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.replace(&mut self.last_read(), FileContents::read(&self.0.files))
    }

    /// Reads the files again if they have changed since they were last read; `None` if they have not.
    pub fn reload_if_changed(&self) -> Option<Result<(), TlsError>> {
        let contents = FileContents::read(&self.0.files);
        let mut last_read = self.last_read();
        (fingerprint(&contents) != *last_read).then(|| self.replace(&mut last_read, contents))
    }

    fn replace(
        &self,
        last_read: &mut u64,
        contents: Result<FileContents<'_>, TlsError>,
    ) -> Result<(), TlsError> {
        *last_read = fingerprint(&contents);
        let identity = contents?.identity(&self.0.protocols)?;
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = identity;
        Ok(())
    }

    /// A host name or address of which the certificate is, for the URL of a server that listens at this address: the
    /// address itself or, on this machine only, `localhost`, or else the first name in the certificate.
    pub fn host_of(&self, address: IpAddr) -> Option<String> {
        let identity = self.current();
        let certificate = webpki::EndEntityCert::try_from(&identity.certificate).ok()?;
        let is_of =
            |name: &ServerName<'_>| certificate.verify_is_valid_for_subject_name(name).is_ok();
        if is_of(&ServerName::from(address)) {
            return Some(address.to_string());
        }
        let localhost = ServerName::try_from("localhost").ok();
        if address.is_loopback() && localhost.is_some_and(|name| is_of(&name)) {
            return Some("localhost".into());
        }
        certificate.valid_dns_names().find(|name| !name.starts_with('*')).map(str::to_owned)
    }

    fn current(&self) -> Identity {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn last_read(&self) -> MutexGuard<'_, u64> {
        self.0.last_read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerTls").field(&self.0.files).finish()
    }
}

/// The files as they were read.
struct FileContents<'a> {
    files: &'a ServerFiles,
    certificate: PemFile<'a>,
    key: PemFile<'a>,
    client_ca: Option<PemFile<'a>>,
}

impl<'a> FileContents<'a> {
    fn read(files: &'a ServerFiles) -> Result<Self, TlsError> {
        let client_ca = files.client_ca.as_deref();
        let what = "certificates of client authorities";
        Ok(FileContents {
            files,
            certificate: PemFile::read(&files.certificate, "a certificate")?,
            key: PemFile::read_key(&files.key)?,
            client_ca: client_ca.map(|path| PemFile::read(path, what)).transpose()?,
        })
    }

    fn identity(&self, protocols: &[Vec<u8>]) -> Result<Identity, TlsError> {
        let ServerFiles { certificate, key, .. } = self.files;
        let unusable = |error| unusable(certificate, key, error);
        let chain = self.certificate.certificates()?;
        let own = chain[0].clone();
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(file.certificates()?);
                let builder =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = builder.build().map_err(|error| file.wrong(error.to_string()))?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let mut config =
            config.with_single_cert(chain, self.key.private_key()?).map_err(unusable)?;
        config.alpn_protocols = protocols.to_vec();
        Ok(Identity { config: Arc::new(config), certificate: own })
    }
}

/// A number that differs when the contents of the files do, so that no copy of the key is kept to compare them.
fn fingerprint(contents: &Result<FileContents<'_>, TlsError>) -> u64 {
    let mut hasher = DefaultHasher::new();
    match contents {
        Ok(FileContents { certificate, key, client_ca, .. }) => {
            (certificate.bytes(), key.bytes()).hash(&mut hasher);
            client_ca.as_ref().map(PemFile::bytes).hash(&mut hasher);
        }
        Err(error) => error.to_string().hash(&mut hasher),
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::net::Ipv4Addr;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// Writes a new certificate for this host and its key.
    fn write(folder: &Path, host: &str) -> ServerFiles {
        let files = ServerFiles {
            certificate: folder.join("certificate.pem"),
            key: folder.join("key.pem"),
            client_ca: None,
        };
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([host.to_owned()]).unwrap().self_signed(&key);
        fs::write(&files.certificate, certificate.unwrap().pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        fs::set_permissions(&files.key, Permissions::from_mode(0o600)).unwrap();
        files
    }

    fn host(tls: &ServerTls) -> String {
        tls.host_of(Ipv4Addr::new(10, 0, 0, 1).into()).unwrap()
    }

    #[test]
    fn changed_files_replace_the_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let tls = ServerTls::read(write(folder.path(), "one.example"), &[]).unwrap();
        assert_eq!(host(&tls), "one.example");
        assert_eq!(tls.reload_if_changed(), None);
        write(folder.path(), "two.example");
        assert_eq!(tls.reload_if_changed(), Some(Ok(())));
        assert_eq!(host(&tls.clone()), "two.example");
        assert_eq!(tls.reload_if_changed(), None);
        assert_eq!(tls.reload(), Ok(()));
    }

    #[test]
    fn a_broken_file_keeps_the_certificate_and_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(folder.path(), "one.example");
        let tls = ServerTls::read(files.clone(), &[]).unwrap();
        let old_key = fs::read(&files.key).unwrap();
        write(folder.path(), "two.example");
        let new_key = fs::read(&files.key).unwrap();
        fs::write(&files.key, old_key).unwrap();
        let refused = tls.reload_if_changed().unwrap().unwrap_err();
        assert!(matches!(refused, TlsError::KeyMismatch { .. }), "{refused}");
        assert_eq!(tls.reload_if_changed(), None);
        assert!(tls.reload().is_err(), "a reload that is asked for reports it again");
        fs::write(&files.certificate, "no certificate").unwrap();
        let refused = tls.reload_if_changed().unwrap().unwrap_err().to_string();
        assert!(refused.contains("certificate.pem: there is none in it"), "{refused}");
        fs::remove_file(&files.key).unwrap();
        let refused = tls.reload_if_changed().unwrap().unwrap_err().to_string();
        assert!(refused.contains("key.pem: No such file"), "{refused}");
        assert_eq!((tls.reload_if_changed(), host(&tls)), (None, "one.example".into()));
        write(folder.path(), "three.example");
        assert_eq!(tls.reload_if_changed(), Some(Ok(())));
        fs::write(&files.key, new_key).unwrap();
        assert!(tls.reload_if_changed().unwrap().is_err());
        assert_eq!(host(&tls), "three.example");
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(folder.path(), "one.example");
        let refused = |files: ServerFiles| ServerTls::read(files, &[]).unwrap_err().to_string();
        let swapped = ServerFiles { certificate: files.key.clone(), ..files.clone() };
        assert!(refused(swapped).contains("key.pem: there is none in it"));
        let missing = ServerFiles { key: folder.path().join("nothing.pem"), ..files.clone() };
        assert!(refused(missing).contains("nothing.pem: No such file"));
        let other = folder.path().join("other");
        fs::create_dir(&other).unwrap();
        let other = ServerFiles { key: write(&other, "one.example").key, ..files.clone() };
        let said = refused(other);
        assert!(said.contains("does not belong to the certificate"), "{said}");
        let client_ca = Some(files.key.clone());
        let said = refused(ServerFiles { client_ca, ..files.clone() });
        assert!(said.contains("certificates of client authorities"), "{said}");
        fs::set_permissions(&files.key, Permissions::from_mode(0o644)).unwrap();
        assert!(refused(files).contains("chmod 600"));
    }

    #[test]
    fn the_key_is_never_printed() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(folder.path(), "one.example");
        let tls = ServerTls::read(files.clone(), &[]).unwrap();
        let shown = format!("{tls:?}");
        assert!(shown.contains("key.pem") && !shown.contains("config"), "{shown}");
    }

    #[test]
    fn a_url_has_a_name_of_the_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let of = |host: &str, address: [u8; 4]| {
            let tls = ServerTls::read(write(folder.path(), host), &[]).unwrap();
            tls.host_of(IpAddr::from(address))
        };
        assert_eq!(of("127.0.0.1", [127, 0, 0, 1]).as_deref(), Some("127.0.0.1"));
        assert_eq!(of("localhost", [127, 0, 0, 1]).as_deref(), Some("localhost"));
        assert_eq!(of("box7.example", [127, 0, 0, 1]).as_deref(), Some("box7.example"));
        assert_eq!(of("10.0.0.1", [10, 0, 0, 2]), None);
        assert_eq!(of("*.example", [10, 0, 0, 2]), None);
    }
}

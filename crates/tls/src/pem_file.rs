//! Reads certificates and private keys from files in PEM form.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, InconsistentKeys};

/// Largest file, in bytes: the root certificates of a system are a quarter of a megabyte.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Why a file with certificates or a private key cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read or has other content.
    #[error("cannot read {what} in PEM form from {}: {why}", path.display())]
    Read {
        /// What the file should contain.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Other users of the machine can read the private key.
    #[error(
        "every user of this machine can open {path}, which contains a private key; restrict it to its owner: \
         chmod 600 {path}",
        path = path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// The private key is that of another certificate.
    #[error(
        "the private key in {} does not belong to the certificate in {}; give the key with which the certificate was \
         requested, and put the server's own certificate first in its file",
        key.display(), certificate.display()
    )]
    KeyMismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The certificate and the key cannot be used.
    #[error("cannot use the certificate in {} with its key: {why}", certificate.display())]
    Unusable {
        /// The file of the certificate.
        certificate: PathBuf,
        /// Why not.
        why: rustls::Error,
    },
}

/// A file that was read, before it is parsed.
pub(crate) struct PemFile<'a> {
    path: &'a Path,
    what: &'static str,
    bytes: Vec<u8>,
}

impl<'a> PemFile<'a> {
    /// Reads a file that should contain `what`.
    pub fn read(path: &'a Path, what: &'static str) -> Result<Self, TlsError> {
        let bytes = contents(path).map_err(|error| refused(path, what, error.to_string()))?;
        Ok(PemFile { path, what, bytes })
    }

    /// The same for a private key, which other users of the machine must not be able to open.
    pub fn read_key(path: &'a Path) -> Result<Self, TlsError> {
        let file = PemFile::read(path, "a private key")?;
        let about = fs::metadata(path).map_err(|error| file.wrong(error.to_string()))?;
        match about.permissions().mode() & 0o007 {
            0 => Ok(file),
            _ => Err(TlsError::Exposed { path: path.into() }),
        }
    }

    /// What is in it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its certificates, at least one.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found = CertificateDer::pem_slice_iter(&self.bytes).collect::<Result<Vec<_>, _>>();
        match found {
            Ok(found) if found.is_empty() => Err(self.wrong("there is none in it".into())),
            Ok(found) => Ok(found),
            Err(error) => Err(self.wrong(error.to_string())),
        }
    }

    /// Its private key.
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        if self.bytes.windows(9).any(|bytes| bytes == b"ENCRYPTED") {
            return Err(self.wrong("the key is encrypted; write it without a passphrase".into()));
        }
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| self.wrong(error.to_string()))
    }

    /// The error that the file cannot be used.
    pub fn wrong(&self, why: String) -> TlsError {
        refused(self.path, self.what, why)
    }
}

/// A certificate with those that signed it, and its key.
pub(crate) type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads a certificate and its key.
pub(crate) fn read_pair(certificate: &Path, key: &Path) -> Result<Pair, TlsError> {
    let chain = PemFile::read(certificate, "a certificate")?.certificates()?;
    Ok((chain, PemFile::read_key(key)?.private_key()?))
}

/// Why a certificate and its key cannot be used.
pub(crate) fn unusable(certificate: &Path, key: &Path, why: rustls::Error) -> TlsError {
    let certificate = certificate.into();
    match why {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsError::KeyMismatch { certificate, key: key.into() }
        }
        why => TlsError::Unusable { certificate, why },
    }
}

fn refused(path: &Path, what: &'static str, why: String) -> TlsError {
    TlsError::Read { what, path: path.into(), why }
}

/// The bytes of a regular file of limited length: a device returns bytes endlessly, and a pipe cannot be read again.
fn contents(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a named pipe waits for its writer, so what it is must be known before.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("the file is larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_limited_length_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (path, why) in [(Path::new("/dev/null"), "not a regular file"), (&path, "No such file")]
        {
            let error = PemFile::read(path, "a certificate").map(drop).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(path.to_str().unwrap()), "{error}");
        }
        File::create(&path).unwrap().set_len(FILE_BYTES_MAX).unwrap();
        assert!(PemFile::read(&path, "a certificate").is_ok());
        File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        let error = PemFile::read(&path, "a certificate").map(drop).unwrap_err().to_string();
        assert!(error.contains("larger than 4194304 bytes"), "{error}");
    }

    #[test]
    fn a_key_that_others_can_open_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pem");
        fs::write(&path, "").unwrap();
        for (mode, refused) in [(0o600, false), (0o640, false), (0o644, true), (0o602, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = PemFile::read_key(&path);
            assert_eq!(matches!(read, Err(TlsError::Exposed { .. })), refused, "{mode:o}");
        }
    }

    #[test]
    fn an_encrypted_key_is_named_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pem");
        fs::write(
            &path,
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = PemFile::read_key(&path).unwrap().private_key().unwrap_err().to_string();
        assert!(error.contains("without a passphrase"), "{error}");
    }
}

//! Encrypted connections to servers. `taskyard_tls` decides which certificates are trusted.

use std::io;
use std::path::Path;

use taskyard_tls::{CA_VARIABLE, ClientFiles, explain};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// Encrypts connections, checks the certificate and the host name of servers, and shows them a certificate of the client.
#[derive(Clone)]
pub(crate) struct Encryption {
    files: ClientFiles,
    /// The error is reported at the first connection: other files may be set before it.
    connector: Result<TlsConnector, String>,
}

impl Encryption {
    /// With the files that the environment names and the root certificates of the system.
    pub fn new() -> Self {
        Encryption::with(ClientFiles::from_env())
    }

    fn with(files: ClientFiles) -> Self {
        let connector = files.connector(&format!("name a file of them in {CA_VARIABLE}"));
        Encryption { files, connector }
    }

    /// With the root certificates of this file, in PEM form.
    pub fn with_roots(self, path: &Path) -> Result<Self, String> {
        let files = ClientFiles { roots: Some(path.into()), ..self.files };
        Encryption::with(files).checked()
    }

    /// With the client certificate of this file and its key, in PEM form.
    pub fn with_certificate(self, certificate: &Path, key: &Path) -> Result<Self, String> {
        let (certificate, key) = (Some(certificate.into()), Some(key.into()));
        Encryption::with(ClientFiles { certificate, key, ..self.files }).checked()
    }

    fn checked(self) -> Result<Self, String> {
        match &self.connector {
            Ok(_) => Ok(self),
            Err(why) => Err(why.clone()),
        }
    }

    /// Why no connection can be encrypted, if the files cannot be used.
    pub fn problem(&self) -> Option<&str> {
        self.connector.as_ref().err().map(String::as_str)
    }

    /// Encrypts a connection to this host.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: S,
    ) -> Result<TlsStream<S>, EncryptionError> {
        let connector = self.connector.as_ref();
        let connector = connector.map_err(|why| EncryptionError::Untrusted(why.clone()))?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| {
            EncryptionError::Untrusted(format!(
                "no certificate can be for the name {host}: {error}"
            ))
        })?;
        let connected = connector.connect(name, stream).await;
        connected.map_err(|error| EncryptionError::new(host, error))
    }
}

/// Why certificates are refused for a server whose connections are not encrypted.
pub(crate) fn not_encrypted(server: &str, scheme: &str) -> String {
    format!(
        "connections to {server} are not encrypted, so its certificate cannot be checked; use {scheme}"
    )
}

/// Why a connection is not encrypted, or was ended by the other side because of a certificate.
#[derive(Debug)]
pub(crate) enum EncryptionError {
    Failed(io::Error),
    /// A certificate is refused, or there are no root certificates: another try does not help.
    Untrusted(String),
}

impl EncryptionError {
    /// Which of them it is.
    pub fn new(host: &str, error: io::Error) -> Self {
        match explain(host, &error) {
            Some(why) => EncryptionError::Untrusted(why),
            None => EncryptionError::Failed(error),
        }
    }
}

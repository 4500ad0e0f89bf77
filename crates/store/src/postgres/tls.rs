//! Encryption on the way to the database, as the parameters `sslmode` and `sslrootcert` of the URL ask for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// How much a connection is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// Not at all.
    Disable,
    /// Encrypted where the database can; nobody knows who it is.
    #[default]
    Prefer,
    /// Encrypted; nobody knows who the database is, unless a root certificate is named.
    Require,
    /// Encrypted, and the certificate is signed by who should.
    VerifyCa,
    /// The same, and it is that of the host.
    VerifyFull,
}

impl Mode {
    /// The mode of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "disable" => Mode::Disable,
            "prefer" | "allow" => Mode::Prefer,
            "require" => Mode::Require,
            "verify-ca" => Mode::VerifyCa,
            "verify-full" => Mode::VerifyFull,
            _ => return None,
        })
    }

    /// The same for the driver, which leaves it to us to look at certificates.
    pub fn to_driver(self) -> tokio_postgres::config::SslMode {
        use tokio_postgres::config::SslMode;
        match self {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        }
    }
}

/// What encrypts connections; nothing where nothing shall.
pub(super) fn connector(
    mode: Mode,
    root: Option<&Path>,
) -> Result<Option<MakeRustlsConnect>, String> {
    if mode == Mode::Disable {
        return Ok(None);
    }
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match (mode, root.map(Path::to_owned)) {
        (Mode::VerifyFull, root) => verifier(&root.or_else(usual_root), &provider)?,
        // As other programs for PostgreSQL have it: a root certificate is there to be looked at.
        (Mode::VerifyCa, root) => {
            Arc::new(AnyName(verifier(&root.or_else(usual_root), &provider)?))
        }
        (Mode::Require, Some(root)) => Arc::new(AnyName(verifier(&Some(root), &provider)?)),
        _ => Arc::new(Anybody(Arc::clone(&provider))),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Some(MakeRustlsConnect::new(config)))
}

/// Where root certificates are when nobody says.
fn usual_root() -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("HOME")?).join(".postgresql/root.crt"))
}

fn verifier(
    root: &Option<PathBuf>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, String> {
    let Some(path) = root else {
        return Err(
            "to look at the database's certificate, name sslrootcert=FILE in the URL".into()
        );
    };
    let unreadable = |why: &dyn std::fmt::Display| {
        let path = path.display();
        format!(
            "cannot read the root certificate {path}: {why}; name another with sslrootcert=FILE"
        )
    };
    let certificates: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let mut roots = RootCertStore::empty();
    for certificate in certificates.map_err(|error| unreadable(&error))? {
        roots.add(certificate).map_err(|error| unreadable(&error))?;
    }
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
    verifier.map_err(|error| unreadable(&error))
}

/// Looks at who signed a certificate, and not at whose it is.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

/// Looks at nothing: the connection is encrypted, and whoever is there is believed.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is looked at last, so all else is in order.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signed,
            algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signed,
            algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

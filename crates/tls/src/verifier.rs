//! Checks the certificate of a server: signed by a trusted one, or itself among them; valid now; of the right name.

use std::error::Error as _;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// Checks certificates as usual, and accepts one that is itself in the file of trusted certificates: the certificate of
/// a server that no authority signed is trusted by giving it to the client.
#[derive(Debug)]
pub(crate) struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// Trusts these certificates and what they signed.
    pub fn new(
        trusted: Vec<CertificateDer<'static>>,
        provider: Arc<tokio_rustls::rustls::crypto::CryptoProvider>,
    ) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(trusted.iter().cloned());
        if added == 0 {
            return Err("there is none in it".into());
        }
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Verifier { usual: usual.map_err(|error| error.to_string())?, trusted })
    }
}

/// Whether a certificate was refused for the way it was signed. Its time was found valid before.
fn is_about_signer(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
        Error::InvalidCertificate(CertificateError::Other(other)) => {
            let cause = other.source().and_then(|cause| cause.downcast_ref());
            matches!(cause, Some(webpki::Error::CaUsedAsEndEntity))
        }
        _ => false,
    }
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
        match self.usual.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Err(error) if is_about_signer(&error) && self.trusted.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
    use tokio_rustls::rustls::crypto::ring;

    use super::*;

    /// A certificate of `localhost` that signed itself, valid in the years 2000 to 2030.
    fn self_signed(is_ca: IsCa) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.is_ca = is_ca;
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2030, 1, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn check(
        trusted: &CertificateDer<'static>,
        shown: &CertificateDer<'static>,
        name: &'static str,
        year: u64,
    ) -> Result<(), Error> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Verifier::new(vec![trusted.clone()], provider).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_557_600));
        let name = ServerName::try_from(name).unwrap();
        verifier.verify_server_cert(shown, &[], &name, &[], now).map(drop)
    }

    /// `openssl req -x509` makes certificates of authorities, which are refused as certificates of servers.
    #[test]
    fn a_certificate_that_is_given_itself_is_trusted_for_its_name_and_time() {
        let authority = IsCa::Ca(BasicConstraints::Unconstrained);
        for kind in [IsCa::NoCa, IsCa::ExplicitNoCa, authority] {
            let shown = self_signed(kind);
            check(&shown, &shown, "localhost", 2020).unwrap();
            let refused = |name, year| match check(&shown, &shown, name, year) {
                Err(Error::InvalidCertificate(why)) => why,
                other => panic!("{other:?}"),
            };
            let name = refused("example.com", 2020);
            assert!(matches!(name, CertificateError::NotValidForNameContext { .. }), "{name:?}");
            let late = refused("localhost", 2040);
            assert!(matches!(late, CertificateError::ExpiredContext { .. }), "{late:?}");
            let early = refused("localhost", 1990);
            assert!(matches!(early, CertificateError::NotValidYetContext { .. }), "{early:?}");
            let other = self_signed(kind);
            assert!(check(&other, &shown, "localhost", 2020).is_err());
        }
    }
}

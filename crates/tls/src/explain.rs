//! Explains to the user of a client why a handshake failed, and what to do.

use std::error::Error as _;
use std::io;

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

use crate::client::{CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE};

/// Why no encrypted connection to this host is possible, if another try does not help; `None` for an error of the network.
pub fn explain(host: &str, error: &io::Error) -> Option<String> {
    let cause = error.get_ref()?.downcast_ref::<Error>()?;
    match cause {
        Error::InvalidCertificate(why) => Some(format!(
            "the certificate of {host} is refused: {}",
            certificate_problem(host, why)
        )),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => Some(format!(
            "{host} answers without TLS; use http:// instead of https:// in the URL (iproto:// instead of iprotos://), or give \
             the server a certificate (--tls-cert and --tls-key)"
        )),
        Error::AlertReceived(alert) => client_certificate_problem(host, *alert),
        _ => None,
    }
}

/// What is wrong with the certificate of a server.
fn certificate_problem(host: &str, why: &CertificateError) -> String {
    use CertificateError::*;
    let advice = format!(
        "if it is the right one, name a file with its root certificate, or with the certificate itself, in {CA_VARIABLE} \
         (--ca of the command line)"
    );
    match why {
        Expired | ExpiredContext { .. } => {
            "it has expired; renew it on the server, or correct the clock of this machine".into()
        }
        NotValidYet | NotValidYetContext { .. } => {
            "it is not valid yet; correct the clock of this machine or of the one that issued it"
                .into()
        }
        NotValidForName | NotValidForNameContext { .. } => {
            format!(
                "it is not for the name {host} but for {}; use that name in the URL, or issue one for {host}",
                names(why)
            )
        }
        UnknownIssuer => format!("no trusted certificate signed it; {advice}"),
        Other(other) => match other.source().and_then(|cause| cause.downcast_ref()) {
            Some(webpki::Error::CaUsedAsEndEntity) => {
                format!("it signed itself and is not among the trusted ones; {advice}")
            }
            _ => format!("{why}; {advice}"),
        },
        other => format!("{other}; {advice}"),
    }
}

/// The names for which a certificate is.
fn names(why: &CertificateError) -> String {
    let CertificateError::NotValidForNameContext { presented, .. } = why else {
        return "another".into();
    };
    // They are written as `DnsName("example.com")` and `IpAddress(127.0.0.1)`.
    let plain = |name: &String| {
        let inner = name.split_once('(').map_or(name.as_str(), |(_, inner)| inner);
        inner.trim_end_matches(')').trim_matches('"').to_owned()
    };
    match presented.as_slice() {
        [] => "no name at all".into(),
        names => names.iter().map(plain).collect::<Vec<_>>().join(", "),
    }
}

/// What a server means that refuses the certificate of a client.
fn client_certificate_problem(host: &str, alert: AlertDescription) -> Option<String> {
    let advice = format!(
        "give one in {CERT_VARIABLE} with its key in {KEY_VARIABLE} (--client-cert and --client-key of the command line)"
    );
    match alert {
        AlertDescription::CertificateRequired => {
            Some(format!("{host} asks for a client certificate and got none; {advice}"))
        }
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::DecryptError
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown => Some(format!(
            "{host} refused the client certificate ({alert:?}): it is not signed by the authority that the server trusts; {advice}"
        )),
        AlertDescription::CertificateExpired => {
            Some(format!("{host} refused the client certificate: it has expired; renew it"))
        }
        AlertDescription::ProtocolVersion => {
            Some(format!("{host} speaks neither TLS 1.2 nor TLS 1.3; update it"))
        }
        _ => None,
    }
}

//! TLS connections.

use std::path::PathBuf;
use std::sync::Arc;

use taskyard_server::{Tls, TlsError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::fixture::TestServer;

fn file(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "iproto", "tls", name].iter().collect()
}

fn connector() -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("certificate.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn an_encrypted_connection_is_served_and_a_plain_one_is_not() {
    let tls = Tls::read(&file("certificate.pem"), &file("key.pem")).unwrap();
    let server = TestServer::with(|config| config.tls = Some(tls)).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector().connect(name, stream).await.unwrap();
    let mut greeting = [0; 128];
    stream.read_exact(&mut greeting).await.unwrap();
    assert!(greeting.starts_with(b"Tarantool 2.11."));
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(&[5, 0x82, 0x00, 0x40, 0x01, 1].repeat(20)).await.unwrap();
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said).await;
    assert!(!said.starts_with(b"Tarantool"));
    stream.write_all(&[5, 0x82, 0x00, 0x40, 0x01, 9]).await.unwrap();
    let mut pong = [0; 29];
    stream.read_exact(&mut pong).await.unwrap();
    assert_eq!((pong[4], pong[21]), (24, 9));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let refused = Tls::read(&file("nothing.pem"), &file("key.pem")).unwrap_err();
    assert!(refused.to_string().contains("nothing.pem"), "{refused}");
    let refused = Tls::read(&file("certificate.pem"), &file("certificate.pem")).unwrap_err();
    assert!(matches!(refused, TlsError::Read { what: "a private key", .. }), "{refused}");
    let refused = Tls::read(&file("key.pem"), &file("key.pem")).unwrap_err();
    assert!(matches!(refused, TlsError::Unusable(_) | TlsError::Read { .. }), "{refused}");
}

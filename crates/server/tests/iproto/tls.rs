//! TLS connections.

use std::path::Path;

use taskyard_server::{ServerFiles, ServerTls};
use taskyard_testkit::certificates::Authority;
use taskyard_tls::connector;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::fixture::TestServer;

/// A certificate of an authority in this folder.
fn tls(folder: &Path) -> (ServerTls, Authority) {
    let authority = Authority::new(folder, "ca");
    let files = authority.issue("server");
    let files = ServerFiles { certificate: files.certificate, key: files.key, client_ca: None };
    (ServerTls::read(files, &[]).unwrap(), authority)
}

async fn connect(server: &TestServer, authority: &Authority) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = connector(Some(&authority.certificate), "").unwrap();
    connector.connect(name, stream).await.unwrap()
}

/// Everything that the server sends until it closes the connection.
async fn read_to_end(mut stream: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.unwrap();
    said
}

fn is_refusal(said: &[u8]) -> bool {
    said.starts_with(b"Tarantool 2.11.") && said.windows(8).any(|bytes| bytes == b"TLS only")
}

#[tokio::test]
async fn an_encrypted_connection_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let (tls, authority) = tls(folder.path());
    let server = TestServer::with(|config| config.tls = Some(tls)).await;
    let mut stream = connect(&server, &authority).await;
    let mut greeting = [0; 128];
    stream.read_exact(&mut greeting).await.unwrap();
    assert!(greeting.starts_with(b"Tarantool 2.11."));
    stream.write_all(&[5, 0x82, 0x00, 0x40, 0x01, 9]).await.unwrap();
    let mut pong = [0; 29];
    stream.read_exact(&mut pong).await.unwrap();
    assert_eq!((pong[4], pong[21]), (24, 9));
}

/// A client of Tarantool waits for a greeting, which never came: it waited until its own time limit and said nothing of TLS.
#[tokio::test]
async fn a_plain_connection_gets_an_error_that_names_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (tls, _) = tls(folder.path());
    let server = TestServer::with_all(|config| {
        config.iproto.as_mut().unwrap().tls = Some(tls);
        config.handshake_limits.time_max = std::time::Duration::from_secs(1);
    });
    let server = server.await;
    let mut eager = TcpStream::connect(server.address).await.unwrap();
    eager.write_all(&[5, 0x82, 0x00, 0x40, 0x01, 1].repeat(20)).await.unwrap();
    assert!(is_refusal(&read_to_end(eager).await));
    let waiting = TcpStream::connect(server.address).await.unwrap();
    assert!(is_refusal(&read_to_end(waiting).await));
}

#[tokio::test]
async fn a_connection_beyond_the_limit_gets_its_answer_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (tls, authority) = tls(folder.path());
    let server = TestServer::with(|config| {
        config.tls = Some(tls);
        config.connections_max = 0;
    });
    let server = server.await;
    let mut stream = connect(&server, &authority).await;
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.unwrap();
    assert!(said.windows(10).any(|bytes| bytes == b"overloaded"));
}

//! HTTP over TLS: certificates of both sides, limits of handshakes, and certificates that are replaced under load.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taskyard_server::{HTTP_PROTOCOL, Listeners, ServerFiles, ServerTls, Token};
use taskyard_testkit::certificates::{Authority, CertificateFiles};
use taskyard_tls::ClientFiles;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};

use crate::fixture::{Fixture, config, engine};

/// A request that leaves its connection open.
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// An authority and the certificate of a server.
struct Certificates {
    folder: TempDir,
    authority: Authority,
    server: CertificateFiles,
}

impl Certificates {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "ca");
        let server = authority.issue("server");
        Certificates { folder, authority, server }
    }

    fn tls(&self) -> ServerTls {
        self.tls_for(None)
    }

    /// The same that asks for client certificates of this authority.
    fn tls_for(&self, client_ca: Option<&Path>) -> ServerTls {
        let CertificateFiles { certificate, key } = self.server.clone();
        let files = ServerFiles { certificate, key, client_ca: client_ca.map(Path::to_owned) };
        ServerTls::read(files, &[HTTP_PROTOCOL]).unwrap()
    }

    /// A client that trusts the authority, and shows a certificate if it has one.
    fn client(&self, own: Option<&CertificateFiles>) -> TlsClient {
        TlsClient(ClientFiles {
            roots: Some(self.authority.certificate.clone()),
            certificate: own.map(|files| files.certificate.clone()),
            key: own.map(|files| files.key.clone()),
        })
    }
}

#[derive(Clone)]
struct TlsClient(ClientFiles);

impl TlsClient {
    async fn connect(&self, address: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        let connector = self.0.connector("").unwrap();
        let stream = TcpStream::connect(address).await?;
        connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
    }

    /// The certificate that the server shows, once it has answered a request.
    async fn shown(&self, address: SocketAddr) -> CertificateDer<'static> {
        let mut stream = self.connect(address).await.unwrap();
        assert_eq!(ask(&mut stream).await.unwrap(), "HTTP/1.1 200 OK");
        stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
    }
}

/// The first line of the response to a request, which is read to its end.
async fn ask(stream: &mut TlsStream<TcpStream>) -> std::io::Result<String> {
    stream.write_all(REQUEST).await?;
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Ok(head.lines().next().unwrap_or_default().to_owned());
            }
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Everything that the server sends until it closes the connection.
async fn read_to_end(mut stream: TcpStream) -> String {
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    String::from_utf8_lossy(&read).into_owned()
}

fn certificate(files: &CertificateFiles) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(&files.certificate).unwrap()
}

#[tokio::test]
async fn requests_are_served_over_tls() {
    let certificates = Certificates::new();
    let fixture = Fixture::with(|config| config.tls = Some(certificates.tls())).await;
    let client = certificates.client(None);
    let mut stream = client.connect(fixture.address).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), None, "the client offered none");
    for _ in 0..3 {
        assert_eq!(ask(&mut stream).await.unwrap(), "HTTP/1.1 200 OK");
    }
    assert_eq!(client.shown(fixture.address).await, certificate(&certificates.server));
    fixture.stop().await.unwrap().unwrap();
}

#[tokio::test]
async fn the_cookie_of_a_session_is_for_tls_only() {
    let certificates = Certificates::new();
    let token = "the-token-of-the-server";
    let fixture = Fixture::with(|config| {
        config.tls = Some(certificates.tls());
        config.token = Token::new(token).ok();
    })
    .await;
    let client = certificates.client(None);
    let send = async |request: String| {
        let mut stream = client.connect(fixture.address).await.unwrap();
        stream
            .write_all(request.replace("host: x", "host: x\r\nconnection: close").as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let head = "host: x\r\ncontent-type: application/json\r\ncontent-length: 2";
    let signed_in = send(format!(
        "POST /v1/session HTTP/1.1\r\n{head}\r\nauthorization: Bearer {token}\r\n\r\n{{}}"
    ))
    .await;
    let cookie = signed_in.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let (cookie, attributes) = cookie.split_once("; ").unwrap();
    assert!(cookie.starts_with("__Host-taskyard_session_"), "{cookie}");
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict; Secure");
    // The same id without the prefix may come from a page without TLS, so it is not accepted.
    for (cookie, status) in [(cookie, 200), (cookie.strip_prefix("__Host-").unwrap(), 401)] {
        let show = format!("GET /v1/session HTTP/1.1\r\nhost: x\r\ncookie: {cookie}\r\n\r\n");
        let shown = send(show).await;
        assert!(shown.starts_with(&format!("HTTP/1.1 {status} ")), "{shown}");
    }
}

/// A client without TLS saw a connection that was closed, and no reason.
#[tokio::test]
async fn plain_http_gets_an_answer_that_names_https() {
    let certificates = Certificates::new();
    let fixture = Fixture::with(|config| config.tls = Some(certificates.tls())).await;
    let answer = fixture.get("/healthz").await;
    let message = answer.refused(400, "invalid");
    assert!(message.contains("use https://"), "{message}");
    // Anything else gets the same answer.
    let said = read_to_end(fixture.raw("\0\0\0").await).await;
    assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
}

#[tokio::test]
async fn a_server_that_starts_answers_over_tls() {
    let certificates = Certificates::new();
    let mut config = config();
    config.tls = Some(certificates.tls());
    let listeners = Listeners::bind(config).await.unwrap();
    let mut stream = certificates.client(None).connect(listeners.address()).await.unwrap();
    assert_eq!(ask(&mut stream).await.unwrap(), "HTTP/1.1 503 Service Unavailable");
    let server = listeners.serve(engine()).await.unwrap();
    assert!(server.url().starts_with("https://127.0.0.1:"), "{}", server.url());
}

#[tokio::test]
async fn too_many_connections_are_refused_over_tls() {
    let certificates = Certificates::new();
    let fixture = Fixture::with(|config| {
        config.tls = Some(certificates.tls());
        config.connections_max = 1;
    });
    let (fixture, client) = (fixture.await, certificates.client(None));
    let mut one = client.connect(fixture.address).await.unwrap();
    assert_eq!(ask(&mut one).await.unwrap(), "HTTP/1.1 200 OK");
    let mut two = client.connect(fixture.address).await.unwrap();
    assert_eq!(ask(&mut two).await.unwrap(), "HTTP/1.1 503 Service Unavailable");
    assert_eq!(ask(&mut one).await.unwrap(), "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn a_handshake_has_a_time_limit() {
    let certificates = Certificates::new();
    let fixture = Fixture::with(|config| {
        config.tls = Some(certificates.tls());
        config.handshake_limits.time_max = Duration::from_secs(1);
    });
    let fixture = fixture.await;
    // One that sends nothing may be a client without TLS.
    let said = read_to_end(fixture.raw("").await).await;
    assert!(said.starts_with("HTTP/1.1 400 ") && said.contains("use https://"), "{said}");
    // One that begins a handshake and stops gets nothing.
    assert_eq!(read_to_end(fixture.raw("\x16\x03\x01").await).await, "");
}

#[tokio::test]
async fn the_number_of_handshakes_is_limited() {
    let certificates = Certificates::new();
    let fixture = Fixture::with(|config| {
        config.tls = Some(certificates.tls());
        config.handshake_limits.count_max = 0;
    });
    let fixture = fixture.await;
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    assert_eq!(read_to_end(stream).await, "");
    let refused = certificates.client(None).connect(fixture.address).await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn failed_handshakes_are_counted() {
    let certificates = Certificates::new();
    let fixture = Fixture::with(|config| config.tls = Some(certificates.tls())).await;
    fixture.get("/healthz").await;
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    // It is counted when the connection of the client is closed.
    loop {
        let mut stream = certificates.client(None).connect(fixture.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let line = "taskyard_tls_handshake_failures_total{protocol=\"http\"} ";
        let count = text.lines().find_map(|found| found.strip_prefix(line));
        match count.unwrap() {
            "0" => {}
            count => return assert_eq!(count, "1"),
        }
    }
}

#[tokio::test]
async fn a_client_certificate_is_required_if_an_authority_is_given() {
    let certificates = Certificates::new();
    let other = Authority::new(certificates.folder.path(), "other_ca").issue_client("stranger");
    let own = certificates.authority.issue_client("client");
    let tls = certificates.tls_for(Some(&certificates.authority.certificate));
    let fixture = Fixture::with(|config| config.tls = Some(tls)).await;
    let asked = async |own| {
        let client: TlsClient = certificates.client(own);
        let mut stream = client.connect(fixture.address).await?;
        ask(&mut stream).await
    };
    assert_eq!(asked(Some(&own)).await.unwrap(), "HTTP/1.1 200 OK");
    for (shown, why) in [(None, "CertificateRequired"), (Some(&other), "UnknownCA")] {
        let refused = asked(shown).await.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

#[tokio::test]
async fn an_authority_of_clients_is_replaced_with_the_certificate() {
    let certificates = Certificates::new();
    let other = Authority::new(certificates.folder.path(), "other_ca");
    let (first, second) = (certificates.authority.issue_client("a"), other.issue_client("b"));
    let trusted = certificates.folder.path().join("trusted.pem");
    std::fs::copy(&certificates.authority.certificate, &trusted).unwrap();
    let tls = certificates.tls_for(Some(&trusted));
    let fixture = Fixture::with(|config| config.tls = Some(tls.clone())).await;
    let asked = async |own| {
        let mut stream = certificates.client(Some(own)).connect(fixture.address).await?;
        ask(&mut stream).await
    };
    assert!(asked(&first).await.is_ok() && asked(&second).await.is_err());
    std::fs::copy(&other.certificate, &trusted).unwrap();
    assert_eq!(tls.reload_if_changed(), Some(Ok(())));
    assert!(asked(&first).await.is_err() && asked(&second).await.is_ok());
}

/// Asks over one connection that stays open and over a new one each time, until it is stopped. Counts its requests.
async fn load(
    client: TlsClient,
    address: SocketAddr,
    done: Arc<watch::Sender<u64>>,
    stop: watch::Receiver<bool>,
) {
    let mut kept = client.connect(address).await.unwrap();
    while !*stop.borrow() {
        assert_eq!(ask(&mut kept).await.unwrap(), "HTTP/1.1 200 OK");
        client.shown(address).await;
        done.send_modify(|done| *done += 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_replaced_under_load_without_a_lost_request() {
    const CLIENTS: usize = 16;
    let certificates = Certificates::new();
    let renewed = [certificates.authority.issue("one"), certificates.authority.issue("two")];
    let tls = certificates.tls();
    let fixture = Fixture::with(|config| config.tls = Some(tls.clone())).await;
    let (done, mut seen) = watch::channel(0);
    let (stop, stopped) = watch::channel(false);
    let (done, client) = (Arc::new(done), certificates.client(None));
    let mut loads = JoinSet::new();
    for _ in 0..CLIENTS {
        loads.spawn(load(client.clone(), fixture.address, done.clone(), stopped.clone()));
    }
    for files in renewed.iter().cycle().take(10) {
        let before = *seen.borrow();
        seen.wait_for(|done| *done >= before + CLIENTS as u64).await.unwrap();
        files.replace(&certificates.server);
        assert_eq!(tls.reload_if_changed(), Some(Ok(())));
        assert_eq!(client.shown(fixture.address).await, certificate(files));
    }
    // A broken file changes nothing.
    std::fs::write(&certificates.server.certificate, "broken").unwrap();
    assert!(tls.reload_if_changed().unwrap().is_err());
    let before = *seen.borrow();
    seen.wait_for(|done| *done >= before + CLIENTS as u64).await.unwrap();
    assert_eq!(client.shown(fixture.address).await, certificate(&renewed[1]));
    stop.send_replace(true);
    while let Some(ended) = loads.join_next().await {
        ended.unwrap();
    }
    fixture.stop().await.unwrap().unwrap();
}

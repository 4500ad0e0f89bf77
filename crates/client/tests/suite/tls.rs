//! Encrypted connections to a server, over HTTP and iproto.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use taskyard::{Client, Error, Http, Iproto, IprotoError, Refusal};
use taskyard_server::{Config, IprotoConfig, Tls};
use taskyard_store::MemoryStore;
use taskyard_testkit::server::{TestServer, block_on, clock, config};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

fn file(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/iproto/tls");
    PathBuf::from(folder).join(name)
}

async fn put_and_take(client: Client) {
    client.put("mail", &"x".repeat(100_000)).await.unwrap();
    let task = client.take("mail", Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(task.data::<String>().unwrap().len(), 100_000);
    client.ack(&task).await.unwrap();
}

/// A proxy that ends TLS in front of the server, as the documentation advises for HTTP.
async fn proxy(server: String) -> u16 {
    let certificate = CertificateDer::from_pem_file(file("certificate.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, server) = (acceptor.clone(), server.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut upstream = TcpStream::connect(server).await.unwrap();
                let _ = copy_bidirectional(&mut stream, &mut upstream).await;
            });
        }
    });
    port
}

#[test]
fn over_https() {
    block_on(async {
        let fixture = TestServer::in_memory().await;
        let port = proxy(fixture.http.url().trim_start_matches("http://").to_owned()).await;
        let url = format!("https://localhost:{port}");
        let http = Http::new(&url).unwrap().with_roots(&file("certificate.pem")).unwrap();
        assert_eq!(http.url(), url);
        put_and_take(Client::new(http)).await;
        let distrusted = Client::open(&url).await.unwrap().idempotent(false);
        let error = distrusted.put("mail", "x").await.unwrap_err();
        assert!(matches!(error, Error::Refused(Refusal::Store(_))), "{error}");
        assert!(error.to_string().contains("the certificate of localhost is refused"), "{error}");
    });
}

/// A worker tried again for ever when the certificate of its server was refused, and did not say so.
#[test]
fn a_worker_ends_when_the_certificate_is_refused() {
    block_on(async {
        let fixture = TestServer::in_memory().await;
        let port = proxy(fixture.http.url().trim_start_matches("http://").to_owned()).await;
        let client = Client::open(&format!("https://localhost:{port}")).await.unwrap();
        let function = async |_: String, _| Ok::<(), String>(());
        let worker = client.worker("mail");
        let error = worker.run_until(std::future::pending(), function).await.unwrap_err();
        assert!(error.to_string().contains("the certificate of localhost is refused"), "{error}");
        fixture.stop().await;
    });
}

/// The certificate is one of `localhost`.
#[test]
fn another_host_name_is_refused() {
    block_on(async {
        let fixture = TestServer::in_memory().await;
        let port = proxy(fixture.http.url().trim_start_matches("http://").to_owned()).await;
        let http = Http::new(&format!("https://127.0.0.1:{port}")).unwrap();
        let http = http.with_roots(&file("certificate.pem")).unwrap();
        let error = Client::new(http).stats("mail").await.unwrap_err().to_string();
        assert!(error.contains("the certificate of 127.0.0.1 is refused"), "{error}");
        fixture.stop().await;
    });
}

#[test]
fn over_iprotos() {
    block_on(async {
        let tls = Tls::read(&file("certificate.pem"), &file("key.pem")).unwrap();
        let usual = config();
        let iproto = usual.iproto.clone().map(|iproto| IprotoConfig { tls: Some(tls), ..iproto });
        let config = Config { iproto, ..usual };
        let fixture = TestServer::start(Box::new(MemoryStore::default()), clock(), config).await;
        let url = format!("iprotos://localhost:{}", fixture.iproto.port());
        let iproto = Iproto::new(&url).unwrap().with_roots(&file("certificate.pem")).unwrap();
        put_and_take(Client::new(iproto)).await;
        let distrusted = Iproto::new(&url).unwrap().ping().await.unwrap_err();
        assert!(matches!(distrusted, IprotoError::Certificates(_)), "{distrusted}");
        assert!(distrusted.to_string().contains("the certificate of localhost"), "{distrusted}");
        fixture.stop().await;
    });
}

#[test]
fn a_file_without_certificates_is_named() {
    let http = Http::new("https://localhost").unwrap();
    let refused = http.with_roots(&file("key.pem")).unwrap_err();
    assert!(refused.to_string().contains("key.pem: there is none in it"), "{refused}");
    let http = Http::new("https://localhost").unwrap();
    assert!(http.with_roots(&file("nothing.pem")).unwrap_err().to_string().contains("nothing.pem"));
}

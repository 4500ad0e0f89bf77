//! Encrypted connections to a server, over HTTP and iproto.

use std::path::Path;
use std::time::Duration;

use taskyard::{Client, Error, Http, HttpError, Iproto, IprotoError, Refusal};
use taskyard_server::{
    Config, HTTP_PROTOCOL, HandshakeLimits, IprotoConfig, ServerFiles, ServerTls,
};
use taskyard_store::MemoryStore;
use taskyard_testkit::certificates::{Authority, CertificateFiles, self_signed};
use taskyard_testkit::server::{TestServer, block_on, clock, config};
use tempfile::TempDir;

/// A server with encrypted connections, and the authority of its certificate.
struct TlsFixture {
    folder: TempDir,
    authority: Authority,
    server: TestServer,
    tls: ServerTls,
}

/// What a server shows.
enum Shown {
    Good,
    Expired,
    OtherName,
    SelfSigned,
}

impl TlsFixture {
    async fn new() -> Self {
        TlsFixture::with(Shown::Good, false).await
    }

    /// A server that shows this, and asks for client certificates or not.
    async fn with(shown: Shown, asks: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "ca");
        let CertificateFiles { certificate, key } = match shown {
            Shown::Good => authority.issue("server"),
            Shown::Expired => authority.issue_expired("server"),
            Shown::OtherName => authority.issue_for("server", &["example.com"]),
            Shown::SelfSigned => self_signed(folder.path(), "server"),
        };
        let client_ca = asks.then(|| authority.certificate.clone());
        let files = ServerFiles { certificate, key, client_ca };
        let tls = ServerTls::read(files.clone(), &[HTTP_PROTOCOL]).unwrap();
        let iproto = Some(ServerTls::read(files, &[]).unwrap());
        let usual = config();
        let iproto = usual.iproto.clone().map(|usual| IprotoConfig { tls: iproto, ..usual });
        // A client without TLS is answered after half of this.
        let time_max = Duration::from_secs(4);
        let handshake_limits = HandshakeLimits { time_max, ..HandshakeLimits::default() };
        let config = Config { tls: Some(tls.clone()), iproto, handshake_limits, ..usual };
        let store = Box::new(MemoryStore::default());
        let server = TestServer::start(store, clock(), config).await;
        TlsFixture { folder, authority, server, tls }
    }

    fn https(&self) -> String {
        self.server.http.url().replace("127.0.0.1", "localhost").replace("example.com", "localhost")
    }

    fn iprotos(&self) -> String {
        format!("iprotos://localhost:{}", self.server.iproto.port())
    }

    fn http(&self, roots: &Path) -> Http {
        Http::new(&self.https()).unwrap().with_roots(roots).unwrap()
    }

    fn iproto(&self, roots: &Path) -> Iproto {
        Iproto::new(&self.iprotos()).unwrap().with_roots(roots).unwrap()
    }

    /// Why both protocols refuse the server.
    async fn refused(&self, roots: &Path) -> [String; 2] {
        let http = self.http(roots).tubes(None).await.unwrap_err();
        assert!(matches!(http, HttpError::Certificates(_)), "{http:?}");
        let iproto = self.iproto(roots).ping().await.unwrap_err();
        assert!(matches!(iproto, IprotoError::Certificates(_)), "{iproto:?}");
        [http.to_string(), iproto.to_string()]
    }
}

async fn put_and_take(client: Client) {
    client.put("mail", &"x".repeat(100_000)).await.unwrap();
    let task = client.take("mail", Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(task.data::<String>().unwrap().len(), 100_000);
    client.ack(&task).await.unwrap();
}

#[test]
fn over_https_and_iprotos() {
    block_on(async {
        let fixture = TlsFixture::new().await;
        let roots = &fixture.authority.certificate;
        assert_eq!(fixture.http(roots).url(), fixture.https());
        put_and_take(Client::new(fixture.http(roots))).await;
        put_and_take(Client::new(fixture.iproto(roots))).await;
        let distrusted = Client::open(&fixture.https()).await.unwrap().idempotent(false);
        let error = distrusted.put("mail", "x").await.unwrap_err();
        assert!(matches!(error, Error::Refused(Refusal::Store(_))), "{error}");
        assert!(error.to_string().contains("the certificate of localhost is refused"), "{error}");
        fixture.server.stop().await;
    });
}

#[test]
fn a_refusal_says_what_to_do() {
    block_on(async {
        let other = tempfile::tempdir().unwrap();
        let other = Authority::new(other.path(), "other");
        let unknown = "no trusted certificate signed it; if it is the right one, name a file";
        let cases = [
            (Shown::Good, false, unknown),
            (Shown::Expired, true, "it has expired; renew it on the server"),
            (
                Shown::OtherName,
                true,
                "it is not for the name localhost but for example.com; use that name",
            ),
            (Shown::SelfSigned, true, "signed itself"),
        ];
        for (shown, is_trusted, why) in cases {
            let fixture = TlsFixture::with(shown, false).await;
            let authority = if is_trusted { &fixture.authority } else { &other };
            for said in fixture.refused(&authority.certificate).await {
                assert!(said.contains("the certificate of localhost is refused"), "{said}");
                assert!(said.contains(why), "{said}");
            }
            fixture.server.stop().await;
        }
    });
}

/// The certificate of a server that no authority signed is trusted by giving it to the client.
#[test]
fn a_certificate_that_is_given_itself_is_trusted() {
    block_on(async {
        for shown in [Shown::Good, Shown::SelfSigned] {
            let fixture = TlsFixture::with(shown, false).await;
            let certificate = fixture.folder.path().join("server.pem");
            put_and_take(Client::new(fixture.http(&certificate))).await;
            put_and_take(Client::new(fixture.iproto(&certificate))).await;
            fixture.server.stop().await;
        }
        for shown in [Shown::Expired, Shown::OtherName] {
            let fixture = TlsFixture::with(shown, false).await;
            let certificate = fixture.folder.path().join("server.pem");
            fixture.refused(&certificate).await;
            fixture.server.stop().await;
        }
    });
}

#[test]
fn a_server_may_ask_for_a_client_certificate() {
    block_on(async {
        let fixture = TlsFixture::with(Shown::Good, true).await;
        let roots = &fixture.authority.certificate;
        for said in fixture.refused(roots).await {
            assert!(
                said.contains("localhost asks for a client certificate and got none"),
                "{said}"
            );
            assert!(said.contains("TASKYARD_CLIENT_CERT"), "{said}");
        }
        let CertificateFiles { certificate, key } = fixture.authority.issue_client("client");
        let http = fixture.http(roots).with_client_certificate(&certificate, &key).unwrap();
        put_and_take(Client::new(http)).await;
        let iproto = fixture.iproto(roots).with_client_certificate(&certificate, &key).unwrap();
        put_and_take(Client::new(iproto)).await;
        let other = Authority::new(fixture.folder.path(), "other").issue_client("stranger");
        let http = fixture.http(roots).with_client_certificate(&other.certificate, &other.key);
        let said = http.unwrap().tubes(None).await.unwrap_err().to_string();
        assert!(said.contains("localhost refused the client certificate"), "{said}");
        let iproto = fixture.iproto(roots).with_client_certificate(&other.certificate, &other.key);
        let said = iproto.unwrap().ping().await.unwrap_err().to_string();
        assert!(said.contains("localhost refused the client certificate"), "{said}");
        let mixed = fixture.http(roots).with_client_certificate(&certificate, &other.key);
        let said = mixed.unwrap_err().to_string();
        assert!(said.contains("does not belong to the certificate"), "{said}");
        fixture.server.stop().await;
    });
}

/// A worker tried again for ever when the certificate of its server was refused, and did not say so.
#[test]
fn a_worker_ends_when_the_certificate_is_refused() {
    block_on(async {
        let fixture = TlsFixture::new().await;
        let client = Client::open(&fixture.https()).await.unwrap();
        let function = async |_: String, _| Ok::<(), String>(());
        let worker = client.worker("mail");
        let error = worker.run_until(std::future::pending(), function).await.unwrap_err();
        assert!(error.to_string().contains("the certificate of localhost is refused"), "{error}");
        fixture.server.stop().await;
    });
}

#[test]
fn a_url_with_the_wrong_scheme_is_explained() {
    block_on(async {
        let fixture = TlsFixture::new().await;
        let plain = Http::new(&fixture.https().replace("https:", "http:")).unwrap();
        let said = plain.tubes(None).await.unwrap_err().to_string();
        assert!(said.contains("speaks TLS only; use https://"), "{said}");
        let plain = Iproto::new(&fixture.iprotos().replace("iprotos:", "iproto:")).unwrap();
        let said = plain.ping().await.unwrap_err().to_string();
        assert!(said.contains("speaks TLS only; use iprotos://"), "{said}");
        let unencrypted = TestServer::in_memory().await;
        let roots = &fixture.authority.certificate;
        let url = unencrypted.http.url().replace("http:", "https:");
        let said = Http::new(&url).unwrap().with_roots(roots).unwrap().tubes(None).await;
        let said = said.unwrap_err().to_string();
        assert!(said.contains("127.0.0.1 answers without TLS; use http://"), "{said}");
        let url = format!("iprotos://{}", unencrypted.iproto);
        let said = Iproto::new(&url).unwrap().with_roots(roots).unwrap().ping().await;
        let said = said.unwrap_err().to_string();
        assert!(said.contains("127.0.0.1 answers without TLS"), "{said}");
        unencrypted.stop().await;
        fixture.server.stop().await;
    });
}

/// Clients go on over their connections, and new clients see the new certificate.
#[test]
fn a_certificate_is_replaced_between_requests() {
    block_on(async {
        let fixture = TlsFixture::new().await;
        let old = Client::new(fixture.http(&fixture.authority.certificate));
        put_and_take(old.clone()).await;
        let other = Authority::new(fixture.folder.path(), "other");
        let files = fixture.tls.files();
        let shown =
            CertificateFiles { certificate: files.certificate.clone(), key: files.key.clone() };
        other.issue("renewed").replace(&shown);
        assert_eq!(fixture.tls.reload_if_changed(), Some(Ok(())));
        put_and_take(old).await;
        put_and_take(Client::new(fixture.http(&other.certificate))).await;
        let refused = fixture.http(&fixture.authority.certificate).tubes(None).await.unwrap_err();
        assert!(refused.to_string().contains("no trusted certificate signed it"), "{refused}");
        fixture.server.stop().await;
    });
}

#[test]
fn a_file_without_certificates_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let files = self_signed(folder.path(), "server");
    let http = Http::new("https://localhost").unwrap();
    let refused = http.with_roots(&files.key).unwrap_err().to_string();
    assert!(refused.contains("server.key: there is none in it"), "{refused}");
    let http = Http::new("https://localhost").unwrap();
    let missing = folder.path().join("nothing.pem");
    assert!(http.with_roots(&missing).unwrap_err().to_string().contains("nothing.pem"));
}

/// A client with root certificates for a server without TLS was accepted, and nothing was verified.
#[test]
fn certificates_for_a_server_without_tls_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let files = self_signed(folder.path(), "server");
    let http = || Http::new("http://localhost").unwrap();
    let iproto = || Iproto::new("localhost:3301").unwrap();
    for refused in [
        http().with_roots(&files.certificate).unwrap_err().to_string(),
        http().with_client_certificate(&files.certificate, &files.key).unwrap_err().to_string(),
        iproto().with_roots(&files.certificate).unwrap_err().to_string(),
    ] {
        assert!(refused.contains("localhost") && refused.contains("not encrypted"), "{refused}");
    }
}

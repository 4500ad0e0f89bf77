//! Encrypted connections between gateways and backends, and those that are refused.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use taskyard_pool::redis::{BackendTrust, Identity};
use tokio_tungstenite::connect_async;

use super::fake_runner::FakeRunner;
use super::fixture::RedisFixture;

/// Short leases, so that silent parts are given up soon.
const SHORT: &str = "leases: {task_seconds: 3, backend_seconds: 1, leader_seconds: 1}\n";
const LOST: &str = "the program or its backend was killed";

/// A self-signed certificate for this name.
fn certificate(folder: &Path, file: &str, name: &str) -> Identity {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    openssl.args(["-nodes", "-days", "2", "-subj", "/CN=backend"]);
    openssl.args(["-addext", &format!("subjectAltName={name}")]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    let (key, own) = (folder.join(format!("{file}.key")), folder.join(format!("{file}.crt")));
    openssl.arg("-keyout").arg(&key).arg("-out").arg(&own);
    let made = openssl.output().expect("PostgreSQL's package brings openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Identity::read(&own, &key).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_uses_encrypted_backends_that_it_trusts() {
    let Some(fixture) = RedisFixture::new(1, SHORT) else { return };
    let folder = tempfile::tempdir().unwrap();
    let identity = certificate(folder.path(), "own", "IP:127.0.0.1");
    certificate(folder.path(), "other", "IP:127.0.0.1");
    let _scheduler = fixture.scheduler("one");
    let backend = fixture.backends_as(Arc::new(FakeRunner), None, Some(identity)).await;
    let trust = |name: &str| BackendTrust::read(&folder.path().join(name)).unwrap();
    let own = fixture.gateway_trusting(trust("own.crt")).await;
    let answer = own.run("1").await;
    assert_eq!(answer["ok"]["output"][0]["text"], "done\n", "{answer}");
    let status = fixture.status().await;
    assert_eq!(status["in_redis"]["backends"][0]["encrypted"], true, "{status:#}");
    // These two trust no certificate that signed it, so their clients receive an error.
    for gateway in [fixture.gateway_trusting(trust("other.crt")).await, fixture.gateway().await] {
        let answer = gateway.run("100000").await;
        assert_eq!(answer["error"]["error"], LOST, "{answer}");
    }
    fixture.until_empty().await;
    // An unencrypted connection is refused.
    let address = status["in_redis"]["backends"][0]["address"].as_str().unwrap();
    assert!(connect_async(format!("ws://{address}/pool/backend/x")).await.is_err());
    backend.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_requires_encryption_uses_no_other_backend() {
    let Some(fixture) = RedisFixture::new(1, SHORT) else { return };
    let folder = tempfile::tempdir().unwrap();
    let wrong = certificate(folder.path(), "own", "DNS:other.example");
    let _scheduler = fixture.scheduler("one");
    let gateway =
        fixture.gateway_trusting(BackendTrust::read(&folder.path().join("own.crt")).unwrap()).await;
    // One that does not encrypt, and one with the certificate of another machine.
    for identity in [None, Some(wrong)] {
        let _backend = fixture.backends_as(Arc::new(FakeRunner), None, identity).await;
        let answer = gateway.run("100000").await;
        assert_eq!(answer["error"]["error"], LOST, "{answer}");
        fixture.until_empty().await;
    }
}

#[test]
fn files_without_certificates_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    certificate(folder.path(), "own", "IP:127.0.0.1");
    let file = |name: &str| folder.path().join(name);
    for (certificate, key, expected) in [
        ("nothing.crt", "own.key", "nothing.crt"),
        ("own.crt", "nothing.key", "nothing.key"),
        ("own.crt", "own.crt", "a private key"),
        ("own.key", "own.key", "certificate"),
    ] {
        let refused = Identity::read(&file(certificate), &file(key)).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    for name in ["nothing.crt", "own.key"] {
        let refused = BackendTrust::read(&file(name)).unwrap_err().to_string();
        assert!(refused.contains(name) && refused.contains("PEM"), "{refused}");
    }
}

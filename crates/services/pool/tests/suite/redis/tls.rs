//! Encrypted connections between gateways and backends, and those that are refused.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use taskyard_pool::redis::{Identity, Trust};
use tokio_tungstenite::connect_async;

use super::acting::Actor;
use super::yard::Yard;

/// Nobody waits long for those who are silent.
const SHORT: &str = "leases: {task_seconds: 3, backend_seconds: 1, leader_seconds: 1}\n";
const LOST: &str = "the program or its backend was killed";

/// A certificate that vouches for itself, for this name.
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
async fn a_gateway_goes_to_encrypted_backends_that_it_can_believe() {
    let Some(yard) = Yard::new(1, SHORT) else { return };
    let folder = tempfile::tempdir().unwrap();
    let identity = certificate(folder.path(), "own", "IP:127.0.0.1");
    certificate(folder.path(), "other", "IP:127.0.0.1");
    let _scheduler = yard.scheduler("one");
    let backend = yard.backends_as(Arc::new(Actor), None, Some(identity)).await;
    let trust = |name: &str| Trust::read(&folder.path().join(name)).unwrap();
    let own = yard.gateway_trusting(trust("own.crt")).await;
    let answer = own.run("1").await;
    assert_eq!(answer["ok"]["output"][0]["text"], "done\n", "{answer}");
    let status = yard.status().await;
    assert_eq!(status["in_redis"]["backends"][0]["encrypted"], true, "{status:#}");
    // Nobody whom these two believe vouches for it, so they never hear the task: they are told, and no more.
    for gateway in [yard.gateway_trusting(trust("other.crt")).await, yard.gateway().await] {
        let answer = gateway.run("100000").await;
        assert_eq!(answer["error"]["error"], LOST, "{answer}");
    }
    yard.until_empty().await;
    // The door opens to nobody who does not encrypt.
    let address = status["in_redis"]["backends"][0]["address"].as_str().unwrap();
    assert!(connect_async(format!("ws://{address}/pool/backend/x")).await.is_err());
    backend.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_asks_for_encryption_takes_nothing_else() {
    let Some(yard) = Yard::new(1, SHORT) else { return };
    let folder = tempfile::tempdir().unwrap();
    let wrong = certificate(folder.path(), "own", "DNS:elsewhere.example");
    let _scheduler = yard.scheduler("one");
    let gateway = yard.gateway_trusting(Trust::read(&folder.path().join("own.crt")).unwrap()).await;
    // One that does not encrypt, and one with the certificate of another machine.
    for identity in [None, Some(wrong)] {
        let _backend = yard.backends_as(Arc::new(Actor), None, identity).await;
        let answer = gateway.run("100000").await;
        assert_eq!(answer["error"]["error"], LOST, "{answer}");
        yard.until_empty().await;
    }
}

#[test]
fn files_that_are_no_certificates_are_refused_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    certificate(folder.path(), "own", "IP:127.0.0.1");
    let file = |name: &str| folder.path().join(name);
    for (certificate, key, words) in [
        ("nothing.crt", "own.key", "nothing.crt"),
        ("own.crt", "nothing.key", "nothing.key"),
        ("own.crt", "own.crt", "a private key"),
        ("own.key", "own.key", "certificate"),
    ] {
        let refused = Identity::read(&file(certificate), &file(key)).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    for name in ["nothing.crt", "own.key"] {
        let refused = Trust::read(&file(name)).unwrap_err().to_string();
        assert!(refused.contains(name) && refused.contains("PEM"), "{refused}");
    }
}

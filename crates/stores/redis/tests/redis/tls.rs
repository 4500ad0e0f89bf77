//! Tests of TLS connections.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use taskyard_store_redis::{Clock, RedisStore};
use tempfile::TempDir;

use taskyard_testkit::redis::run;
use taskyard_testkit::redis::{RedisInstance, free_port, program};

/// A Redis with TLS on another port, as `localhost`.
struct TlsRedis {
    _redis: RedisInstance,
    port: u16,
    /// Contains the self-signed certificate, and another one.
    folder: TempDir,
}

fn tls_redis() -> &'static TlsRedis {
    static GUARDED: OnceLock<TlsRedis> = OnceLock::new();
    GUARDED.get_or_init(|| {
        let folder = TempDir::new().expect("a temporary folder can be made");
        certificate(folder.path(), "localhost");
        certificate(folder.path(), "other");
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (port, own, key) = (free_port(), file("localhost.crt"), file("localhost.key"));
        let text = port.to_string();
        let settings = ["--tls-port", &text, "--tls-cert-file", &own, "--tls-key-file", &key];
        let clients = ["--tls-ca-cert-file", &own, "--tls-auth-clients", "no"];
        let settings = [&settings[..], &clients].concat();
        let redis = RedisInstance::with(program().expect("it is there"), &settings);
        TlsRedis { _redis: redis, port, folder }
    })
}

/// Creates a self-signed certificate for this name.
fn certificate(folder: &Path, name: &str) {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    openssl.args(["-nodes", "-days", "2", "-subj", &format!("/CN={name}")]);
    openssl.args(["-addext", &format!("subjectAltName=DNS:{name}")]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.arg("-keyout").arg(folder.join(format!("{name}.key")));
    openssl.arg("-out").arg(folder.join(format!("{name}.crt")));
    let made = openssl.output().expect("PostgreSQL's package brings openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn opened(host: &str, root: &str) -> Result<(), String> {
    let tls_redis = tls_redis();
    let root = tls_redis.folder.path().join(root);
    let url = format!("rediss://{host}:{}?sslrootcert={}", tls_redis.port, root.display());
    RedisStore::open(&url, Clock::Database).map(drop).map_err(|error| error.to_string())
}

#[test]
fn a_certificate_is_verified() {
    run(async {
        assert_eq!(opened("localhost", "localhost.crt"), Ok(()));
        for (host, root, why) in [
            ("localhost", "other.crt", "certificate"),
            ("127.0.0.1", "localhost.crt", "certificate"),
            ("localhost", "nowhere.crt", "nowhere.crt"),
            ("localhost", "localhost.key", "there is none in it"),
        ] {
            let refusal = opened(host, root).expect_err(root);
            assert!(refusal.contains(why), "{host}, {root}: {refusal}");
        }
    });
}

#[test]
fn a_connection_without_tls_is_refused() {
    run(async {
        let url = format!("redis://localhost:{}", tls_redis().port);
        assert!(RedisStore::open(&url, Clock::Database).is_err());
    });
}

//! Encrypted connections.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use taskyard_store_redis::{Clock, RedisStore};
use tempfile::TempDir;

use taskyard_testkit::redis::run;
use taskyard_testkit::redis::{Instance, free_port, program};

/// A Redis that talks encrypted on another port, as `localhost`.
struct Guarded {
    _redis: Instance,
    port: u16,
    /// Has the certificate, which has signed itself, and another one.
    folder: TempDir,
}

fn guarded() -> &'static Guarded {
    static GUARDED: OnceLock<Guarded> = OnceLock::new();
    GUARDED.get_or_init(|| {
        let folder = TempDir::new().expect("a temporary folder can be made");
        certificate(folder.path(), "localhost");
        certificate(folder.path(), "elsewhere");
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (port, own, key) = (free_port(), file("localhost.crt"), file("localhost.key"));
        let text = port.to_string();
        let settings = ["--tls-port", &text, "--tls-cert-file", &own, "--tls-key-file", &key];
        let clients = ["--tls-ca-cert-file", &own, "--tls-auth-clients", "no"];
        let settings = [&settings[..], &clients].concat();
        let redis = Instance::with(program().expect("it is there"), &settings);
        Guarded { _redis: redis, port, folder }
    })
}

/// Makes a certificate for this name, signed by itself.
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
    let guarded = guarded();
    let root = guarded.folder.path().join(root);
    let url = format!("rediss://{host}:{}?sslrootcert={}", guarded.port, root.display());
    RedisStore::open(&url, Clock::Database).map(drop).map_err(|error| error.to_string())
}

#[test]
fn a_connection_is_encrypted_and_looked_at() {
    run(async {
        assert_eq!(opened("localhost", "localhost.crt"), Ok(()));
        for (host, root, why) in [
            ("localhost", "elsewhere.crt", "certificate"),
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
fn who_does_not_encrypt_is_not_understood() {
    run(async {
        let url = format!("redis://localhost:{}", guarded().port);
        assert!(RedisStore::open(&url, Clock::Database).is_err());
    });
}

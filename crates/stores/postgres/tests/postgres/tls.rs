//! Encrypted connections, and passwords.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use taskyard_store_postgres::{Clock, PostgresStore};
use tempfile::TempDir;

use taskyard_testkit::postgres::{Cluster, programs};
use taskyard_testkit::postgres::{prepare, run, sql};
use taskyard_testkit::recorded_output::in_url;

/// The access rules of the database: no unencrypted connection over the network.
const ACCESS: &str = "
local all all trust
hostssl all guarded 127.0.0.1/32 scram-sha-256
hostssl all all 127.0.0.1/32 trust
hostnossl all all 127.0.0.1/32 reject
";

/// A database that accepts only encrypted connections over the network, as `localhost`.
struct Guarded {
    cluster: Cluster,
    port: u16,
    /// Has the self-signed certificate, and another one.
    folder: TempDir,
}

fn guarded() -> &'static Guarded {
    static GUARDED: OnceLock<Guarded> = OnceLock::new();
    GUARDED.get_or_init(|| {
        let folder = TempDir::new().expect("a temporary folder can be made");
        certificate(folder.path(), "localhost");
        certificate(folder.path(), "elsewhere");
        let port = taskyard_testkit::free_port();
        let cluster = Cluster::with(programs().expect("it is there"), port, |data| {
            for name in ["localhost.crt", "localhost.key"] {
                fs::copy(folder.path().join(name), data.join(name)).expect("it can be copied");
                let only_own = Permissions::from_mode(0o600);
                fs::set_permissions(data.join(name), only_own).expect("it is ours");
            }
            fs::write(data.join("pg_hba.conf"), ACCESS).expect("it can be written");
            "listen_addresses = '127.0.0.1'\nssl = on\nssl_cert_file = 'localhost.crt'\n\
             ssl_key_file = 'localhost.key'\n"
                .into()
        });
        prepare(&cluster);
        let password = cluster.password();
        let role = format!("CREATE ROLE guarded SUPERUSER LOGIN PASSWORD '{password}'");
        sql(&cluster.url("original"), &role);
        Guarded { cluster, port, folder }
    })
}

impl Guarded {
    fn url(&self, user: &str, host: &str, parameters: &str) -> String {
        format!("postgres://{user}@{host}:{}/original?{parameters}", self.port)
    }

    /// The user that needs a password, with it.
    fn user(&self) -> String {
        format!("guarded:{}", in_url(self.cluster.password()))
    }

    fn root(&self, name: &str) -> String {
        format!("sslrootcert={}", self.folder.path().join(name).display())
    }
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

/// Opens a store; returns the error as text if that fails.
fn opened(url: &str) -> Result<(), String> {
    PostgresStore::open(url, Clock::Database).map(drop).map_err(|error| error.to_string())
}

fn refused(url: &str, why: &str) {
    let refusal = opened(url).expect_err(url);
    assert!(refusal.contains(why), "{url}: {refusal}");
}

#[test]
fn a_connection_is_encrypted_and_verified_as_the_url_says() {
    run(async {
        let guarded = guarded();
        let (own, other) = (guarded.root("localhost.crt"), guarded.root("elsewhere.crt"));
        let url = |host: &str, mode: &str, root: &str| {
            guarded.url("postgres", host, &format!("sslmode={mode}&{root}"))
        };
        for (host, mode, root) in [
            ("localhost", "prefer", ""),
            ("localhost", "require", ""),
            ("localhost", "require", &own),
            ("127.0.0.1", "verify-ca", &own),
            ("localhost", "verify-full", &own),
        ] {
            let url = url(host, mode, root);
            assert_eq!(opened(&url), Ok(()), "{url}");
        }
        refused(&url("localhost", "disable", ""), "no encryption");
        refused(&url("localhost", "verify-full", &other), "certificate");
        refused(&url("localhost", "verify-ca", &other), "certificate");
        refused(&url("127.0.0.1", "verify-full", &own), "certificate");
        refused(&url("localhost", "verify-full", "sslrootcert=nowhere.crt"), "nowhere.crt");
    });
}

#[test]
fn a_password_of_the_url_is_sent_encrypted() {
    run(async {
        let guarded = guarded();
        let url = |user: &str| guarded.url(user, "localhost", "sslmode=require");
        assert_eq!(opened(&url(&guarded.user())), Ok(()));
        refused(&url("guarded:wrong"), "password authentication failed");
    });
}

/// The password exchange is bound to the certificate of the server. Channel binding used to be missing always: the
/// certificate was parsed as a part of one, which failed silently.
#[test]
fn a_password_exchange_is_bound_to_the_certificate() {
    run(async {
        let guarded = guarded();
        let url = |user: &str, binding: &str| {
            let parameters = format!("sslmode=require&channel_binding={binding}");
            guarded.url(user, "localhost", &parameters)
        };
        for binding in ["require", "prefer", "disable"] {
            assert_eq!(opened(&url(&guarded.user(), binding)), Ok(()), "{binding}");
        }
        refused(&url("postgres", "require"), "channel binding");
    });
}

/// A database without encryption.
#[test]
fn a_database_without_encryption_is_refused_if_it_is_required() {
    run(async {
        let port = taskyard_testkit::free_port();
        let listening = |_: &Path| "listen_addresses = '127.0.0.1'\n".into();
        let cluster = Cluster::with(programs().expect("it is there"), port, listening);
        let url = |mode| format!("postgres://postgres@localhost:{port}/postgres?sslmode={mode}");
        refused(&url("require"), "TLS");
        refused(&url("verify-full&sslrootcert=nowhere.crt"), "nowhere.crt");
        assert_eq!(opened(&url("prefer")), Ok(()));
        drop(cluster);
    });
}

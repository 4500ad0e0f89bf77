//! Encrypted connections to a server with its own certificates.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use taskyard_core::service::Service;
use taskyard_sql::connection::{Query, SessionOptions, connect};
use taskyard_sql::{Config, Conninfo, Source, SqlTasks};

use crate::fixture::{Client, run};
use taskyard_testkit::postgres::{Cluster, programs};

/// Creates a certificate authority, and a certificate for another address than that of the server.
const CERTIFICATES: &str = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=authority -keyout ca.key -out ca.crt && \
    openssl req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr && \
    echo subjectAltName=IP:127.0.0.1 > names && \
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile names -out server.crt && \
    openssl req -newkey rsa:2048 -nodes -subj /CN=certified -keyout client.key -out client.csr && \
    openssl x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out client.crt && \
    chmod 600 server.key";

/// Checks the keepalives: a machine that went down without closing its connections kept its sessions and the lock of the
/// leader for two hours.
async fn assert_keepalives(conninfo: &str, local: &Conninfo) {
    let admin = Client::new(local).await;
    let conninfo = Conninfo::parse(conninfo).expect("a connection string");
    let source = Source::Inline(Config::single(&conninfo));
    let tasks = SqlTasks::start(conninfo, source, Duration::from_secs(60)).expect("it starts");
    admin.until("to_regclass('public.task') IS NOT NULL").await;
    let input = "concat_ws('' '', current_setting(''tcp_keepalives_idle''), current_setting(''tcp_keepalives_count''))";
    admin.run(&format!("INSERT INTO task (input) VALUES ('select {input}')")).await;
    admin.until("EXISTS (SELECT FROM task WHERE output = '10 3')").await;
    tasks.stop().await;
}

#[test]
fn sslmode_is_enforced() {
    run(async {
        let cluster = Cluster::new(programs().expect("the caller has checked for PostgreSQL"));
        let local = Conninfo::parse(&cluster.url("postgres")).expect("a URL");
        // An address of this machine that no other test has.
        let number = std::process::id();
        let host = format!("127.{}.{}.1", 1 + number % 199, number / 199 % 250);
        let admin = Client::new(&local).await;
        admin.run(&format!("COPY (SELECT 1) TO PROGRAM '({CERTIFICATES}) >/dev/null 2>&1'")).await;
        admin.run("ALTER SYSTEM SET ssl = on").await;
        admin.run(&format!("ALTER SYSTEM SET listen_addresses = '{host}'")).await;
        admin.run("ALTER SYSTEM SET ssl_ca_file = 'ca.crt'").await;
        admin.run("CREATE ROLE certified LOGIN").await;
        let rules = "SELECT ''local all all trust'' UNION ALL SELECT ''hostssl all certified 127.0.0.0/8 cert'' \
                     UNION ALL SELECT ''hostssl all all 127.0.0.0/8 trust''";
        admin.run(&format!("DO $d$ BEGIN EXECUTE format('COPY ({rules}) TO %L', current_setting('hba_file')); END $d$")).await;
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["ca.crt", "client.crt", "client.key"] {
            let text = admin.get(&format!("SELECT pg_read_file('{name}')")).await;
            let file = folder.path().join(name);
            std::fs::write(&file, text.expect("it was made")).expect("it can be written");
            std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("it is ours");
        }
        let open = folder.path().join("open.key");
        std::fs::copy(folder.path().join("client.key"), &open).expect("it can be copied");
        std::fs::set_permissions(&open, Permissions::from_mode(0o644)).expect("it is ours");
        cluster.kill();
        cluster.start();
        let root = folder.path().join("ca.crt").display().to_string();
        let own = |key: &str| {
            let cert = folder.path().join("client.crt");
            let key = folder.path().join(key);
            format!("sslcert={} sslkey={}", cert.display(), key.display())
        };
        for (options, expected) in [
            ("sslmode=prefer".to_owned(), None),
            ("sslmode=require".to_owned(), None),
            (format!("sslmode=verify-ca sslrootcert={root}"), None),
            (format!("sslmode=verify-full sslrootcert={root}"), Some("not valid for")),
            ("sslmode=verify-full".to_owned(), Some("sslrootcert=FILE")),
            ("sslmode=disable".to_owned(), Some("no pg_hba.conf entry")),
            (format!("user=certified sslmode=require {}", own("client.key")), None),
            ("user=certified sslmode=require".to_owned(), Some("valid client certificate")),
            (format!("user=certified sslmode=require {}", own("open.key")), Some("chmod 0600")),
            (format!("user=certified sslmode=require {}", own("no.key")), Some("sslkey=FILE")),
            (format!("user=certified sslmode=require {}", own("ca.crt")), Some("sslkey=FILE")),
            (format!("user=certified sslcert={root}"), Some("must be given together")),
        ] {
            let text = format!("host={host} user=postgres dbname=postgres {options}");
            let conninfo = Conninfo::parse(&text).expect("a connection string");
            match connect(&conninfo, &SessionOptions::default()).await {
                Ok(mut connection) => {
                    let query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
                    let rows = connection.query(Query::new(query, [])).await.expect("it answers");
                    assert!(rows[0].is_true(0) && expected.is_none(), "{options}");
                }
                Err(error) => {
                    let said = error.line();
                    assert!(expected.is_some_and(|part| said.contains(part)), "{options}: {said}");
                }
            }
        }
        assert_keepalives(
            &format!("host={host} user=postgres dbname=postgres sslmode=require"),
            &local,
        )
        .await;
    });
}

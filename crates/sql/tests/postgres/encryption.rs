//! Encrypted connections, with a server and certificates of their own.

use taskyard_sql::Conninfo;
use taskyard_sql::wire::{Ask, Opening, connect};

use crate::cluster::{Cluster, programs};
use crate::rig::{Client, run};

/// Makes an authority, and a certificate of it for an address that the server does not have.
const CERTIFICATES: &str = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=authority -keyout ca.key -out ca.crt && \
    openssl req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr && \
    echo subjectAltName=IP:127.0.0.1 > names && \
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile names -out server.crt && \
    chmod 600 server.key";

#[test]
fn as_strict_as_asked() {
    run(async {
        let cluster = Cluster::new(programs().expect("whoever runs this has it"));
        let local = Conninfo::parse(&cluster.url("postgres")).expect("a URL");
        // An address of this machine that no other test has.
        let number = std::process::id();
        let host = format!("127.{}.{}.1", 1 + number % 199, number / 199 % 250);
        let admin = Client::new(&local).await;
        admin.run(&format!("COPY (SELECT 1) TO PROGRAM '({CERTIFICATES}) >/dev/null 2>&1'")).await;
        admin.run("ALTER SYSTEM SET ssl = on").await;
        admin.run(&format!("ALTER SYSTEM SET listen_addresses = '{host}'")).await;
        let rules =
            "SELECT ''local all all trust'' UNION ALL SELECT ''hostssl all all 127.0.0.0/8 trust''";
        admin.run(&format!("DO $d$ BEGIN EXECUTE format('COPY ({rules}) TO %L', current_setting('hba_file')); END $d$")).await;
        let authority = admin.get("SELECT pg_read_file('ca.crt')").await.expect("it was made");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, authority).expect("it can be written");
        cluster.kill();
        cluster.start();
        let root = file.display();
        for (options, expected) in [
            ("sslmode=prefer".to_owned(), None),
            ("sslmode=require".to_owned(), None),
            (format!("sslmode=verify-ca sslrootcert={root}"), None),
            (format!("sslmode=verify-full sslrootcert={root}"), Some("not valid for")),
            ("sslmode=verify-full".to_owned(), Some("need sslrootcert")),
            ("sslmode=disable".to_owned(), Some("no pg_hba.conf entry")),
        ] {
            let text = format!("host={host} user=postgres dbname=postgres {options}");
            let conninfo = Conninfo::parse(&text).expect("a connection string");
            match connect(&conninfo, &Opening::default()).await {
                Ok(mut wire) => {
                    let ask = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
                    let rows = wire.ask(Ask::new(ask, [])).await.expect("it answers");
                    assert!(rows[0].is_true(0) && expected.is_none(), "{options}");
                }
                Err(error) => {
                    let said = error.line();
                    assert!(expected.is_some_and(|part| said.contains(part)), "{options}: {said}");
                }
            }
        }
    });
}

//! Servers with encrypted connections, and commands that connect to them.

use std::fs;
use std::path::Path;
use std::process::Command;

use taskyard::Iproto;
use taskyard_testkit::certificates::{Authority, CertificateFiles, self_signed};
use taskyard_testkit::server_process::shown_iproto;
use tempfile::TempDir;

use crate::process::{LoggedServer, Ran, Running, Serving, TestServer, binary, run};

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

    /// The command that serves with this certificate.
    fn serve(&self, files: &CertificateFiles) -> Command {
        let mut command = binary();
        command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0"]);
        command.args(["--iproto", "127.0.0.1:0", "--tls-cert"]).arg(&files.certificate);
        command.arg("--tls-key").arg(&files.key);
        command
    }

    fn ca(&self) -> &str {
        text(&self.authority.certificate)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a command without a server of its own.
fn run_at(url: &str, args: &[&str]) -> Ran {
    run(&[args, &["--url", url]].concat())
}

#[test]
fn commands_connect_over_tls() {
    let certificates = Certificates::new();
    let serving = Serving::start(&mut certificates.serve(&certificates.server));
    assert!(serving.url.starts_with("https://127.0.0.1:"), "{}", serving.url);
    assert!(serving.screen.contains("; TLS only)"), "{}", serving.screen);
    let ca = ["--ca", certificates.ca()];
    assert_eq!(serving.run(&[&["put", "mail", "hello"], &ca[..]].concat()).good(), "0\n");
    let mut take = binary();
    take.args(["take", "mail", "--json"]).env("TASKYARD_URL", &serving.url);
    let ran = Running::start(take.env("TASKYARD_CA", certificates.ca())).ended();
    assert_eq!(ran.json()[0]["data"], "hello");
    let refused = serving.run(&["stats"]).ends(1);
    assert!(refused.err.contains("no trusted certificate signed it"), "{}", refused.err);
    assert!(refused.err.contains("--ca"), "{}", refused.err);
    let missing = serving.run(&["stats", "--ca", "/nonexistent/ca.pem"]).ends(1);
    assert!(missing.err.contains("/nonexistent/ca.pem: No such file"), "{}", missing.err);
}

/// A server is also trusted through the root certificates of the system, without an option of ours.
#[test]
fn the_roots_of_the_system_are_trusted() {
    let certificates = Certificates::new();
    let serving = Serving::start(&mut certificates.serve(&certificates.server));
    let other = Authority::new(certificates.folder.path(), "other_ca");
    let stats = |system: &str, ca: Option<&str>| {
        let mut command = binary();
        command.args(["stats", "--url", &serving.url]).env("SSL_CERT_FILE", system);
        Running::start(command.envs(ca.map(|ca| ("TASKYARD_CA", ca)))).ended()
    };
    let (own, other) = (certificates.ca(), text(&other.certificate));
    stats(own, None).good();
    // What is named for this program comes first.
    stats(other, Some(own)).good();
    for (system, ca) in [(other, None), (own, Some(other))] {
        let refused = stats(system, ca).ends(1);
        assert!(refused.err.contains("no trusted certificate signed it"), "{}", refused.err);
    }
    let missing = stats("/nonexistent/roots.pem", None).ends(1);
    assert!(missing.err.contains("/nonexistent/roots.pem: No such file"), "{}", missing.err);
}

/// The commands of the start screen work as they are, also when no authority of the system signed the certificate.
#[test]
fn the_start_screen_shows_commands_that_work() {
    let certificates = Certificates::new();
    for files in [certificates.server.clone(), self_signed(certificates.folder.path(), "own")] {
        let serving = Serving::start(&mut certificates.serve(&files));
        let pasted: Vec<&str> =
            serving.screen.lines().filter(|line| line.contains(" --ca ")).collect();
        assert_eq!(pasted.len(), 3, "{}", serving.screen);
        for line in pasted {
            let ran = Command::new("sh").args(["-c", line]).output().unwrap();
            assert!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
        }
    }
}

#[test]
fn certificates_that_are_not_right_are_refused() {
    let certificates = Certificates::new();
    let authority = &certificates.authority;
    for (files, why) in [
        (authority.issue_expired("expired"), "it has expired; renew it on the server"),
        (
            authority.issue_for("other", &["example.com"]),
            "it is not for the name 127.0.0.1 but for",
        ),
        (self_signed(certificates.folder.path(), "own"), "it signed itself"),
    ] {
        let serving = Serving::start(&mut certificates.serve(&files));
        let url = serving.url.replace("example.com", "127.0.0.1");
        let refused = run_at(&url, &["stats", "--ca", certificates.ca()]).ends(1);
        assert!(refused.err.contains(why), "{}", refused.err);
        // There is no way around it.
        for flag in ["--insecure", "-k", "--no-verify"] {
            run_at(&url, &["stats", flag]).ends(2);
        }
    }
}

#[test]
fn a_client_certificate_may_be_required() {
    let certificates = Certificates::new();
    let mut command = certificates.serve(&certificates.server);
    let serving = Serving::start(command.args(["--tls-client-ca", certificates.ca()]));
    let stats = ["stats", "--ca", certificates.ca()];
    let refused = serving.run(&stats).ends(1);
    assert!(refused.err.contains("asks for a client certificate and got none"), "{}", refused.err);
    assert!(refused.err.contains("--client-cert"), "{}", refused.err);
    let own = certificates.authority.issue_client("client");
    let shown = ["--client-cert", text(&own.certificate), "--client-key", text(&own.key)];
    serving.run(&[&stats[..], &shown].concat()).good();
    let other = Authority::new(certificates.folder.path(), "other_ca").issue_client("other");
    let shown = ["--client-cert", text(&other.certificate), "--client-key", text(&other.key)];
    let refused = serving.run(&[&stats[..], &shown].concat()).ends(1);
    assert!(refused.err.contains("refused the client certificate"), "{}", refused.err);
    let half = serving.run(&[&stats[..], &shown[..2]].concat()).ends(2);
    assert!(half.err.contains("--client-key"), "{}", half.err);
}

/// `--ca` with an address without TLS was ignored, although the user expects a verified server.
#[test]
fn certificates_for_an_address_without_tls_are_refused() {
    let server = TestServer::new();
    let certificates = Certificates::new();
    let refused = server.run(&["stats", "--ca", certificates.ca()]).ends(2);
    assert!(refused.err.contains("--ca is for https:// servers"), "{}", refused.err);
    let own = certificates.authority.issue_client("client");
    let shown = ["--client-cert", text(&own.certificate), "--client-key", text(&own.key)];
    let refused = server.run(&[&["stats"], &shown[..]].concat()).ends(2);
    assert!(refused.err.contains("--client-cert is for https:// servers"), "{}", refused.err);
    // The variable is for all servers.
    let mut stats = binary();
    stats.arg("stats").env("TASKYARD_URL", &server.serving.url);
    Running::start(stats.env("TASKYARD_CA", certificates.ca())).ended().good();
}

#[test]
fn the_wrong_scheme_is_explained() {
    let certificates = Certificates::new();
    let serving = Serving::start(&mut certificates.serve(&certificates.server));
    let refused = run_at(&serving.url.replace("https:", "http:"), &["stats"]).ends(2);
    assert!(refused.err.contains("use https://"), "{}", refused.err);
    let plain = Serving::start(binary().args([
        "serve",
        "--store",
        "memory:",
        "--http",
        "127.0.0.1:0",
        "--iproto",
        "off",
    ]));
    let url = plain.url.replace("http:", "https:");
    let refused = run_at(&url, &["stats", "--ca", certificates.ca()]).ends(1);
    assert!(refused.err.contains("answers without TLS; use http://"), "{}", refused.err);
}

#[test]
fn files_that_cannot_be_used_stop_the_start() {
    let certificates = Certificates::new();
    let (server, folder) = (&certificates.server, certificates.folder.path());
    let (cert, key) = (text(&server.certificate), text(&server.key));
    let other = certificates.authority.issue("other");
    let serve = ["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off"];
    for (args, why) in [
        (vec!["--tls-cert", cert], "--tls-key"),
        (vec!["--tls-key", key], "--tls-cert"),
        (vec!["--tls-client-ca", certificates.ca()], "--tls-cert"),
        (
            vec!["--tls-cert", cert, "--tls-key", text(&other.key)],
            "does not belong to the certificate",
        ),
        (
            vec!["--tls-cert", cert, "--tls-key", "/nonexistent.key"],
            "/nonexistent.key: No such file",
        ),
        (vec!["--tls-cert", key, "--tls-key", key], "server.key: there is none in it"),
        (vec!["--tls-cert", cert, "--tls-key", cert], "a private key"),
        (vec!["--tls-cert", cert, "--tls-key", text(folder)], "not a regular file"),
        (vec!["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", key], "client authorities"),
    ] {
        let refused = run(&[&serve[..], &args].concat()).ends(2);
        assert!(refused.err.contains(why), "{args:?}: {}", refused.err);
    }
}

#[test]
fn a_certificate_is_replaced_by_a_signal_or_by_a_change_of_its_file() {
    let certificates = Certificates::new();
    let other = Authority::new(certificates.folder.path(), "other_ca");
    let mut server = LoggedServer::start(&mut certificates.serve(&certificates.server));
    let stats = |server: &LoggedServer, authority: &Authority| {
        run_at(&server.url, &["stats", "--ca", text(&authority.certificate)])
    };
    stats(&server, &certificates.authority).good();
    // The change is found without a signal.
    other.issue("renewed").replace(&certificates.server);
    server.logs("read the TLS certificate again");
    stats(&server, &other).good();
    stats(&server, &certificates.authority).ends(1);
    // A file that is broken changes nothing, and the log says so.
    fs::write(&certificates.server.certificate, "broken").unwrap();
    server.running.signal("HUP");
    let line = server.logs("the old one stays");
    assert!(line.contains("server.pem: there is none in it"), "{line}");
    stats(&server, &other).good();
    certificates.authority.issue("again").replace(&certificates.server);
    server.running.signal("HUP");
    server.logs("read the TLS certificate again");
    stats(&server, &certificates.authority).good();
    server.running.signal("TERM");
    server.running.ended().ends(0);
}

/// Connects over iproto with TLS and asks for an answer.
fn ping(screen: &str, trusted: &Authority) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let iproto = Iproto::new(&format!("iprotos://{}", shown_iproto(screen)));
        let iproto = iproto.and_then(|iproto| iproto.with_roots(&trusted.certificate));
        iproto.unwrap().ping().await.map_err(|error| error.to_string())
    })
}

#[test]
fn iproto_has_a_certificate_of_its_own_that_a_signal_replaces() {
    let certificates = Certificates::new();
    let (shared, folder) = (&certificates.authority, certificates.folder.path());
    let [own, renewed] = ["iproto_ca", "renewed_ca"].map(|name| Authority::new(folder, name));
    let pair = own.issue("iproto");
    let mut command = certificates.serve(&certificates.server);
    command.arg("--iproto-tls-cert").arg(&pair.certificate);
    let mut server = LoggedServer::start(command.arg("--iproto-tls-key").arg(&pair.key));
    let stats = |server: &LoggedServer, authority: &Authority| {
        run_at(&server.url, &["stats", "--ca", text(&authority.certificate)]).exit
    };
    ping(&server.screen, &own).unwrap();
    let refused = ping(&server.screen, shared).unwrap_err();
    assert!(refused.contains("no trusted certificate signed it"), "{refused}");
    assert_eq!((stats(&server, shared), stats(&server, &own)), (0, 1));
    renewed.issue("iproto_renewed").replace(&pair);
    server.running.signal("HUP");
    while !server.logs("read the TLS certificate again").contains(text(&pair.certificate)) {}
    ping(&server.screen, &renewed).unwrap();
    assert!(ping(&server.screen, &own).is_err(), "it is replaced");
    assert_eq!((stats(&server, shared), stats(&server, &renewed)), (0, 1), "HTTP keeps its own");
}

//! The configuration of nginx, in front of a real server.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use taskyard_testkit::certificates::Authority;
use taskyard_testkit::free_port;
use taskyard_testkit::recorded_output::record;
use taskyard_testkit::skipped::find_tool;
use taskyard_tls::ClientFiles;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{KeptProgram, deploy_file, write_secret};
use crate::pool::{CONFIG as POOL_PROGRAMS, config as pool_config};
use crate::process::{Ran, Running, Serving, TOKEN, binary, run, token_file};

/// What surrounds our file in nginx's own configuration.
const AROUND: &str = "\
daemon off;
user root;
pid FOLDER/pid;
error_log FOLDER/error.log;
events {}
http {
    client_body_temp_path FOLDER/body;
    proxy_temp_path FOLDER/proxy;
    fastcgi_temp_path FOLDER/fastcgi;
    uwsgi_temp_path FOLDER/uwsgi;
    scgi_temp_path FOLDER/scgi;
    include FOLDER/taskyard.conf;
}
";

/// The part of the configuration in docs/security.md that moves the server below a path.
const BELOW_PATH: &str = include_str!("../../../../../deploy/nginx-below-path.conf");

/// The location of a pool with a port of its own, from docs/security.md.
const POOL: &str = include_str!("../../../../../deploy/nginx-pool.conf");

/// A server behind nginx.
struct ProxiedServer {
    url: String,
    port: u16,
    authority: Authority,
    token: String,
    serving: Serving,
    _nginx: KeptProgram,
    folder: TempDir,
}

impl ProxiedServer {
    /// Starts both, with a change of our file; `None` where the tests run without nginx.
    fn start(change: impl Fn(String) -> String) -> Option<Self> {
        let nginx = find_tool("TASKYARD_NGINX", "/usr/sbin/nginx")?;
        let folder = tempfile::tempdir().unwrap();
        let token = token_file(folder.path());
        let serving = Serving::folder(&folder.path().join("data"), &["--token-file", &token]);
        let authority = Authority::new(folder.path(), "ca");
        let files = authority.issue("proxy");
        let port = free_port();
        let shown = folder.path().to_str().unwrap();
        let upstream = serving.url.trim_start_matches("http://");
        let config = change(deploy_file("nginx.conf"))
            .replace("127.0.0.1:7070", upstream)
            .replace("listen 443 ssl;", &format!("listen 127.0.0.1:{port} ssl;"))
            .replace("    listen [::]:443 ssl;\n", "")
            .replace("queue.example", "localhost")
            .replace("/etc/taskyard/proxy.pem", files.certificate.to_str().unwrap())
            .replace("/etc/taskyard/proxy.key", files.key.to_str().unwrap())
            .replace("/var/log/nginx", shown);
        let lines = config.lines().filter(|line| !line.trim_start().starts_with('#'));
        for (line, left) in
            lines.flat_map(|line| [":7070;", ":443 ", "/etc/", "/var/"].map(|left| (line, left)))
        {
            assert!(!line.contains(left), "{left} is not replaced: {line}");
        }
        fs::write(folder.path().join("taskyard.conf"), config).unwrap();
        let main = folder.path().join("nginx.conf");
        fs::write(&main, AROUND.replace("FOLDER", shown)).unwrap();
        let mut command = Command::new(nginx);
        command.arg("-p").arg(folder.path()).arg("-e").arg(folder.path().join("error.log"));
        let nginx = KeptProgram::start(command.arg("-c").arg(main), "TERM");
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(folder.path().join("error.log")).unwrap_or_default();
            assert!(!log.contains("[emerg]"), "{log}");
            std::thread::yield_now();
        }
        let url = format!("https://127.0.0.1:{port}");
        Some(ProxiedServer { url, port, authority, token, serving, _nginx: nginx, folder })
    }

    fn usual() -> Option<Self> {
        ProxiedServer::start(|config| config)
    }

    fn ca(&self) -> &str {
        self.authority.certificate.to_str().unwrap()
    }

    /// The arguments of a command that connects through the proxy.
    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let server = ["--url", &self.url, "--ca", self.ca(), "--token-file", &self.token];
        [args, &server].concat()
    }

    /// Runs a command through the proxy.
    fn run(&self, args: &[&str]) -> Ran {
        run(&self.args(args))
    }

    /// The response to a request through the proxy; `head` has the first line and further headers.
    fn ask(&self, head: &str) -> String {
        block_on(async {
            let mut stream = self.send(&format!("{head}\r\nConnection: close")).await;
            let mut answer = Vec::new();
            // nginx ends a connection without saying so to TLS.
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8_lossy(&answer).into_owned()
        })
    }

    async fn send(&self, head: &str) -> TlsStream<tokio::net::TcpStream> {
        let roots = Some(PathBuf::from(self.ca()));
        let files = ClientFiles { roots, certificate: None, key: None };
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = files.connector("").unwrap().connect(name, stream).await.unwrap();
        let request = format!("{head}\r\nHost: localhost:{}\r\n\r\n", self.port);
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Waits until as many takes wait at the server, asked without the proxy.
    fn wait_for_consumers(&self, count: u64) {
        let stats = ["stats", "mail", "--json", "--token-file", &self.token];
        while self.serving.run(&stats).json()[0]["consumers"] != count {}
    }
}

impl Drop for ProxiedServer {
    fn drop(&mut self) {
        for name in ["taskyard.log", "taskyard-error.log", "error.log"] {
            record("proxy", &fs::read_to_string(self.folder.path().join(name)).unwrap_or_default());
        }
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn bearer() -> String {
    format!("Authorization: Bearer {TOKEN}")
}

#[test]
fn commands_and_the_page_work_through_the_proxy() {
    let Some(proxied) = ProxiedServer::usual() else { return };
    assert_eq!(proxied.run(&["put", "a b", "hello"]).good(), "0\n");
    let taken = proxied.run(&["take", "a b", "--json"]);
    assert_eq!(taken.json()[0]["data"], "hello");
    assert_eq!(proxied.run(&["health"]).good(), "ok\n");
    let page = proxied.ask("GET / HTTP/1.1");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("assets/app.js"), "{page}");
    assert!(page.contains("\r\nStrict-Transport-Security: max-age="), "{page}");
    assert!(!page.to_lowercase().contains("server: nginx/"), "the version is shown: {page}");
    // A page of the proxy's name may act, and one of another site may not.
    for (host, status) in [("localhost", "200"), ("evil.example", "403")] {
        let origin = format!("Origin: https://{host}:{}\r\n{}", proxied.port, bearer());
        let answer = proxied.ask(&format!("GET /v1/tubes HTTP/1.1\r\n{origin}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    let refused = run(&["stats", "--url", &proxied.url, "--token-file", &proxied.token]).ends(1);
    assert!(refused.err.contains("no trusted certificate signed it"), "{refused:?}");
    let refused = run(&["stats", "--url", &proxied.url, "--ca", proxied.ca()]).ends(8);
    assert!(refused.err.contains("a token is needed"), "{refused:?}");
    let log = proxied.log("taskyard.log");
    assert!(log.contains("\"GET / HTTP/1.1\" 200") && !log.contains(TOKEN), "{log}");
}

#[test]
fn a_take_waits_through_the_proxy_until_its_client_ends() {
    let Some(proxied) = ProxiedServer::usual() else { return };
    proxied.run(&["tube", "create", "mail"]).good();
    let take = proxied.args(&["take", "mail", "--wait", "5m", "--json"]);
    let gone = Running::start(binary().args(&take));
    proxied.wait_for_consumers(1);
    drop(gone);
    proxied.wait_for_consumers(0);
    let waiting = Running::start(binary().args(&take));
    proxied.wait_for_consumers(1);
    proxied.run(&["put", "mail", "late"]).good();
    assert_eq!(waiting.ended().json()[0]["data"], "late");
}

#[test]
fn events_arrive_over_a_websocket_through_the_proxy() {
    let Some(proxied) = ProxiedServer::usual() else { return };
    proxied.run(&["semaphore", "create", "pages", "--active", "1"]).good();
    proxied.run(&["semaphore", "enqueue", "pages", "17"]).good();
    let head = format!(
        "GET /v1/semaphore-events/socket?semaphore=pages HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{}",
        bearer()
    );
    block_on(async {
        let mut stream = proxied.send(&head).await;
        let mut received = Vec::new();
        while !String::from_utf8_lossy(&received).contains("\"acquired\"") {
            let read = stream.read_buf(&mut received).await.unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&received));
        }
        assert!(received.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&received));
    });
}

#[test]
fn the_proxy_and_the_server_limit_requests() {
    let Some(proxied) = ProxiedServer::usual() else { return };
    let put = |length: usize| {
        let json = "Content-Type: application/json";
        let line = "POST /v1/tubes/mail/put HTTP/1.1";
        proxied.ask(&format!("{line}\r\n{json}\r\nContent-Length: {length}\r\n{}", bearer()))
    };
    let refused = put((96 << 20) + 1);
    assert!(refused.starts_with("HTTP/1.1 413"), "{refused}");
    // The proxy lets pass what the server could accept, whose own limits are lower.
    let large = proxied.folder.path().join("large");
    fs::write(&large, vec![b'x'; (1 << 20) + 1]).unwrap();
    let refused = proxied.run(&["put", "mail", &format!("@{}", large.display())]).ends(6);
    assert!(refused.err.contains("1048576"), "{refused:?}");
}

/// The server knows the address of the proxy only, and believes no header about others.
#[test]
fn failed_logins_of_all_clients_of_the_proxy_count_together() {
    let Some(proxied) = ProxiedServer::usual() else { return };
    proxied.run(&["put", "mail", "hello"]).good();
    let guess = |number: usize| {
        let header = format!("Authorization: Bearer wrong-0123456789-{number}");
        let from = format!("X-Forwarded-For: 10.0.0.{number}");
        proxied.ask(&format!("GET /v1/stats HTTP/1.1\r\n{header}\r\n{from}"))
    };
    assert!(guess(0).starts_with("HTTP/1.1 401"));
    assert!((1..250).map(guess).any(|answer| answer.starts_with("HTTP/1.1 503")));
    // A token that was used before is not slowed down.
    proxied.run(&["stats"]).good();
}

#[test]
fn the_server_may_be_below_a_path() {
    let change = |config: String| {
        let changed =
            config.replace("    location / {\n        proxy_pass http://taskyard;\n", BELOW_PATH);
        assert_ne!(config, changed);
        changed
    };
    let Some(mut proxied) = ProxiedServer::start(change) else { return };
    assert!(proxied.ask("GET / HTTP/1.1").starts_with("HTTP/1.1 404"));
    proxied.url += "/queue";
    proxied.run(&["put", "50% of a", "hello"]).good();
    assert_eq!(proxied.run(&["take", "50% of a", "--json"]).json()[0]["data"], "hello");
    assert_eq!(proxied.run(&["health"]).good(), "ok\n");
    let page = proxied.ask("GET /queue/tubes/50%25%20of%20a HTTP/1.1");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("../assets/app.js"), "{page}");
    assert!(proxied.ask("GET /queue/assets/app.js HTTP/1.1").starts_with("HTTP/1.1 200"));
}

/// The pool of taskyard-pool.service has another port and another token than the queue.
#[test]
fn a_pool_with_a_port_of_its_own_is_behind_the_same_proxy() {
    let (folder, file) = pool_config(POOL_PROGRAMS);
    let token = folder.path().join("pool-token");
    write_secret(&token, "pool-secret-0123456789");
    let token = token.to_str().unwrap();
    let mut command = binary();
    command.args(["pool", "serve", "--http", "127.0.0.1:0", "--token-file", token]).arg(file);
    let pool = Serving::start(&mut command);
    let change = |config: String| {
        let location = POOL.replace("127.0.0.1:7071", pool.url.trim_start_matches("http://"));
        let changed = config.replace("    location / {", &format!("{location}    location / {{"));
        assert_ne!(config, changed);
        changed
    };
    let Some(proxied) = ProxiedServer::start(change) else { return };
    let status = ["pool", "status", "--url", &proxied.url, "--ca", proxied.ca()];
    run(&[&status[..], &["--token-file", token]].concat()).good();
    run(&[&status[..], &["--token-file", &proxied.token]].concat()).ends(8);
    let page = proxied.ask("GET /pool HTTP/1.1");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert_eq!(proxied.run(&["put", "mail", "hello"]).good(), "0\n", "the queue has its own token");
    let head = "GET /pool/run/sh HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer pool-secret-0123456789";
    block_on(async {
        let mut stream = proxied.send(head).await;
        let mut received = [0; 12];
        stream.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"HTTP/1.1 101");
    });
}

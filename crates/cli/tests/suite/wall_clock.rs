//! A server whose wall clock is set while it runs, or shows a time before 1970.
//!
//! The server is the real binary. A small library, compiled by the test, moves its wall clock, and nothing else of the machine.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use taskyard::{Client, Iproto};
use tempfile::TempDir;

use crate::preload::library;
use crate::process::{Ran, Running, binary, http_get};

const DAY: i64 = 24 * 3600;
/// Moves every clock of this century to before 1970.
const BEFORE_1970: i64 = -200 * 365 * DAY;

/// A server with its own wall clock, and its folder.
struct ClockServer {
    running: Running,
    url: String,
    iproto: String,
    clock: File,
    /// What the server logged so far.
    log: String,
}

impl ClockServer {
    /// Starts a server whose wall clock is moved by these seconds.
    fn start(folder: &Path, seconds: i64) -> Self {
        let path = folder.join("clock");
        let clock = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let clock = clock.expect("a file can be written");
        clock.write_all_at(&seconds.to_ne_bytes(), 0).expect("a file can be written");
        let mut command = binary();
        command.args(["serve", "--http", "127.0.0.1:0", "--iproto", "127.0.0.1:0", "--data"]);
        command.arg(folder.join("data"));
        command.env("LD_PRELOAD", library(folder, "wall_clock")).env("TEST_CLOCK", &path);
        let mut running = Running::start(&mut command);
        let mut screen = String::new();
        while !screen.contains("Ctrl-C") {
            let line = running.line();
            assert!(!line.is_empty(), "the server ended after {screen:?}");
            screen.push_str(&line);
        }
        let after = |word: &str| {
            let mut words = screen.split_whitespace().skip_while(|found| *found != word);
            words.nth(1).expect("the start screen shows the address").to_owned()
        };
        let (url, iproto) = (after("http"), after("iproto"));
        ClockServer { running, url, iproto, clock, log: String::new() }
    }

    /// Sets the wall clock, and waits until the server has logged it.
    fn set(&mut self, seconds: i64, logged: &str) {
        self.clock.write_all_at(&seconds.to_ne_bytes(), 0).expect("a file can be written");
        loop {
            let line = self.running.error_line();
            assert!(!line.is_empty(), "the server ended after {}", self.log);
            self.log.push_str(&line);
            if line.contains(logged) {
                return;
            }
        }
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.command(args).ended()
    }

    /// Starts a client command. Its clock is right.
    fn command(&self, args: &[&str]) -> Running {
        Running::start(binary().args(args).env("TASKYARD_URL", &self.url))
    }

    /// The numbers of ready, taken and delayed tasks of a tube.
    #[track_caller]
    fn counts(&self, tube: &str) -> [u64; 3] {
        let shown = self.run(&["stats", tube, "--json"]).ends(0).json();
        ["ready", "taken", "delayed"].map(|state| shown[0]["tasks"][state].as_u64().unwrap())
    }

    /// Stops the server. It must not have panicked, whatever the clock showed.
    fn stop(mut self) {
        self.running.signal("TERM");
        let Ran { exit, err, .. } = self.running.ended();
        self.log.push_str(&err);
        assert!(exit == 0 && !self.log.contains("panicked"), "exit {exit}: {}", self.log);
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

/// A delivery, as commands name it.
fn delivery(task: &Value) -> String {
    format!("{}:{}", task["id"], task["lease"])
}

/// Waits until a client waits for a task of the tube.
fn wait_for_consumer(server: &ClockServer, tube: &str) {
    let is_waiting = |shown: &Value| shown["consumers"].as_u64() == Some(1);
    while !server
        .run(&["stats", "--json"])
        .ends(0)
        .json()
        .iter()
        .any(|shown| shown["name"] == tube && is_waiting(shown))
    {}
}

// A step forward ended every lease and wait; after a step back the server stayed ahead until it was started again.
#[test]
fn durations_survive_a_clock_that_is_set() {
    let folder = folder();
    let mut server = ClockServer::start(folder.path(), 0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is right");
    let at = format!("{}", since.as_secs() as i64 + DAY / 2);
    for (tube, options) in [
        ("leased", &[][..]),
        ("expiring", &["--ttl", "1h"]),
        ("delayed", &["--delay", "1h"]),
        ("scheduled", &["--at", &at]),
    ] {
        server.run(&[&["put", tube, "1"], options].concat()).good();
    }
    server.run(&["tube", "create", "awaited"]).good();
    let take = ["take", "leased", "--lease", "1h", "--json"];
    let leased = server.run(&take).ends(0).json().remove(0);
    for (seconds, logged) in [
        (-DAY, "the wall clock was set back by 86"),
        (0, "the wall clock was set forward by 86"),
        (DAY, "the wall clock was set forward by 86"),
        (0, "the wall clock was set back by 86"),
    ] {
        let mut waits = server.command(&["take", "awaited", "--wait", "50s", "--json"]);
        wait_for_consumer(&server, "awaited");
        server.set(seconds, logged);
        assert_eq!(server.counts("leased"), [0, 1, 0], "{seconds}: the lease of an hour lasts");
        assert_eq!(server.counts("expiring"), [1, 0, 0], "{seconds}: the task has not expired");
        assert_eq!(server.counts("delayed"), [0, 0, 1], "{seconds}: the delay of an hour lasts");
        server.run(&["touch", "leased", &delivery(&leased), "--by", "1h"]).good();
        // The wait is not over either.
        server.run(&["put", "awaited", "1"]).good();
        let awaited: Value = serde_json::from_str(&waits.line()).expect("it gets the task");
        server.run(&["ack", "awaited", &delivery(&awaited)]).good();
        // Only a task with a start time follows the wall clock.
        if seconds == DAY {
            let due = server.run(&["take", "scheduled", "--wait", "50s", "--json"]).ends(0).json();
            server.run(&["ack", "scheduled", &delivery(&due[0])]).good();
        }
        let scheduled = server.log.matches("set forward").count() < 2;
        assert_eq!(server.counts("scheduled"), [0, 0, u64::from(scheduled)], "{seconds}");
    }
    server.run(&["ack", "leased", &delivery(&leased)]).good();
    server.stop();
    // The clock is set while no server runs.
    for seconds in [0, -DAY] {
        let server = ClockServer::start(folder.path(), seconds);
        assert_eq!(server.counts("expiring"), [1, 0, 0], "{seconds}");
        assert_eq!(server.counts("delayed"), [0, 0, 1], "{seconds}");
        server.stop();
    }
}

// A server whose clock was never set panicked when it started.
#[test]
fn a_server_starts_before_1970() {
    let folder = folder();
    let mut server = ClockServer::start(folder.path(), BEFORE_1970);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let client = Client::new(Iproto::new(&server.iproto).expect("it is an address"));
    let leased = runtime.block_on(async {
        let client = client.with_lease(Duration::from_secs(3600));
        client.put_many("mail", &["a", "b"]).await.expect("they are stored");
        client.take("mail", Duration::ZERO).await.expect("it answers")
    });
    let leased = leased.expect("a task is ready");
    // No HTTP response can have such a date, and its clients get the reason.
    let refused = http_get(&server.url, "/v1/stats");
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("before 1970"), "{refused}");
    server.set(0, "the wall clock was set forward by ");
    assert_eq!(server.counts("mail"), [1, 1, 0], "the lease of an hour lasts");
    let lease = leased.task.lease.expect("it is taken");
    server.run(&["ack", "mail", &format!("{}:{}", leased.id(), lease)]).good();
    server.stop();
    let server = ClockServer::start(folder.path(), BEFORE_1970);
    server.stop();
    let server = ClockServer::start(folder.path(), 0);
    assert_eq!(server.counts("mail"), [1, 0, 0]);
    server.stop();
}

// The HTTP library panics at its first date before 1970 in a thread. Connections that were open when the clock was set, or that
// came while the store was opened, were still given to it.
#[test]
fn connections_are_refused_while_the_clock_is_before_1970() {
    let folder = folder();
    let mut server = ClockServer::start(folder.path(), 0);
    let address = server.url.trim_start_matches("http://").to_owned();
    let mut open: Vec<_> = (0..8).map(|_| connect(&address)).collect();
    // The server has accepted them before the clock is set.
    for stream in &mut open {
        assert!(get(stream, &address).starts_with("HTTP/1.1 200 "));
    }
    server.set(BEFORE_1970, "the wall clock was set back");
    for stream in &mut open {
        assert_eq!(get(stream, &address), "", "the connection is closed");
    }
    for _ in 0..8 {
        let refused = http_get(&server.url, "/healthz");
        assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
        assert!(refused.contains("before 1970"), "{refused}");
    }
    server.set(0, "the wall clock was set forward");
    assert!(get(&mut connect(&address), &address).starts_with("HTTP/1.1 200 "));
    server.stop();
}

fn connect(address: &str) -> BufReader<TcpStream> {
    BufReader::new(TcpStream::connect(address).expect("it listens"))
}

/// The first line of the response to a request on an open connection; empty if the server closes it.
fn get(stream: &mut BufReader<TcpStream>, address: &str) -> String {
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let mut status = String::new();
    let sent = stream.get_mut().write_all(request.as_bytes());
    // A connection that is closed with an unread request is reset.
    if sent.and_then(|()| stream.read_line(&mut status)).is_err() || status.is_empty() {
        return String::new();
    }
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).expect("it answers with text");
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("it is a number");
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("it sends all of it");
    status
}

//! Secrets are in no list of processes, log, answer or message. The scan of `cargo xtask test` searches everything that is kept here
//! and elsewhere; these tests make sure that there is something to search.

use std::fs;
use std::process::Command;

use taskyard_testkit::server_process::shown_url;

use crate::process::{Running, TOKEN, binary, http_get, http_get_with, run, token_file};

/// The command line of a process, as every user of the machine can read it.
fn command_line(process: u32) -> String {
    let line = fs::read(format!("/proc/{process}/cmdline")).expect("the process runs");
    String::from_utf8(line).expect("the arguments are text")
}

/// A server in memory that logs everything.
fn serve(flags: &[&str]) -> Command {
    let mut command = binary();
    command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off"]);
    command.args(flags).env("TASKYARD_LOG", "debug");
    command
}

/// The address of a server that is starting.
fn started(server: &mut Running) -> String {
    let mut screen = String::new();
    while !screen.contains("Ctrl-C") {
        let line = server.line();
        assert!(!line.is_empty(), "the server ended after {screen:?}");
        screen.push_str(&line);
    }
    shown_url(&screen)
}

#[test]
fn no_secret_is_in_the_list_of_processes() {
    let folder = tempfile::tempdir().unwrap();
    let token = token_file(folder.path());
    let mut server = Running::start(&mut serve(&["--token-file", &token]));
    let url = started(&mut server);
    run(&["tube", "create", "mail", "--url", &url, "--token-file", &token]).good();
    let take = ["take", "mail", "--wait", "5m", "--url", &url, "--token-file", &token];
    let client = Running::start(binary().args(take));
    let consumers = ["stats", "mail", "--json", "--url", &url, "--token-file", &token];
    while run(&consumers).json()[0]["consumers"] != 1 {}
    for process in [server.id(), client.id()] {
        let line = command_line(process);
        assert!(line.contains("--token-file") && !line.contains(TOKEN), "{line:?}");
    }
    // What the test would find.
    let shown = Running::start(
        binary().args(["take", "mail", "--wait", "5m", "--url", &url, "--token", TOKEN]),
    );
    while run(&consumers).json()[0]["consumers"] != 2 {}
    assert!(command_line(shown.id()).contains(TOKEN));
}

#[test]
fn no_answer_and_no_log_shows_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let token = token_file(folder.path());
    let mut server = Running::start(&mut serve(&["--token-file", &token]));
    let url = started(&mut server);
    run(&["put", "mail", "x", "--url", &url, "--token-file", &token]).good();
    // Almost the token, so that a message that shows the wrong one would show most of the right one.
    let wrong = folder.path().join("wrong");
    fs::copy(&token, &wrong).unwrap();
    fs::write(&wrong, format!("{TOKEN}x")).unwrap();
    let refused = run(&["stats", "--url", &url, "--token-file", wrong.to_str().unwrap()]).ends(8);
    assert!(!refused.err.contains(TOKEN), "{refused:?}");
    for path in ["/healthz", "/openapi.json", "/metrics", "/v1/tubes", "/v1/nothing", "/"] {
        assert!(!http_get(&url, path).contains(TOKEN), "{path}");
    }
    let metrics = http_get_with_token(&url, "/metrics");
    assert!(
        metrics.contains("taskyard_login_failures_total 1") && !metrics.contains(TOKEN),
        "{metrics}"
    );
    server.signal("TERM");
    let ended = server.ended();
    assert!(!ended.err.contains(TOKEN) && !ended.out.contains(TOKEN), "{ended:?}");
    assert!(ended.err.contains("login"), "a failed login is logged: {}", ended.err);
}

/// The response to a GET with the token.
fn http_get_with_token(url: &str, path: &str) -> String {
    http_get_with(&format!("Authorization: Bearer {TOKEN}"), url, path)
}

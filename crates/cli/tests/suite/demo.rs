//! Runs `demo`, and checks what it shows and that nothing is left of it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::process::{Serving, binary, http_get};
use crate::pseudo_terminal::PseudoTerminal;

/// The JSON of an answer.
fn get(serving: &Serving, path: &str) -> Value {
    let answer = http_get(&serving.url, path);
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a body");
    assert!(head.contains("200 OK"), "{path}: {answer}");
    // A long one is sent in chunks, each after its length.
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let lines = body.split("\r\n");
    let is_data = |line: &&str| !chunked || u64::from_str_radix(line, 16).is_err();
    let text: String = lines.filter(is_data).collect();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
}

/// Asks until the answer is as wanted.
fn until(serving: &Serving, path: &str, what: &str, is_so: impl Fn(&Value) -> bool) {
    println!("waiting for {what}");
    while !is_so(&get(serving, path)) {
        std::thread::yield_now();
    }
}

/// Whether a tube of the list has such a number of tasks.
fn has(tubes: &Value, state: &str) -> bool {
    let tubes = tubes["tubes"].as_array().expect("a list");
    tubes.iter().any(|tube| tube["tasks"][state].as_u64() > Some(0))
}

#[test]
fn the_example_shows_everything_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = binary();
    command.args(["demo", "--port", "0"]).current_dir(folder.path()).env("HOME", folder.path());
    command.env("TMPDIR", folder.path());
    let serving = Serving::start(&mut command);
    assert!(serving.screen.contains("Three things to look at:"), "{}", serving.screen);
    for state in ["ready", "taken", "delayed", "buried", "done"] {
        until(&serving, "/v1/tubes", state, |tubes| has(tubes, state));
    }
    let failed = "/v1/tubes/webhooks.deliver/tasks?state=buried";
    until(&serving, failed, "errors", |page| {
        let tasks = page["tasks"].as_array().expect("a list");
        tasks.iter().any(|task| task["error"].as_str() > Some(""))
    });
    until(&serving, "/v1/tubes/customers.sync/tasks", "sub-queues", |page| {
        let tasks = page["tasks"].as_array().expect("a list");
        tasks.iter().any(|task| task["subqueue"].is_string())
    });
    let holders = "/v1/semaphores/gpu";
    until(&serving, holders, "holders and waiters", |gpu| {
        gpu["acquired"].as_u64() > Some(0) && gpu["waiting"].as_u64() > Some(0)
    });
    until(&serving, "/v1/schedules", "a schedule that fired", |all| {
        all["schedules"][0]["fired"].as_u64() > Some(0)
    });
    until(&serving, "/v1/workers", "workers", |all| {
        all["workers"].as_array().is_some_and(|workers| workers.len() >= 10)
    });
    until(&serving, "/v1/tubes/mail.welcome/tasks?estimate=true", "estimates", |page| {
        page["tasks"].as_array().expect("a list").iter().any(|task| task["estimate"].is_object())
    });
    serving.signal("INT");
    let (status, rest) = serving.ended();
    assert_eq!(status.code(), Some(0), "{rest}");
    assert!(rest.contains("nothing is left"), "{rest}");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn the_example_ends_after_its_time() {
    let first = Serving::start(binary().args(["demo", "--port", "0"]));
    // Its port is in use.
    let port = first.url.rsplit(':').next().expect("a port");
    let mut second = binary();
    second.args(["demo", "--port", port, "--seconds", "1"]);
    let second = Serving::start(&mut second);
    assert_ne!(first.url, second.url);
    let (status, rest) = second.ended();
    assert_eq!(status.code(), Some(0), "{rest}");
}

/// A browser that writes the address it is asked to open into a file.
const BROWSER: &str =
    "#!/bin/sh\nprintf %s \"$1\" > \"$OPENED.new\" && mv \"$OPENED.new\" \"$OPENED\"\n";

#[test]
fn the_page_opens_in_the_browser_of_a_desktop() {
    let folder = tempfile::tempdir().expect("a folder");
    let (browser, opened) = (folder.path().join("xdg-open"), folder.path().join("opened"));
    fs::write(&browser, BROWSER).expect("a file");
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).expect("its owner");
    let mut path = OsString::from(folder.path());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let variables =
        [("DISPLAY", OsStr::new(":7")), ("PATH", path.as_os_str()), ("OPENED", opened.as_os_str())];
    let mut demo = PseudoTerminal::start_with("demo --port 0", &variables);
    demo.shows("Ctrl-C ends it");
    while !opened.exists() {
        std::thread::yield_now();
    }
    demo.press("\u{3}");
    let screen = demo.ended();
    let url = fs::read_to_string(opened).expect("an address");
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    assert!(screen.contains(&format!(" page   {url}\r\n")), "{url}: {screen}");
}

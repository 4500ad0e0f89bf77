//! A pool, by itself and beside a queue.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::rig::{Serving, binary, run};

const CONFIG: &str = "
backends: 1
programs:
  sh: {command: [/bin/sh, '{main}'], input: .sh, formats: {txt: text/plain}, result: 'r.{format}'}
";

fn config(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pool.yaml");
    fs::write(&file, text).unwrap();
    (folder, file)
}

/// Runs a script in the pool over plain HTTP.
fn post(url: &str, script: &str) -> Value {
    let address = url.trim_start_matches("http://");
    let file = serde_json::json!({ "filename": "a.sh", "text": script });
    let body = serde_json::json!({ "input": [file] }).to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    let size = body.len();
    write!(
        stream,
        "POST /pool/run/sh HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {size}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_pool_by_itself_runs_programs_and_tells_how_it_is() {
    let (_folder, file) = config(CONFIG);
    let mut command = binary();
    command.args(["pool", "serve", "--http", "127.0.0.1:0"]).arg(&file);
    let serving = Serving::start(&mut command);
    assert!(serving.screen.contains("/pool (programs: sh)"), "{}", serving.screen);
    assert_eq!(post(&serving.url, "echo x > r.txt")["ok"]["result"], "eAo=");
    let status = &serving.run(&["pool", "status", "--json"]).json()[0];
    assert_eq!((&status["backends"], &status["counts"]["arrived"]), (&1.into(), &1.into()));
    let shown = serving.run(&["pool", "status"]).good();
    assert!(shown.contains("slow") && shown.contains("1 backends, 0 tasks run"), "{shown}");
    serving.signal("TERM");
    assert!(serving.ended().0.success());
}

#[test]
fn a_pool_beside_a_queue_shares_its_address() {
    let (folder, file) = config(CONFIG);
    let serving = Serving::folder(folder.path(), &["--pool", file.to_str().unwrap()]);
    assert_eq!(post(&serving.url, "echo x > r.txt")["ok"]["result"], "eAo=");
    serving.run(&["put", "mail", "a"]).good();
    serving.run(&["pool", "status"]).good();
}

#[test]
fn a_wrong_file_is_a_wrong_argument() {
    let (_folder, file) = config("backends: 0\nprograms: {x: {command: [/bin/true]}}");
    let refused = run(&["pool", "serve", file.to_str().unwrap()]).ends(2);
    assert!(refused.err.contains("backends must be 1 to 250"), "{}", refused.err);
    run(&["pool", "serve", "not-there.yaml"]).ends(2);
}

#[test]
fn a_server_without_a_pool_says_so() {
    let mut command = binary();
    command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off"]);
    let serving = Serving::start(&mut command);
    assert_ne!(serving.run(&["pool", "status"]).exit, 0);
}

//! Exit codes and error messages.

use std::fs;

use crate::process::{Serving, TOKEN, TestServer, run, token_file};

#[test]
fn an_unreachable_server() {
    // Port 1 is privileged, so no server listens there.
    let ran = run(&["take", "mail", "--url", "http://127.0.0.1:1"]).ends(7);
    assert!(ran.err.contains("taskyard serve"), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1);
}

#[test]
fn missing_tubes_and_tasks() {
    let server = TestServer::new();
    for verb in [["take", "nope", "--json"], ["ack", "nope", "0"], ["kick", "nope", "--all"]] {
        let ran = server.run(&verb).ends(4);
        assert!(ran.err.contains("'nope' does not exist; taskyard tube list"), "{}", ran.err);
    }
}

#[test]
fn a_stale_delivery() {
    let server = TestServer::new();
    server.run(&["put", "mail", "x"]).good();
    let lease = server.run(&["take", "mail", "--json"]).json()[0]["lease"].as_u64().unwrap();
    let stale = format!("0:{}", lease + 1);
    for verb in ["ack", "release", "touch"] {
        let ran = server.run(&[verb, "mail", &stale, "77"]).ends(5);
        assert_eq!(ran.err.lines().count(), 2, "{}", ran.err);
    }
}

#[test]
fn invalid_arguments() {
    for args in [
        &["fetch"][..],
        &["take"],
        &["take", "mail", "--wait", "long"],
        &["ack", "mail", "first"],
        &["ack", "mail"],
        &["put", "mail"],
        &["put", "a/b", "x"],
        &["put", "mail", "@no/such/file"],
        &["take", "mail", "--url", "ftp://mail"],
        &["take", "mail", "--url", ":7071"],
        &["tube", "create", "x", "--kind", "fifo", "--ttl", "5s"],
        &["tube", "create", "x", "--kind", "limfifottl"],
        &["tube", "create", "x", "--kind", "stack"],
        &["tube", "alter", "x"],
        &["serve", "--data", "a", "--store", "memory:"],
        &["serve", "--payload-max", "65MB"],
        &["serve", "--session-idle", "59s"],
        &["serve", "--session-idle", "721m"],
    ] {
        let ran = run(args).ends(2);
        assert!(!ran.err.is_empty(), "{args:?}");
    }
}

#[test]
fn limits_are_enforced() {
    let server = TestServer::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large");
    fs::write(&file, "x".repeat(2 << 20)).unwrap();
    let ran = server.run(&["put", "mail", &format!("@{}", file.display())]).ends(6);
    assert!(ran.err.contains("store the data somewhere else"), "{}", ran.err);
}

#[test]
fn a_token_grants_access() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path());
    let flags = ["--token-file", &file];
    let serving = Serving::folder(&folder.path().join("data"), &flags);
    assert!(serving.screen.contains("token needed"), "{}", serving.screen);
    let ran = serving.run(&["put", "mail", "x"]).ends(8);
    assert!(ran.err.contains("TASKYARD_TOKEN"), "{}", ran.err);
    serving.run(&["put", "mail", "x", "--token", "guess"]).ends(8);
    assert_eq!(serving.run(&["put", "mail", "x", "--token", TOKEN]).good(), "0\n");
}

// An address without a scheme, as users often write it, was refused.
#[test]
fn an_address_needs_no_scheme() {
    let server = TestServer::new();
    let address = server.serving.url.trim_start_matches("http://");
    let put = run(&["put", "mail", "x", "--url", address]);
    assert_eq!(put.good(), "0\n");
    let port = address.rsplit(':').next().unwrap();
    run(&["take", "mail", "--url", &format!("localhost:{port}")]).ends(0);
    // A host without a port meant port 80.
    let ran = run(&["take", "mail", "--url", "127.70.70.70"]).ends(7);
    assert!(ran.err.contains("http://127.70.70.70:7070"), "{}", ran.err);
}

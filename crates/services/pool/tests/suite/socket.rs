//! A client on a WebSocket, frame by frame.

use serde_json::json;

use crate::fixture::TestPool;

#[tokio::test]
async fn frames_come_in_order_and_the_first_says_that_it_runs() {
    let site = TestPool::new(1, "").await;
    let mut client = site.start("{}", "echo one; printf two > result.txt").await;
    let received = client.rest().await;
    let shape: Vec<_> = received.iter().map(|one| (one.verb.as_str(), &one.bytes[..])).collect();
    let wanted: [(&str, &[u8]); 4] =
        [("output", b""), ("output", b"one\n"), ("result", b"two"), ("complete", b"")];
    assert_eq!(shape, wanted);
    assert_eq!(received[2].body, json!({ "format": "txt", "media": "text/plain" }));
    assert_eq!(received[3].body, json!({}));
    site.until_empty().await;
}

#[tokio::test]
async fn output_streams_while_the_program_runs() {
    let site = TestPool::new(1, "").await;
    let mut client = site.start("{}", "echo begun; exec sleep 1000").await;
    client.until_output("begun").await;
    assert_eq!(site.status().await.running, 1);
}

#[tokio::test]
async fn standard_error_may_be_separate() {
    let site = TestPool::new(1, "").await;
    let mut client = site.start(r#"{"stderrRedir": false}"#, "echo wrong >&2").await;
    assert_eq!(client.until("output").await.body["stream"], "stdout");
    assert_eq!(client.until("output").await.body["stream"], "stderr");
}

const SCRIPT: &str = "echo x > result.txt";
/// Its SHA-256.
const HASH: &str = "4d7a1b3c1fcacec04bbd8f73dab873b3e4783c4ec922a28ec766aac4191b0d72";

#[tokio::test]
async fn unknown_files_are_requested_once_and_then_cached() {
    let site = TestPool::new(1, "").await;
    let restore = format!(r#"input {{"filename": "a.sh", "hash": "{HASH}", "restore": true}}"#);
    let mut client = site.client().await;
    client.send(&restore).await;
    client.send("start {}").await;
    let missing = client.until("missing").await.body;
    assert_eq!(missing, json!([{ "filename": "a.sh", "hash": HASH }]));
    client.send(&format!(r#"input {{"filename": "a.sh", "hash": "{HASH}"}}"#)).await;
    client.bytes(SCRIPT.as_bytes()).await;
    client.send("start {}").await;
    assert_eq!(client.until("complete").await.error(), "");
    // Another client need not send it.
    let mut client = site.client().await;
    client.send(&restore).await;
    client.send("start {}").await;
    let received = client.rest().await;
    assert!(received.iter().all(|one| one.verb != "missing"), "{received:?}");
    assert_eq!(received.last().unwrap().error(), "");
}

#[tokio::test]
async fn a_pool_without_a_cache_requests_files_again() {
    let site = TestPool::new(1, "limits: {restore_bytes_max: 0}").await;
    assert!(site.run(SCRIPT).await["ok"].is_object());
    for _ in 0..2 {
        let mut client = site.client().await;
        client.file("b.sh", SCRIPT).await;
        client
            .send(&format!(r#"input {{"filename": "a.sh", "hash": "{HASH}", "restore": true}}"#))
            .await;
        client.send("start {}").await;
        client.until("missing").await;
    }
}

#[tokio::test]
async fn a_wrong_hash_is_refused() {
    let site = TestPool::new(1, "").await;
    let mut client = site.client().await;
    client.send(r#"input {"filename": "a.sh", "hash": "00", "restore": true}"#).await;
    let error = client.until("deny").await.error().to_owned();
    assert_eq!(error, "`hash` must be a SHA-256 of 64 hexadecimal digits");
    let mut client = site.client().await;
    client.send(&format!(r#"input {{"filename": "a.sh", "hash": "{HASH}"}}"#)).await;
    client.bytes(b"something else").await;
    assert_eq!(client.until("deny").await.error(), "the bytes do not match `hash`");
}

#[tokio::test]
async fn later_options_change_only_their_own_fields() {
    let site = TestPool::new(1, "").await;
    let mut client = site.client().await;
    for options in [r#"{"duration": 0.3}"#, r#"{"format": "txt"}"#, r#"{"duration": 30}"#] {
        client.send(&format!("options {options}")).await;
    }
    client.file("a.sh", "exec sleep 1000").await;
    client.send("start {}").await;
    assert_eq!(client.until("complete").await.error(), "time limit (0.3 s)");
}

#[tokio::test]
async fn invalid_frames_are_denied() {
    let site = TestPool::new(1, "").await;
    for text in ["dance {}", "start {}", "start {\"main\": \"x.sh\"}", "options {\"x\": 1}", ""] {
        let mut client = site.client().await;
        client.send(text).await;
        let received = client.rest().await;
        assert_eq!(received.len(), 1, "{text}: {received:?}");
        assert_eq!(received[0].verb, "deny", "{text}");
        assert_ne!(received[0].error(), "");
    }
    let mut client = site.client().await;
    client.bytes(b"x").await;
    assert_eq!(client.until("deny").await.error(), "unexpected binary frame: send `input` first");
    site.until_empty().await;
}

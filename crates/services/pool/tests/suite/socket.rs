//! A client on a WebSocket, frame by frame.

use serde_json::json;

use crate::rig::Site;

#[tokio::test]
async fn frames_come_in_order_and_the_first_says_that_it_runs() {
    let site = Site::new(1, "").await;
    let mut client = site.start("{}", "echo one; printf two > result.txt").await;
    let heard = client.rest().await;
    let shape: Vec<_> = heard.iter().map(|one| (one.verb.as_str(), &one.bytes[..])).collect();
    let wanted: [(&str, &[u8]); 4] =
        [("output", b""), ("output", b"one\n"), ("result", b"two"), ("complete", b"")];
    assert_eq!(shape, wanted);
    assert_eq!(heard[2].body, json!({ "format": "txt", "media": "text/plain" }));
    assert_eq!(heard[3].body, json!({}));
    site.until_empty().await;
}

#[tokio::test]
async fn output_streams_while_the_program_runs() {
    let site = Site::new(1, "").await;
    let mut client = site.start("{}", "echo begun; exec sleep 1000").await;
    client.until_output("begun").await;
    assert_eq!(site.status().await.running, 1);
}

#[tokio::test]
async fn standard_error_may_come_apart() {
    let site = Site::new(1, "").await;
    let mut client = site.start(r#"{"stderrRedir": false}"#, "echo wrong >&2").await;
    assert_eq!(client.until("output").await.body["stream"], "stdout");
    assert_eq!(client.until("output").await.body["stream"], "stderr");
}

const SCRIPT: &str = "echo x > result.txt";
/// Its SHA-256.
const HASH: &str = "4d7a1b3c1fcacec04bbd8f73dab873b3e4783c4ec922a28ec766aac4191b0d72";

#[tokio::test]
async fn files_that_are_not_known_are_asked_for_once_and_then_kept() {
    let site = Site::new(1, "").await;
    let restore = format!(r#"input {{"filename": "a.sh", "hash": "{HASH}", "restore": true}}"#);
    let mut client = site.client().await;
    client.say(&restore).await;
    client.say("start {}").await;
    let missing = client.until("missing").await.body;
    assert_eq!(missing, json!([{ "filename": "a.sh", "hash": HASH }]));
    client.say(&format!(r#"input {{"filename": "a.sh", "hash": "{HASH}"}}"#)).await;
    client.bytes(SCRIPT.as_bytes()).await;
    client.say("start {}").await;
    assert_eq!(client.until("complete").await.error(), "");
    // Another client need not send it.
    let mut client = site.client().await;
    client.say(&restore).await;
    client.say("start {}").await;
    let heard = client.rest().await;
    assert!(heard.iter().all(|one| one.verb != "missing"), "{heard:?}");
    assert_eq!(heard.last().unwrap().error(), "");
}

#[tokio::test]
async fn a_pool_that_keeps_no_files_asks_for_them_again() {
    let site = Site::new(1, "limits: {restore_bytes_max: 0}").await;
    assert!(site.run(SCRIPT).await["ok"].is_object());
    for _ in 0..2 {
        let mut client = site.client().await;
        client.file("b.sh", SCRIPT).await;
        client
            .say(&format!(r#"input {{"filename": "a.sh", "hash": "{HASH}", "restore": true}}"#))
            .await;
        client.say("start {}").await;
        client.until("missing").await;
    }
}

#[tokio::test]
async fn a_wrong_hash_is_refused() {
    let site = Site::new(1, "").await;
    let mut client = site.client().await;
    client.say(r#"input {"filename": "a.sh", "hash": "00", "restore": true}"#).await;
    let error = client.until("deny").await.error().to_owned();
    assert_eq!(error, "`hash` is a SHA-256 of 64 hexadecimal digits");
    let mut client = site.client().await;
    client.say(&format!(r#"input {{"filename": "a.sh", "hash": "{HASH}"}}"#)).await;
    client.bytes(b"something else").await;
    assert_eq!(client.until("deny").await.error(), "these bytes have another `hash`");
}

#[tokio::test]
async fn a_second_word_on_options_changes_only_what_it_says() {
    let site = Site::new(1, "").await;
    let mut client = site.client().await;
    for options in [r#"{"duration": 0.3}"#, r#"{"format": "txt"}"#, r#"{"duration": 30}"#] {
        client.say(&format!("options {options}")).await;
    }
    client.file("a.sh", "exec sleep 1000").await;
    client.say("start {}").await;
    assert_eq!(client.until("complete").await.error(), "time limit (0.3 s)");
}

#[tokio::test]
async fn what_is_not_the_protocol_is_denied() {
    let site = Site::new(1, "").await;
    for text in ["dance {}", "start {}", "start {\"main\": \"x.sh\"}", "options {\"x\": 1}", ""] {
        let mut client = site.client().await;
        client.say(text).await;
        let heard = client.rest().await;
        assert_eq!(heard.len(), 1, "{text}: {heard:?}");
        assert_eq!(heard[0].verb, "deny", "{text}");
        assert_ne!(heard[0].error(), "");
    }
    let mut client = site.client().await;
    client.bytes(b"x").await;
    assert_eq!(client.until("deny").await.error(), "bytes without an `input` before them");
    site.until_empty().await;
}

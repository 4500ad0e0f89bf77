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

#[tokio::test]
async fn files_to_be_restored_are_asked_for_once() {
    let site = Site::new(1, "").await;
    let mut client = site.client().await;
    client.say(r#"input {"filename": "a.sh", "hash": "00", "restore": true}"#).await;
    client.say("start {}").await;
    assert_eq!(client.until("missing").await.body, json!([{ "filename": "a.sh" }]));
    client.file("a.sh", "echo x > result.txt").await;
    client.say("start {}").await;
    assert_eq!(client.until("complete").await.error(), "");
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

//! Every client gets exactly one final answer, also one that is still sending when it is given.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::rig::{Client, Heard, Site};

const SHELL: &str = "/pool/run/sh/interactive";

/// The only frame that a denied client gets.
async fn denied(client: &mut Client) -> String {
    let heard = client.rest().await;
    let [Heard { verb, .. }] = &heard[..] else { panic!("not one frame: {heard:?}") };
    assert_eq!(verb, "deny", "{heard:?}");
    heard[0].error().to_owned()
}

/// The connection was closed with input of the client unread, so that the system reset it and the client lost what it had
/// not read yet: of 291 sessions that came to a full pool with some input, 253 never heard that they were denied.
#[tokio::test]
async fn a_session_that_sends_on_hears_that_it_is_denied() {
    let site = Site::new(1, "").await;
    let mut busy = site.start(r#"{"duration": 30}"#, "echo up; exec sleep 1000").await;
    busy.until_output("up").await;
    for round in 0..60 {
        let mut client = site.connect(SHELL).await;
        client.say("start {}").await;
        for _ in 0..round % 20 {
            client.stdin(&"x".repeat(1_000)).await;
        }
        assert_eq!(denied(&mut client).await, "all backends are busy; try again later");
    }
    drop(busy);
    site.until_empty().await;
}

/// The same for input that is refused: the bytes of a file with a wrong name were unread, and so were the rest of too many
/// files. A message that was too long ended the connection without a word.
#[tokio::test]
async fn refused_input_is_answered_however_much_follows() {
    let site = Site::new(1, "").await;
    for _ in 0..10 {
        let mut client = site.client().await;
        for _ in 0..5 {
            client.file("a.txt", &"x".repeat(20_000)).await;
        }
        client.say("start {}").await;
        assert_eq!(denied(&mut client).await, "the name \"a.txt\" must end in \".sh\"");
        let mut client = site.client().await;
        for number in 0..24 {
            client.file(&format!("{number}.sh"), &"x".repeat(2_000)).await;
        }
        client.say("start {}").await;
        assert_eq!(denied(&mut client).await, "there are more than 16 files, the most there is");
    }
    let words = "the input has more than 128 KiB, the most there is";
    for size in [150_000, 200_000, 5_000_000] {
        let mut client = site.client().await;
        client.file("a.sh", &"x".repeat(size)).await;
        client.say("start {}").await;
        assert_eq!(denied(&mut client).await, words, "{size}");
    }
    assert_eq!(site.status().await.counts.arrived, 0);
    site.until_empty().await;
}

/// Sends a whole request before it reads anything of the answer.
fn post(address: &str, body: &[u8], kind: &str) -> (u16, Value) {
    let mut socket = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /pool/run/sh HTTP/1.1\r\nhost: {address}\r\ncontent-type: {kind}\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(body).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

/// Over plain HTTP the answer came while the request was still on its way, and was lost with the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_too_long_is_answered_when_it_is_read() {
    let site = Site::new(1, "").await;
    let file = json!({ "filename": "a.sh", "text": "x".repeat(6_000_000) });
    let body = json!({ "input": [file] }).to_string();
    for (kind, status, words) in [
        ("application/json", 413, "the input is too large: send at most 128 KiB"),
        ("text/plain", 415, "send JSON with the header 'Content-Type: application/json'"),
    ] {
        let (address, body) = (site.address.clone(), body.clone());
        let answer = move || post(&address, body.as_bytes(), kind);
        let answer = tokio::task::spawn_blocking(answer).await.unwrap();
        assert_eq!((answer.0, answer.1["error"]["error"].as_str()), (status, Some(words)));
    }
    assert_eq!(site.status().await.counts.arrived, 0);
}

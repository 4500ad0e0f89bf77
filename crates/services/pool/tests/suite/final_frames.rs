//! Every client gets exactly one final frame, even if it is still sending.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::fixture::{Client, ReceivedFrame, TestPool};

const SHELL: &str = "/pool/run/sh/interactive";

/// The only frame of a denied client.
async fn denied(client: &mut Client) -> String {
    let received = client.rest().await;
    let [ReceivedFrame { verb, .. }] = &received[..] else { panic!("not one frame: {received:?}") };
    assert_eq!(verb, "deny", "{received:?}");
    received[0].error().to_owned()
}

/// The connection was closed with unread input of the client, so that the system reset it and the client lost what it
/// had not read yet: of 291 sessions that came to a full pool with some input, 253 never received the denial.
#[tokio::test]
async fn a_session_that_is_still_sending_receives_its_denial() {
    let site = TestPool::new(1, "").await;
    let mut busy = site.start(r#"{"duration": 30}"#, "echo up; exec sleep 1000").await;
    busy.until_output("up").await;
    for round in 0..60 {
        let mut client = site.connect(SHELL).await;
        client.send("start {}").await;
        for _ in 0..round % 20 {
            client.stdin(&"x".repeat(1_000)).await;
        }
        assert_eq!(denied(&mut client).await, "all backends are busy; try again later");
    }
    drop(busy);
    site.until_empty().await;
}

/// The same for refused input: the bytes of a file with an invalid name were unread, and so was the rest of too many
/// files. A message that was too long ended the connection without a final frame.
#[tokio::test]
async fn refused_input_is_answered_however_much_follows() {
    let site = TestPool::new(1, "").await;
    for _ in 0..10 {
        let mut client = site.client().await;
        for _ in 0..5 {
            client.file("a.txt", &"x".repeat(20_000)).await;
        }
        client.send("start {}").await;
        assert_eq!(denied(&mut client).await, "the file name \"a.txt\" must end in \".sh\"");
        let mut client = site.client().await;
        for number in 0..24 {
            client.file(&format!("{number}.sh"), &"x".repeat(2_000)).await;
        }
        client.send("start {}").await;
        assert_eq!(denied(&mut client).await, "more than 16 files");
    }
    let expected = "the input is larger than 128 KiB";
    for size in [150_000, 200_000, 5_000_000] {
        let mut client = site.client().await;
        client.file("a.sh", &"x".repeat(size)).await;
        client.send("start {}").await;
        assert_eq!(denied(&mut client).await, expected, "{size}");
    }
    assert_eq!(site.status().await.counts.arrived, 0);
    site.until_empty().await;
}

/// Sends a whole request before it reads the response.
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

/// Over plain HTTP the response was sent while the request was still being received, and was lost with the
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_too_long_is_read_and_answered() {
    let site = TestPool::new(1, "").await;
    let file = json!({ "filename": "a.sh", "text": "x".repeat(6_000_000) });
    let body = json!({ "input": [file] }).to_string();
    for (kind, status, expected) in [
        ("application/json", 413, "the input is too large: send at most 128 KiB"),
        ("text/plain", 415, "send JSON with the header 'Content-Type: application/json'"),
    ] {
        let (address, body) = (site.address.clone(), body.clone());
        let answer = move || post(&address, body.as_bytes(), kind);
        let answer = tokio::task::spawn_blocking(answer).await.unwrap();
        assert_eq!((answer.0, answer.1["error"]["error"].as_str()), (status, Some(expected)));
    }
    assert_eq!(site.status().await.counts.arrived, 0);
}

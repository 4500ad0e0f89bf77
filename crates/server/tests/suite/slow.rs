//! Clients that do not read their responses, and clients that do not finish their requests.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use taskyard_server::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::yield_now;

use crate::fixture::{Fixture, post_bytes, read_all};

const MIB: usize = 1 << 20;

/// A connection whose client buffers almost nothing.
async fn narrow(address: SocketAddr, bytes: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream
}

/// Puts tasks of slightly less than a MiB.
async fn put_large(fixture: &Fixture, count: usize) {
    let data = "x".repeat(MIB - 100);
    for _ in 0..count {
        fixture.done("/v1/tubes/mail/put", json!({ "data": data })).await;
    }
}

/// Waits until the tube's tasks are in these states.
async fn until(fixture: &Fixture, stands: impl Fn(&Value) -> bool) {
    while !stands(&fixture.get("/v1/tubes/mail").await.body["tasks"]) {
        yield_now().await;
    }
}

/// A chunked response, assembled.
fn unchunked(mut text: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole.push_str(&rest[..size]);
        text = rest[size..].strip_prefix("\r\n").unwrap_or_default();
    }
    whole
}

fn budget_of_thirty_mib(config: &mut Config) {
    config.answer_bytes_total_max = 30 * MIB;
    config.answer_bytes_max = 30 * MIB;
    config.answer_wait_max = Duration::ZERO;
}

// Forty clients that requested 60 MB each and did not read made the server hold 2 GB. Tasks that do
// not fit in the budget must neither be lost nor be held by a client that never gets them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_are_limited_and_their_tasks_are_returned() {
    let fixture = Fixture::with(budget_of_thirty_mib).await;
    put_large(&fixture, 30).await;
    // Ten of them are 13 MiB as base64; the system itself buffers a few.
    let take = post_bytes("/v1/tubes/mail/take", "{\"count\": 10, \"base64\": true}");
    let mut first = narrow(fixture.address, &take).await;
    until(&fixture, |tasks| tasks["taken"] == 10).await;
    let refused = fixture.post("/v1/tubes/mail/take", json!({ "count": 20 })).await;
    assert!(
        refused.refused(503, "overloaded").contains("unread response bytes"),
        "{}",
        refused.body
    );
    assert_eq!(refused.headers["retry-after"], "1");
    let ids: Vec<usize> = (0..20).collect();
    fixture.post("/v1/tubes/mail/peek", json!({ "ids": ids })).await.refused(503, "overloaded");
    assert!(fixture.metric("taskyard_http_response_bytes").await <= 30 * MIB as u64);
    let tasks = fixture.get("/v1/tubes/mail").await.body;
    assert_eq!((&tasks["tasks"]["taken"], &tasks["tasks"]["ready"]), (&json!(10), &json!(20)));
    // Small responses, and commands that change something, succeed meanwhile.
    fixture.done("/v1/tubes/small/put", json!({ "data": 1 })).await;
    assert_eq!(fixture.done("/v1/tubes/small/take", json!({})).await["tasks"][0]["data"], 1);
    // A client that reads gets all of it, and releases the budget for others.
    first.shutdown().await.unwrap();
    let mut answer = Vec::new();
    first.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("chunked"), "{head}");
    let body: Value = serde_json::from_str(&unchunked(body)).unwrap();
    assert_eq!(body["tasks"].as_array().unwrap().len(), 10);
    assert_eq!(fixture.metric("taskyard_http_response_bytes").await, 0);
    let taken = fixture.done("/v1/tubes/mail/take", json!({ "count": 20 })).await;
    let taken = taken["tasks"].as_array().unwrap();
    assert_eq!(taken.len(), 20);
    assert!(taken.iter().all(|task| task["attempts"] == 0), "no attempt was counted");
}

// A take reserves nothing while it waits. When its tasks arrive and the budget is used up, they are
// returned too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_that_waited_returns_tasks_that_do_not_fit() {
    let fixture = Fixture::with(budget_of_thirty_mib).await;
    put_large(&fixture, 22).await;
    let take = post_bytes("/v1/tubes/mail/take", "{\"count\": 22, \"base64\": true, \"wait\": 5}");
    let mut first = narrow(fixture.address, &take).await;
    until(&fixture, |tasks| tasks["taken"] == 22).await;
    fixture.done("/v1/tubes/other/put", json!({ "tasks": [] })).await;
    let waiting = post_bytes("/v1/tubes/other/take", "{\"count\": 4, \"wait\": 300}");
    let mut waiting =
        fixture.raw(&waiting.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")).await;
    fixture.consumers("other", 1).await;
    // Five MiB as they are counted, and the system buffers at most four of the other response.
    let tasks = vec![json!({ "data": "x".repeat(MIB - 100) }); 4];
    fixture.done("/v1/tubes/other/put", json!({ "tasks": tasks })).await;
    let answer = read_all(&mut waiting).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{}", &answer[..200]);
    let other = fixture.get("/v1/tubes/other").await.body;
    assert_eq!((&other["tasks"]["taken"], &other["tasks"]["ready"]), (&json!(0), &json!(4)));
    assert_eq!(first.read(&mut [0; 8]).await.unwrap(), 8);
}

// A client that never read kept its response and its connection for as long as it liked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_is_closed_and_unsent_tasks_are_returned() {
    let fixture = Fixture::with(|config| config.answer_stall_max = Duration::from_millis(20)).await;
    put_large(&fixture, 30).await;
    let take = post_bytes("/v1/tubes/mail/take", "{\"count\": 30, \"lease\": 100000}");
    let mut client = narrow(fixture.address, &take).await;
    until(&fixture, |tasks| tasks["taken"] != 0 && tasks["taken"] != 30).await;
    while fixture.metric("taskyard_http_response_bytes").await != 0 {
        yield_now().await;
    }
    let mut answer = Vec::new();
    // It ends with an error or without, but never with the last piece.
    let _ = client.read_to_end(&mut answer).await;
    assert!(!answer.ends_with(b"0\r\n\r\n"));
    let tasks = fixture.get("/v1/tubes/mail").await.body["tasks"].clone();
    assert_eq!(tasks["taken"].as_u64().unwrap() + tasks["ready"].as_u64().unwrap(), 30);
}

// Three requests that stopped in the middle used the whole budget, and every request with a body
// was refused for a minute.
#[tokio::test]
async fn stalled_uploads_do_not_block_other_requests() {
    let fixture = Fixture::with(|config| {
        config.body_bytes_max = 4 * MIB;
        config.request_bytes_total_max = 8 * MIB;
    })
    .await;
    let mut stalled = Vec::new();
    for _ in 0..3 {
        let head = post_bytes("/v1/tubes/mail/put", "");
        let head = head.replace("Content-Length: 0", &format!("Content-Length: {}", 4 * MIB));
        let mut stream = fixture.raw(&head).await;
        let sent = vec![b' '; 3 * MIB];
        // The server refuses those that exceed the budget while this is written.
        let _ = stream.write_all(&sent).await;
        stalled.push(stream);
    }
    // One keeps all it sent; the others keep what is left or nothing.
    while fixture.metric("taskyard_http_request_bytes").await < 3 * MIB as u64 {
        yield_now().await;
    }
    for _ in 0..10 {
        fixture.done("/v1/tubes/mail/put", json!({ "data": "x".repeat(30_000) })).await;
    }
    fixture.done("/v1/tubes/mail/put", json!({ "data": "x".repeat(MIB / 2) })).await;
    drop(stalled);
    while fixture.metric("taskyard_http_request_bytes").await != 0 {
        yield_now().await;
    }
}

#[tokio::test]
async fn a_request_without_progress_is_refused() {
    let fixture =
        Fixture::with(|config| config.request_stall_max = Duration::from_millis(20)).await;
    let request = post_bytes("/v1/tubes/mail/put", &format!("{{\"data\": \"{}\"}}", "x".repeat(9)));
    let mut stalled = fixture.raw(&request[..request.len() - 3]).await;
    let answer = read_all(&mut stalled).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("the request came too slowly"), "{answer}");
    assert_eq!(fixture.metric("taskyard_http_request_bytes").await, 0);
}

// A client that sent a byte from time to time could keep its part of the budget for a minute.
#[tokio::test]
async fn a_request_that_drips_below_the_minimum_rate_is_refused() {
    let fixture =
        Fixture::with(|config| config.request_stall_max = Duration::from_millis(100)).await;
    let head = post_bytes("/v1/tubes/mail/put", "");
    let head = head.replace("Content-Length: 0", &format!("Content-Length: {MIB}"));
    let (mut reading, mut writing) = fixture.raw(&head).await.into_split();
    let mut answer = Vec::new();
    let mut answered = Box::pin(reading.read_to_end(&mut answer));
    loop {
        // Each byte waits for the response to another request.
        let drip = async {
            let _ = writing.write_all(b" ").await;
            fixture.metric("taskyard_http_request_bytes").await
        };
        tokio::select! {
            biased;
            // The bytes that arrive after the refusal may reset the connection.
            _ = &mut answered => break,
            _ = drip => {}
        }
    }
    drop(answered);
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("the request came too slowly: less than 8192 bytes"), "{answer}");
    while fixture.metric("taskyard_http_request_bytes").await != 0 {
        yield_now().await;
    }
}

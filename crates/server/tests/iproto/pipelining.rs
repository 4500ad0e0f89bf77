//! Many requests at once on one connection.

use std::collections::BTreeSet;

use serde_json::json;
use taskyard_iproto::{Operation, Shape};

use crate::fixture::TestServer;

#[tokio::test]
async fn requests_of_one_write_run_in_order() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let mut bytes = Vec::new();
    let mut calls = Vec::new();
    for round in 0..500 {
        for (verb, args, answer) in [
            ("put", json!([round]), json!([[round, "r", round]])),
            ("take", json!([0]), json!([[round, "t", round]])),
            ("ack", json!([round]), json!([[round, "-", round]])),
        ] {
            let name = format!("queue.tube.mail:{verb}");
            let (sync, request) = client.call_bytes(&name, &args, Shape::Call);
            bytes.extend(request);
            calls.push((sync, answer));
        }
    }
    client.send(&bytes).await;
    for (sync, answer) in calls {
        assert_eq!(client.answer_to(sync).await.unwrap(), answer);
    }
}

#[tokio::test]
async fn a_waiting_take_does_not_delay_others() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    let first = client.post("queue.tube.mail:take", json!([])).await;
    let second = client.post("queue.tube.mail:take", json!([60])).await;
    server.consumers("mail", 2).await;
    client.ping().await;
    let put = client.post("queue.tube.mail:put", json!(["a"])).await;
    let mut answered = [client.next().await.unwrap(), client.next().await.unwrap()];
    answered.sort_by_key(|answer| answer.0);
    assert_eq!(answered[0], (first, Ok(json!([[0, "t", "a"]]))));
    assert_eq!(answered[1], (put, Ok(json!([[0, "r", "a"]]))));
    server.advance(61);
    assert_eq!(client.answer_to(second).await.unwrap(), json!([]));
}

#[tokio::test]
async fn takes_and_puts_of_one_write_keep_their_order() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let mut bytes = Vec::new();
    let mut expected = BTreeSet::new();
    for task in 0..100 {
        for (verb, args, state) in [("take", json!([]), "t"), ("put", json!([task]), "r")] {
            let name = format!("queue.tube.mail:{verb}");
            let (sync, request) = client.call_bytes(&name, &args, Shape::Call);
            bytes.extend(request);
            expected.insert((sync, json!([[task, state, task]]).to_string()));
        }
    }
    client.send(&bytes).await;
    let mut answered = BTreeSet::new();
    for _ in 0..expected.len() {
        let (sync, answer) = client.next().await.unwrap();
        answered.insert((sync, answer.unwrap().to_string()));
    }
    assert_eq!(answered, expected);
}

#[tokio::test]
async fn too_many_requests_of_one_connection_are_refused_at_once() {
    let server = TestServer::with(|config| config.in_flight_max = 3).await;
    let mut client = server.with_tube("mail", "fifo").await;
    for _ in 0..3 {
        client.post("queue.tube.mail:take", json!([])).await;
    }
    server.consumers("mail", 3).await;
    client.refused("queue.tube.mail:put", json!([1]), 32, "unanswered").await;
    client.ping().await;
    let mut other = server.connect().await;
    other.done("queue.tube.mail:put", json!([1])).await;
    client.next().await.unwrap().1.unwrap();
    // One is answered, so one more is accepted.
    let put = client.post("queue.tube.mail:put", json!([2])).await;
    let answers = [client.next().await.unwrap(), client.next().await.unwrap()];
    assert!(answers.iter().any(|answer| answer.0 == put && answer.1.is_ok()), "{answers:?}");
}

#[tokio::test]
async fn too_many_requests_of_all_connections_are_refused_at_once() {
    let server = TestServer::with(|config| config.in_flight_total_max = 2).await;
    let mut client = server.with_tube("mail", "fifo").await;
    let mut other = server.connect().await;
    client.post("queue.tube.mail:take", json!([])).await;
    other.post("queue.tube.mail:take", json!([])).await;
    server.consumers("mail", 2).await;
    let mut third = server.connect().await;
    third.refused("queue.tube.mail:put", json!([1]), 32, "all connections").await;
    third.ping().await;
    drop(client);
    server.consumers("mail", 1).await;
    third.done("queue.tube.mail:put", json!([1])).await;
    assert!(other.next().await.unwrap().1.is_ok());
}

// Unread answers were all created at once, 30 MB of them here; they must wait until the client
// reads.
#[tokio::test]
async fn a_client_that_reads_late_gets_everything() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let data = "x".repeat(100_000);
    client.done("queue.tube.mail:put", json!([data])).await;
    let args = crate::fixture::packed(&json!([0]));
    let (name, shape) = ("queue.tube.mail:peek", Shape::Call);
    let mut bytes = Vec::new();
    for _ in 0..300 {
        bytes.extend(client.request(&Operation::Call { name, args: &args, shape }).1);
    }
    client.send(&bytes).await;
    let mut made = 0;
    while made == 0 {
        made = server.answered("peek").await;
    }
    assert!(made < 200, "{made} answers were created for a client that does not read");
    for _ in 0..300 {
        assert_eq!(client.next().await.unwrap().1.unwrap()[0][2], data.as_str());
    }
    client.ping().await;
}

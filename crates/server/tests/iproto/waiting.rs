//! Takes and puts that wait.

use serde_json::json;
use taskyard_iproto::Shape;
use tokio::task::yield_now;

use crate::fixture::TestServer;

#[tokio::test]
async fn a_ping_is_answered_while_thousands_wait() {
    let server = TestServer::new().await;
    let mut admin = server.with_tube("mail", "fifo").await;
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = server.connect().await;
        let mut bytes = Vec::new();
        for _ in 0..100 {
            bytes.extend(client.call_bytes("queue.tube.mail:take", &json!([]), Shape::Call).1);
        }
        client.send(&bytes).await;
        clients.push(client);
    }
    server.consumers("mail", 5_000).await;
    admin.ping().await;
    admin.refused("queue.tube.mail:drop", json!([]), 32, "There are consumers").await;
    // Each wakes one.
    for task in 0..200 {
        admin.done("queue.tube.mail:put", json!([task])).await;
    }
    server.consumers("mail", 4_800).await;
    clients.drain(2..);
    server.consumers("mail", 0).await;
    for client in &mut clients {
        for _ in 0..100 {
            assert!(client.next().await.unwrap().1.is_ok());
        }
    }
}

#[tokio::test]
async fn a_wait_ends_with_its_time() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let short = client.post("queue.tube.mail:take", json!([1.5])).await;
    let long = client.post("queue.tube.mail:take_many", json!([5, 10])).await;
    server.consumers("mail", 2).await;
    server.advance(2);
    assert_eq!(client.answer_to(short).await.unwrap(), json!([]));
    server.advance(10);
    assert_eq!(client.answer_to(long).await.unwrap(), json!([[]]));
}

#[tokio::test]
async fn a_put_waits_for_free_capacity() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    client.done("queue.create_tube", json!(["mail", "limfifottl", { "capacity": 1 }])).await;
    client.done("queue.tube.mail:put", json!([1])).await;
    let waiting = client.post("queue.tube.mail:put", json!([2, { "timeout": 60 }])).await;
    while server.engine.waiting().await.is_empty() {
        yield_now().await;
    }
    let deleted = client.post("queue.tube.mail:delete", json!([0])).await;
    let mut answers = [client.next().await.unwrap(), client.next().await.unwrap()];
    answers.sort_by_key(|answer| answer.0);
    assert_eq!(answers[0], (waiting, Ok(json!([[1, "r", 2]]))));
    assert_eq!(answers[1], (deleted, Ok(json!([[0, "-", 1]]))));
    let waiting = client.post("queue.tube.mail:put", json!([3, { "timeout": 60 }])).await;
    while server.engine.waiting().await.is_empty() {
        yield_now().await;
    }
    server.advance(61);
    assert_eq!(client.answer_to(waiting).await.unwrap(), json!([null]));
}

#[tokio::test]
async fn a_consumer_that_disconnects_takes_no_task() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let mut leaving = server.connect().await;
    leaving.post("queue.tube.mail:take", json!([])).await;
    server.consumers("mail", 1).await;
    drop(leaving);
    server.consumers("mail", 0).await;
    client.done("queue.tube.mail:put", json!([1])).await;
    assert_eq!(client.done("queue.tube.mail:take", json!([0])).await, json!([[0, "t", 1]]));
}

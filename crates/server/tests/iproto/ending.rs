//! A server that stops answers every request.

use serde_json::json;
use tokio::net::TcpStream;

use crate::fixture::TestServer;

#[tokio::test]
async fn stopping_answers_waiting_requests_and_closes() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let mut idle = server.connect().await;
    let mut waiting = Vec::new();
    for _ in 0..10 {
        waiting.push(client.post("queue.tube.mail:take", json!([])).await);
    }
    server.consumers("mail", 10).await;
    let address = server.address;
    let running = server.stop();
    for _ in &waiting {
        let (sync, answer) = client.next().await.unwrap();
        assert!(waiting.contains(&sync));
        assert_eq!(answer.unwrap(), json!([]));
    }
    assert!(client.next().await.is_none());
    assert!(idle.next().await.is_none());
    running.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn what_was_asked_before_the_end_is_answered() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let engine = server.engine.clone();
    let mut other = server.connect().await;
    let parked = other.post("queue.tube.mail:take", json!([])).await;
    server.consumers("mail", 1).await;
    engine.stop().await.unwrap();
    assert_eq!(other.answer_to(parked).await.unwrap(), json!([]));
    client.refused("queue.tube.mail:put", json!([1]), 32, "shutting down").await;
    client.ping().await;
    server.stop().await.unwrap().unwrap();
    assert!(client.next().await.is_none());
}

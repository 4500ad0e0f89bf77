//! Shutdown of a server: every request gets a response.

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::fixture::{Fixture, post_bytes, read_all};

#[tokio::test]
async fn stopping_answers_waiting_requests_and_closes() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": [] })).await;
    let mut waiting = fixture.raw(&post_bytes("/v1/tubes/mail/take", "{\"wait\": 300}")).await;
    fixture.consumers("mail", 1).await;
    let mut idle = fixture.raw("").await;
    let address = fixture.address;
    let running = fixture.stop();
    let answer = read_all(&mut waiting).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("{\"tasks\":[]}"), "{answer}");
    running.await.unwrap().unwrap();
    assert_eq!(idle.read(&mut [0; 16]).await.unwrap_or(0), 0, "an idle connection is closed");
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn a_request_that_arrives_while_stopping_is_answered() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": [] })).await;
    // The head has arrived and the handler reads; the body comes only after the stop.
    let request = post_bytes("/v1/tubes/mail/put", "{\"data\": 1}");
    let (head, body) = request.split_at(request.len() - 5);
    let mut late = fixture.raw(head).await;
    let mut parked = fixture.raw(&post_bytes("/v1/tubes/mail/take", "{\"wait\": 300}")).await;
    fixture.consumers("mail", 1).await;
    let engine = fixture.engine.clone();
    let running = fixture.stop();
    engine.stop().await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut late, body.as_bytes()).await.unwrap();
    let answer = read_all(&mut late).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("shutting_down"), "{answer}");
    assert!(read_all(&mut parked).await.starts_with("HTTP/1.1 200"));
    running.await.unwrap().unwrap();
}

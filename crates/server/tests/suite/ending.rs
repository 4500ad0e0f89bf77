//! How a server ends: everybody gets an answer.

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::rig::{Rig, post_bytes, read_all};

#[tokio::test]
async fn stopping_answers_those_who_wait_and_closes() {
    let rig = Rig::new().await;
    rig.done("/v1/tubes/mail/put", json!({ "tasks": [] })).await;
    let mut waiting = rig.raw(&post_bytes("/v1/tubes/mail/take", "{\"wait\": 300}")).await;
    rig.consumers("mail", 1).await;
    let mut idle = rig.raw("").await;
    let address = rig.address;
    let running = rig.stop();
    let answer = read_all(&mut waiting).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("{\"tasks\":[]}"), "{answer}");
    running.await.unwrap().unwrap();
    assert_eq!(idle.read(&mut [0; 16]).await.unwrap_or(0), 0, "an idle connection is closed");
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_request_that_arrives_while_stopping_is_answered() {
    let rig = Rig::new().await;
    rig.done("/v1/tubes/mail/put", json!({ "tasks": [] })).await;
    // The head is there and the handler reads; the body comes only after the stop.
    let request = post_bytes("/v1/tubes/mail/put", "{\"data\": 1}");
    let (head, body) = request.split_at(request.len() - 5);
    let mut late = rig.raw(head).await;
    let mut parked = rig.raw(&post_bytes("/v1/tubes/mail/take", "{\"wait\": 300}")).await;
    rig.consumers("mail", 1).await;
    let engine = rig.engine.clone();
    let running = rig.stop();
    engine.stop().await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut late, body.as_bytes()).await.unwrap();
    let answer = read_all(&mut late).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("shutting_down"), "{answer}");
    assert!(read_all(&mut parked).await.starts_with("HTTP/1.1 200"));
    running.await.unwrap().unwrap();
}

//! How a server ends: everybody gets an answer.

use serde_json::json;
use tokio::net::TcpStream;

use crate::rig::Rig;

#[tokio::test]
async fn stopping_answers_those_who_wait_and_closes() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    let mut idle = rig.connect().await;
    let mut waiting = Vec::new();
    for _ in 0..10 {
        waiting.push(talk.post("queue.tube.mail:take", json!([])).await);
    }
    rig.consumers("mail", 10).await;
    let address = rig.address;
    let running = rig.stop();
    for _ in &waiting {
        let (sync, answer) = talk.next().await.unwrap();
        assert!(waiting.contains(&sync));
        assert_eq!(answer.unwrap(), json!([]));
    }
    assert!(talk.next().await.is_none());
    assert!(idle.next().await.is_none());
    running.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn what_was_asked_before_the_end_is_answered() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    let engine = rig.engine.clone();
    let mut other = rig.connect().await;
    let parked = other.post("queue.tube.mail:take", json!([])).await;
    rig.consumers("mail", 1).await;
    engine.stop().await.unwrap();
    assert_eq!(other.answer_to(parked).await.unwrap(), json!([]));
    talk.refused("queue.tube.mail:put", json!([1]), 32, "shutting down").await;
    talk.ping().await;
    rig.stop().await.unwrap().unwrap();
    assert!(talk.next().await.is_none());
}

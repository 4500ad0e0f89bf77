//! What is too large or too many is refused, clearly and alone.

use serde_json::json;

use crate::rig::{Rig, Talk};

#[tokio::test]
async fn a_frame_that_is_too_long_is_refused_by_its_length_alone() {
    let rig = Rig::with(|config| config.frame_bytes_max = 1_000).await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    talk.done("queue.tube.mail:put", json!(["x".repeat(900)])).await;
    talk.send(&[0xce, 0, 0, 0x03, 0xe9]).await;
    let (sync, answer) = talk.next().await.unwrap();
    let fault = answer.unwrap_err();
    assert_eq!((sync, fault.code), (0, 20));
    assert!(fault.text.contains("packet length"), "{fault:?}");
    assert!(talk.next().await.is_none(), "the connection is closed");
    rig.connect().await.ping().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_frame_arrives_in_pieces() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    let tasks: Vec<_> = (0..40).map(|_| json!(["x".repeat(100_000)])).collect();
    let put = talk.done("queue.tube.mail:put_many", json!([tasks])).await;
    assert_eq!(put[0].as_array().unwrap().len(), 40);
    let taken = talk.done("queue.tube.mail:take_many", json!([40, 0])).await;
    assert_eq!(taken[0][39][2].as_str().unwrap().len(), 100_000);
}

#[tokio::test]
async fn connections_of_both_kinds_are_counted_together() {
    let rig = Rig::with_all(|config| config.connections_max = 2).await;
    let mut one = rig.connect().await;
    let mut http = tokio::net::TcpStream::connect(rig.http).await.unwrap();
    one.ping().await;
    // The server has let the other one in as soon as it answers.
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    http.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert!(http.read(&mut [0; 512]).await.unwrap() > 0);
    let mut third = tokio::net::TcpStream::connect(rig.address).await.unwrap();
    assert_eq!(third.read(&mut [0; 128]).await.unwrap_or(0), 0, "closed without a word");
    drop(http);
    loop {
        let mut next = tokio::net::TcpStream::connect(rig.address).await.unwrap();
        if next.read(&mut [0; 128]).await.unwrap_or(0) == 128 {
            break;
        }
    }
    one.ping().await;
}

#[tokio::test]
async fn many_connections_come_and_go() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    talk.done("queue.tube.mail:put", json!([1])).await;
    for _ in 0..100 {
        let mut other = Talk::new(rig.address).await;
        loop {
            let taken = other.done("queue.tube.mail:take", json!([])).await;
            if taken == json!([[0, "t", 1]]) {
                break;
            }
        }
    }
    rig.ready("mail", 1).await;
    let statistics = talk.done("queue.statistics", json!(["mail"])).await;
    assert_eq!(statistics[0]["calls"]["release"], 100);
}

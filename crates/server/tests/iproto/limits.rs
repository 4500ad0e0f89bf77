//! What is too large or too many is refused, clearly and alone.

use std::time::Duration;

use serde_json::json;
use taskyard_wire::iproto::Shape;
use tokio::io::AsyncWriteExt;

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
    use tokio::io::AsyncReadExt;
    http.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert!(http.read(&mut [0; 512]).await.unwrap() > 0);
    let mut third = rig.connect().await;
    let fault = third.next().await.unwrap().1.unwrap_err();
    assert!(fault.text.contains("overloaded: the server has 2 connections"), "{fault:?}");
    assert!(third.next().await.is_none(), "the connection is closed");
    drop(http);
    until_let_in(&rig).await;
    one.ping().await;
}

// Where there was no room a client was closed without a word, and clients of this kind could keep the
// operator out.
#[tokio::test]
async fn a_client_for_whom_there_is_no_room_is_told_so() {
    let rig = Rig::with(|config| config.connections_max = 1).await;
    let mut one = rig.connect().await;
    one.ping().await;
    let mut two = rig.connect().await;
    let (sync, answer) = two.next().await.unwrap();
    let fault = answer.unwrap_err();
    assert_eq!((sync, fault.code), (0, 32));
    assert!(fault.text.contains("overloaded: the server has 1 connections"), "{fault:?}");
    assert!(two.next().await.is_none(), "the connection is closed");
    let refused = "taskyard_iproto_connections_refused_total 1";
    assert!(rig.metrics().await.lines().any(|line| line == refused), "HTTP has room of its own");
    drop(one);
    until_let_in(&rig).await;
}

/// Comes again until there is room.
async fn until_let_in(rig: &Rig) {
    loop {
        let mut next = rig.connect().await;
        let (sync, bytes) = next.request(&taskyard_wire::iproto::Operation::Ping);
        // The server may close while this is written.
        let _ = next.stream.write_all(&bytes).await;
        if next.next().await.is_some_and(|(answered, _)| answered == sync) {
            return;
        }
    }
}

/// Announces a frame of this many bytes and sends so many of them.
async fn announce(rig: &Rig, announced: u32, sent: usize) -> Talk {
    let mut talk = rig.connect().await;
    let mut bytes = vec![0xce];
    bytes.extend_from_slice(&announced.to_be_bytes());
    bytes.resize(sent, 0);
    // A server that has no room may close in the middle.
    let _ = talk.stream.write_all(&bytes).await;
    talk
}

// Four clients that sent large requests and stopped in the middle closed every other connection of which
// a read ended inside a frame, however small that was.
#[tokio::test]
async fn slow_clients_do_not_close_others() {
    let rig = Rig::with(|config| {
        config.frame_bytes_max = 400_000;
        config.arriving_bytes_max = 400_000;
    });
    let rig = rig.await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    // Together they are too much, so that one of them has all there is when the other one is refused.
    let mut one = announce(&rig, 390_000, 380_000).await;
    let mut two = announce(&rig, 390_000, 380_000).await;
    let (refused, answer) = tokio::select! {
        answer = one.next() => (1, answer),
        answer = two.next() => (2, answer),
    };
    let fault = answer.unwrap().1.unwrap_err();
    assert!(fault.text.contains("overloaded: too many bytes"), "{fault:?}");
    let args = json!(["x".repeat(50_000)]);
    let (sync, put) = talk.call_bytes("queue.tube.mail:put", &args, Shape::Call);
    let (start, end) = put.split_at(30_000);
    talk.send(start).await;
    // Whoever answers has read what was sent before; so does everybody else by now.
    rig.connect().await.ping().await;
    talk.send(end).await;
    assert_eq!(talk.answer_to(sync).await.unwrap()[0][0], 0);
    drop(if refused == 1 { two } else { one });
    // What it had is free again.
    rig.connections(2).await;
    let mut three = announce(&rig, 390_000, 380_000).await;
    three.send(&[0; 10_005]).await;
    let fault = three.next().await.unwrap().1.unwrap_err();
    assert_eq!(fault.code, 20, "it was read to its end: {fault:?}");
}

// A client that stopped in the middle of a large request kept the memory for it as long as it liked.
#[tokio::test]
async fn a_large_request_that_does_not_come_on_is_given_up() {
    let rig = Rig::with(|config| config.stall_max = Duration::from_millis(20)).await;
    let mut talk = rig.connect().await;
    // The beginning of a small one may take its time.
    talk.send(&[5, 0x82, 0x00]).await;
    let mut stalled = announce(&rig, 400_000, 300_000).await;
    let (sync, answer) = stalled.next().await.unwrap();
    let fault = answer.unwrap_err();
    assert_eq!((sync, fault.code), (0, 32));
    assert!(fault.text.contains("did not come in time"), "{fault:?}");
    assert!(stalled.next().await.is_none(), "the connection is closed");
    talk.send(&[0x40, 0x01, 9]).await;
    assert_eq!(talk.next().await.unwrap(), (9, Ok(json!(null))));
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

// One client that made up names created all the tubes a store may have, and no other could create any.
#[tokio::test]
async fn a_user_may_create_so_many_tubes_and_no_more() {
    let rig = Rig::with_all(|config| config.tubes_per_user_max = 2).await;
    let mut talk = rig.with_tube("a", "fifo").await;
    talk.done("queue.create_tube", json!(["b", "fifo"])).await;
    let (sync, bytes) = talk.call_bytes("queue.create_tube", &json!(["c", "fifo"]), Shape::Call);
    talk.send(&bytes).await;
    let fault = talk.answer_to(sync).await.unwrap_err();
    assert!(fault.text.contains("the limit of 2 tubes is reached"), "{fault:?}");
    talk.done("queue.tube.a:drop", json!([])).await;
    talk.done("queue.create_tube", json!(["c", "fifo"])).await;
}

//! Input beyond a limit is refused with a clear error, without effect on other clients.

use std::time::Duration;

use serde_json::json;
use taskyard_iproto::Shape;
use tokio::io::AsyncWriteExt;

use crate::fixture::{RawClient, TestServer};

#[tokio::test]
async fn a_too_long_frame_is_refused_by_its_length() {
    let server = TestServer::with(|config| config.frame_bytes_max = 1_000).await;
    let mut client = server.with_tube("mail", "fifo").await;
    client.done("queue.tube.mail:put", json!(["x".repeat(900)])).await;
    client.send(&[0xce, 0, 0, 0x03, 0xe9]).await;
    let (sync, answer) = client.next().await.unwrap();
    let fault = answer.unwrap_err();
    assert_eq!((sync, fault.code), (0, 20));
    assert!(fault.text.contains("packet length"), "{fault:?}");
    assert!(client.next().await.is_none(), "the connection is closed");
    server.connect().await.ping().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_frame_arrives_in_pieces() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let tasks: Vec<_> = (0..40).map(|_| json!(["x".repeat(100_000)])).collect();
    let put = client.done("queue.tube.mail:put_many", json!([tasks])).await;
    assert_eq!(put[0].as_array().unwrap().len(), 40);
    let taken = client.done("queue.tube.mail:take_many", json!([40, 0])).await;
    assert_eq!(taken[0][39][2].as_str().unwrap().len(), 100_000);
}

#[tokio::test]
async fn connections_of_both_kinds_are_counted_together() {
    let server = TestServer::with_all(|config| config.connections_max = 2).await;
    let mut one = server.connect().await;
    let mut http = tokio::net::TcpStream::connect(server.http).await.unwrap();
    one.ping().await;
    // The server has accepted the other connection as soon as it answers.
    use tokio::io::AsyncReadExt;
    http.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert!(http.read(&mut [0; 512]).await.unwrap() > 0);
    let mut third = server.connect().await;
    let fault = third.next().await.unwrap().1.unwrap_err();
    assert!(fault.text.contains("overloaded: connection limit of 2 reached"), "{fault:?}");
    assert!(third.next().await.is_none(), "the connection is closed");
    drop(http);
    connect_when_possible(&server).await;
    one.ping().await;
}

// A client beyond the limit was closed without a message, and iproto clients could use up the
// connections of the operator.
#[tokio::test]
async fn a_client_beyond_the_limit_gets_an_error() {
    let server = TestServer::with(|config| config.connections_max = 1).await;
    let mut one = server.connect().await;
    one.ping().await;
    let mut two = server.connect().await;
    let (sync, answer) = two.next().await.unwrap();
    let fault = answer.unwrap_err();
    assert_eq!((sync, fault.code), (0, 32));
    assert!(fault.text.contains("overloaded: connection limit of 1 reached"), "{fault:?}");
    assert!(two.next().await.is_none(), "the connection is closed");
    let refused = "taskyard_iproto_connections_refused_total 1";
    assert!(server.metrics().await.lines().any(|line| line == refused), "HTTP has its own limit");
    drop(one);
    connect_when_possible(&server).await;
}

/// Connects again until the server accepts.
async fn connect_when_possible(server: &TestServer) {
    loop {
        let mut next = server.connect().await;
        let (sync, bytes) = next.request(&taskyard_iproto::Operation::Ping);
        // The server may close while this is written.
        let _ = next.stream.write_all(&bytes).await;
        if next.next().await.is_some_and(|(answered, _)| answered == sync) {
            return;
        }
    }
}

/// Announces a frame of this many bytes and sends so many of them.
async fn announce(server: &TestServer, announced: u32, sent: usize) -> RawClient {
    let mut client = server.connect().await;
    let mut bytes = vec![0xce];
    bytes.extend_from_slice(&announced.to_be_bytes());
    bytes.resize(sent, 0);
    // A server at its limit may close in the middle.
    let _ = client.stream.write_all(&bytes).await;
    client
}

// Four clients that sent large requests and stopped in the middle closed every other connection of
// which a read ended inside a frame, however small that was.
#[tokio::test]
async fn slow_clients_do_not_close_others() {
    let server = TestServer::with(|config| {
        config.frame_bytes_max = 400_000;
        config.arriving_bytes_max = 400_000;
    });
    let server = server.await;
    let mut client = server.with_tube("mail", "fifo").await;
    // Together they exceed the limit, so one of them uses all of it when the other one is refused.
    let mut one = announce(&server, 390_000, 380_000).await;
    let mut two = announce(&server, 390_000, 380_000).await;
    let (refused, answer) = tokio::select! {
        answer = one.next() => (1, answer),
        answer = two.next() => (2, answer),
    };
    let fault = answer.unwrap().1.unwrap_err();
    assert!(fault.text.contains("overloaded: the input buffers"), "{fault:?}");
    let args = json!(["x".repeat(50_000)]);
    let (sync, put) = client.call_bytes("queue.tube.mail:put", &args, Shape::Call);
    let (start, end) = put.split_at(30_000);
    client.send(start).await;
    // A reply proves that everything sent before was read, on the other connections too by now.
    server.connect().await.ping().await;
    client.send(end).await;
    assert_eq!(client.answer_to(sync).await.unwrap()[0][0], 0);
    drop(if refused == 1 { two } else { one });
    // Its share is free again.
    server.connections(2).await;
    let mut three = announce(&server, 390_000, 380_000).await;
    three.send(&[0; 10_005]).await;
    let fault = three.next().await.unwrap().1.unwrap_err();
    assert_eq!(fault.code, 20, "it was read to its end: {fault:?}");
}

// A client that stopped in the middle of a large request kept its memory without a time limit.
#[tokio::test]
async fn a_stalled_large_request_times_out() {
    let server = TestServer::with(|config| config.stall_max = Duration::from_millis(20)).await;
    let mut client = server.connect().await;
    // The beginning of a small request has no time limit.
    client.send(&[5, 0x82, 0x00]).await;
    let mut stalled = announce(&server, 400_000, 300_000).await;
    let (sync, answer) = stalled.next().await.unwrap();
    let fault = answer.unwrap_err();
    assert_eq!((sync, fault.code), (0, 32));
    assert!(fault.text.contains("timed out while reading"), "{fault:?}");
    assert!(stalled.next().await.is_none(), "the connection is closed");
    client.send(&[0x40, 0x01, 9]).await;
    assert_eq!(client.next().await.unwrap(), (9, Ok(json!(null))));
}

#[tokio::test]
async fn many_connections_open_and_close() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    client.done("queue.tube.mail:put", json!([1])).await;
    for _ in 0..100 {
        let mut other = RawClient::new(server.address).await;
        loop {
            let taken = other.done("queue.tube.mail:take", json!([])).await;
            if taken == json!([[0, "t", 1]]) {
                break;
            }
        }
    }
    server.ready("mail", 1).await;
    let statistics = client.done("queue.statistics", json!(["mail"])).await;
    assert_eq!(statistics[0]["calls"]["release"], 100);
}

// One client with made-up names created all the tubes that a store may have, and no other could
// create any.
#[tokio::test]
async fn the_number_of_tubes_of_a_user_is_limited() {
    let server = TestServer::with_all(|config| config.tubes_per_user_max = 2).await;
    let mut client = server.with_tube("a", "fifo").await;
    client.done("queue.create_tube", json!(["b", "fifo"])).await;
    let (sync, bytes) = client.call_bytes("queue.create_tube", &json!(["c", "fifo"]), Shape::Call);
    client.send(&bytes).await;
    let fault = client.answer_to(sync).await.unwrap_err();
    assert!(fault.text.contains("the limit of 2 tubes is reached"), "{fault:?}");
    client.done("queue.tube.a:drop", json!([])).await;
    client.done("queue.create_tube", json!(["c", "fifo"])).await;
}

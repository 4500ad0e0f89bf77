//! Bytes that are no requests do not affect other clients.

use fastrand::Rng;
use serde_json::json;
use taskyard_iproto::{Operation, Shape, auth};
use taskyard_testkit::random::{new_seed, runs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{TestServer, packed};

/// Sends bytes on a new connection and reads until the server closes it or nothing more arrives.
async fn send_noise(server: &TestServer, bytes: &[u8]) {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // The server may close in the middle.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answered = Vec::new();
    let _ = stream.read_to_end(&mut answered).await;
}

/// Requests of every kind that a client may send.
fn requests(rng: &mut Rng) -> Vec<Vec<u8>> {
    let many = packed(&json!([[["a"], ["b", { "delay": 1.5, "pri": 3 }]]]));
    let one = packed(&json!(["c", { "ttl": 7 }]));
    let (first, none) = (packed(&json!([0])), packed(&json!([])));
    let call = |name, args, shape| Operation::Call { name, args, shape };
    let operations = [
        Operation::Ping,
        Operation::Id { version: 6, features: vec![0, 1, 2] },
        Operation::Auth { user: "guest", scramble: Some(auth::scramble("x", &[0; 32])) },
        Operation::Select { space: 281, index: 0, limit: 9, offset: 0, iterator: 2, key: &none },
        Operation::Select { space: 514, index: 0, limit: 9, offset: 0, iterator: 2, key: &none },
        call("queue.tube.other:put_many", &many, Shape::Call),
        call("queue.tube.other:put", &one, Shape::Call16),
        call("queue.tube.other:take", &first, Shape::Call),
        call("queue.tube.other:ack", &first, Shape::Call),
        call("queue.tube.empty:take", &none, Shape::Call),
        call("queue.identify", &none, Shape::Call),
        call("queue.statistics", &none, Shape::Call),
        Operation::Eval { expression: "return queue.tube.other:peek(...)", args: &first },
        Operation::Watch { key: "box.shutdown" },
    ];
    let encoded = operations.iter().map(|operation| {
        let mut bytes = Vec::new();
        taskyard_iproto::encode_request(&mut bytes, rng.u64(..), operation);
        bytes
    });
    encoded.collect()
}

#[tokio::test]
async fn random_bytes_do_not_affect_other_clients() {
    let seed = new_seed();
    let mut rng = Rng::with_seed(seed);
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    client.done("queue.create_tube", json!(["other", "fifottl"])).await;
    for round in 0..100 * runs() {
        let length = rng.usize(1..300);
        let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(length).collect();
        send_noise(&server, &bytes).await;
        assert_eq!(client.done("queue.tube.mail:put", json!([round])).await[0][0], round);
    }
}

#[tokio::test]
async fn damaged_requests_do_not_affect_other_clients() {
    let seed = new_seed();
    let mut rng = Rng::with_seed(seed);
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    client.done("queue.create_tube", json!(["other", "fifottl"])).await;
    client.done("queue.create_tube", json!(["empty", "fifottl"])).await;
    for round in 0..200 * runs() {
        let mut bytes = requests(&mut rng).concat();
        for _ in 0..rng.usize(0..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        bytes.truncate(rng.usize(..=bytes.len()));
        send_noise(&server, &bytes).await;
        assert_eq!(client.done("queue.tube.mail:put", json!([round])).await[0][0], round);
    }
}

// The take had a table for its timeout and the expression an unknown name, so the damaged ones
// never reached a tube.
#[tokio::test]
async fn undamaged_requests_are_served() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("other", "fifottl").await;
    client.done("queue.create_tube", json!(["empty", "fifottl"])).await;
    client.done("queue.tube.other:put", json!([0])).await;
    let mut bytes = Vec::new();
    for mut request in requests(&mut Rng::with_seed(7)) {
        bytes.append(&mut request);
    }
    client.send(&bytes).await;
    server.consumers("empty", 1).await;
    let tasks = server.connect().await.done("queue.statistics", json!(["other"])).await;
    let tasks = &tasks[0]["tasks"];
    assert_eq!((&tasks["done"], &tasks["total"]), (&json!(1), &json!(3)), "{tasks}");
}

#[tokio::test]
async fn a_truncated_request_is_not_served() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let (_, bytes) = client.call_bytes("queue.tube.mail:put", &json!([1]), Shape::Call);
    for end in 0..bytes.len() {
        send_noise(&server, &bytes[..end]).await;
    }
    server.ready("mail", 0).await;
}

#[tokio::test]
async fn requests_before_noise_are_answered() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let (sync, mut bytes) = client.call_bytes("queue.tube.mail:put", &json!([1]), Shape::Call);
    bytes.push(0xc1);
    client.send(&bytes).await;
    let mut answers = [client.next().await.unwrap(), client.next().await.unwrap()];
    answers.sort_by_key(|answer| answer.0);
    assert_eq!(answers[0].1.as_ref().unwrap_err().code, 20);
    assert_eq!(answers[1], (sync, Ok(json!([[0, "r", 1]]))));
    assert!(client.next().await.is_none(), "the connection is closed");
}

// A page in a browser may send a form to this port. It must not become a request.
#[tokio::test]
async fn a_browser_cannot_send_requests() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let (_, put) = client.call_bytes("queue.tube.mail:put", &json!([1]), Shape::Call);
    for pad in 0..120 {
        let path = "x".repeat(pad);
        let mut bytes = format!("POST /{path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes();
        bytes.extend_from_slice(&put);
        send_noise(&server, &bytes).await;
    }
    server.ready("mail", 0).await;
}

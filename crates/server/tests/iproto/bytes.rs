//! The protocol byte by byte.

use serde_json::json;
use taskyard_iproto::Operation;
use tokio::io::AsyncReadExt;

use crate::fixture::{RawClient, TestServer};

/// PING with this sync, header only.
const fn ping(sync: u8) -> [u8; 5] {
    [0x82, 0x00, 0x40, 0x01, sync]
}

/// The reply to it.
fn pong(sync: u8) -> Vec<u8> {
    let mut bytes = vec![0xce, 0, 0, 0, 24, 0x83, 0x00, 0xce, 0, 0, 0, 0];
    bytes.extend([0x01, 0xcf, 0, 0, 0, 0, 0, 0, 0, sync, 0x05, 0xce, 0, 0, 0, 1, 0x80]);
    bytes
}

async fn expect(client: &mut RawClient, expected: &[u8]) {
    let mut answered = vec![0; expected.len()];
    client.stream.read_exact(&mut answered).await.unwrap();
    assert_eq!(answered, expected);
}

#[tokio::test]
async fn the_greeting_has_the_expected_form() {
    let server = TestServer::new().await;
    let (one, other) = (server.connect().await, server.connect().await);
    assert!(one.greeting.version.starts_with("2.11."));
    assert_eq!(one.greeting.instance, other.greeting.instance);
    assert_ne!(one.greeting.salt, other.greeting.salt);
}

#[tokio::test]
async fn a_captured_conversation() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("q_fifottl", "fifottl").await;
    // As tarantool-python sends it: the shortest length, the sync always 0, a schema version of 0.
    let mut take = vec![0x26, 0x83, 0x00, 0x0a, 0x01, 0x00, 0x05, 0x00, 0x82, 0x22, 0xb9];
    take.extend_from_slice(b"queue.tube.q_fifottl:take");
    take.extend([0x21, 0x91, 0x00]);
    client.send(&take).await;
    let nothing = [0x81, 0x30, 0xdd, 0, 0, 0, 0];
    assert!(client.next_bytes().await.unwrap().ends_with(&nothing));
    client.done("queue.tube.q_fifottl:put", json!(["hello"])).await;
    let mut delete = vec![0x28, 0x83, 0x00, 0x0a, 0x01, 0x00, 0x05, 0x00, 0x82, 0x22, 0xbb];
    delete.extend_from_slice(b"queue.tube.q_fifottl:delete");
    delete.extend([0x21, 0x91, 0x00]);
    client.send(&delete).await;
    let mut deleted = vec![0xce, 0, 0, 0, 0x28, 0x83, 0x00, 0xce, 0, 0, 0, 0];
    deleted.extend([0x01, 0xcf, 0, 0, 0, 0, 0, 0, 0, 0, 0x05, 0xce, 0, 0, 0, 1]);
    deleted.extend([0x81, 0x30, 0xdd, 0, 0, 0, 1, 0x93, 0x00, 0xa1, b'-', 0xa5]);
    deleted.extend_from_slice(b"hello");
    expect(&mut client, &deleted).await;
}

#[tokio::test]
async fn a_length_may_have_any_width() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let lengths: [&[u8]; 5] =
        [&[5], &[0xcc, 5], &[0xcd, 0, 5], &[0xce, 0, 0, 0, 5], &[0xcf, 0, 0, 0, 0, 0, 0, 0, 5]];
    for (length, sync) in lengths.into_iter().zip(1..) {
        client.send(length).await;
        client.send(&ping(sync)).await;
        expect(&mut client, &pong(sync)).await;
    }
}

#[tokio::test]
async fn a_frame_may_come_byte_by_byte() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let args = crate::fixture::packed(&json!(["x".repeat(300)]));
    let name = "queue.tube.mail:put";
    let shape = taskyard_iproto::Shape::Call;
    let (sync, bytes) = client.request(&Operation::Call { name, args: &args, shape });
    for byte in &bytes {
        client.send(&[*byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.answer_to(sync).await.unwrap()[0][0], 0);
}

#[tokio::test]
async fn unknown_requests_are_refused_and_the_connection_continues() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    // Type 99, sync 7, no body.
    client.send(&[5, 0x82, 0x00, 0x63, 0x01, 7]).await;
    let (sync, answer) = client.next().await.unwrap();
    let fault = answer.unwrap_err();
    assert_eq!((sync, fault.code), (7, 48));
    assert_eq!(fault.text, "Unknown request type 99");
    // Type 5 with a body that would be wrong for any other, which closed the connection.
    client.send(&[8, 0x82, 0x00, 0x05, 0x01, 8, 0x81, 0x21, 0x05]).await;
    let (sync, answer) = client.next().await.unwrap();
    assert_eq!((sync, answer.unwrap_err().code), (8, 48));
    // So did a function whose name is no text.
    client.send(&[9, 0x82, 0x00, 0x0a, 0x01, 9, 0x81, 0x22, 0xa1, 0xff]).await;
    let (sync, answer) = client.next().await.unwrap();
    assert_eq!((sync, answer.unwrap_err().code), (9, 20));
    client.ping().await;
}

// A request in a good frame with a wrong body was answered with error 20 and then lost its
// connection, with all pending requests of the client. Tarantool keeps the connection.
#[tokio::test]
async fn a_wrong_body_does_not_close_the_connection() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let bodies: [(u8, &[u8]); 7] = [
        // Arguments that are a number, a map and nil.
        (10, &[0x82, 0x22, 0xa1, b'f', 0x21, 0x05]),
        (10, &[0x82, 0x22, 0xa1, b'f', 0x21, 0x80]),
        (8, &[0x82, 0x27, 0xa1, b'f', 0x21, 0xc0]),
        // A key that is a number.
        (1, &[0x82, 0x10, 0xcd, 0x01, 0x19, 0x20, 0x05]),
        // A function that is a number, a body that is a list, a body that ends early.
        (10, &[0x81, 0x22, 0x05]),
        (10, &[0x91, 0x05]),
        (10, &[0x82, 0x22, 0xa1, b'f', 0x21]),
    ];
    for (number, (kind, body)) in (1..).zip(bodies) {
        let mut frame = vec![5 + body.len() as u8, 0x82, 0x00, kind, 0x01, number];
        frame.extend_from_slice(body);
        client.send(&frame).await;
        let (sync, answer) = client.next().await.expect("the connection goes on");
        let fault = answer.unwrap_err();
        assert_eq!((sync, fault.code), (number.into(), 20), "{body:02x?}");
        assert_eq!(fault.text, "Invalid MsgPack - packet body");
    }
    client.ping().await;
}

#[tokio::test]
async fn the_protocol_version_is_sent_and_watchers_are_refused() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let (_, bytes) = client.request(&Operation::Id { version: 6, features: vec![2] });
    client.send(&bytes).await;
    let reply = client.next_bytes().await.unwrap();
    assert!(reply.ends_with(b"\x55\x90\x5b\xa9chap-sha1"), "{reply:02x?}");
    let (_, watch) = client.request(&Operation::Watch { key: "box.shutdown" });
    let (_, unwatch) = client.request(&Operation::Unwatch { key: "box.shutdown" });
    client.send(&watch).await;
    client.send(&unwatch).await;
    // Neither has an answer.
    client.ping().await;
}

//! Events of semaphores over a WebSocket, tested byte by byte.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::Fixture;

/// An open socket.
struct Socket(TcpStream);

impl Socket {
    /// Requests the upgrade; the status line and, if it succeeded, the socket.
    async fn ask(fixture: &Fixture, query: &str, more: &str) -> (String, TcpStream) {
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        let request = format!(
            "GET /v1/semaphore-events/socket{query} HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\n\
             upgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n",
            fixture.address
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        (String::from_utf8(head).unwrap(), stream)
    }

    async fn open(fixture: &Fixture, query: &str) -> Socket {
        let (head, stream) = Socket::ask(fixture, query, "").await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        // The example of RFC 6455.
        assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        Socket(stream)
    }

    /// Sends a frame of less than 126 bytes, masked as clients must.
    async fn send(&mut self, kind: u8, payload: &[u8]) {
        let mask = [7, 1, 9, 3];
        let mut frame = vec![0x80 | kind, 0x80 | payload.len() as u8];
        frame.extend(mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.0.write_all(&frame).await.unwrap();
    }

    async fn acknowledge(&mut self, events: &Value) {
        self.send(1, json!({ "events": events }).to_string().as_bytes()).await;
    }

    /// The next frame that is not a ping: its kind and payload.
    async fn frame(&mut self) -> (u8, Vec<u8>) {
        loop {
            let (kind, length) = (self.0.read_u8().await.unwrap(), self.0.read_u8().await.unwrap());
            let length = match length {
                126 => usize::from(self.0.read_u16().await.unwrap()),
                length => usize::from(length),
            };
            let mut payload = vec![0; length];
            self.0.read_exact(&mut payload).await.unwrap();
            if kind & 0xf != 9 {
                return (kind & 0xf, payload);
            }
        }
    }

    async fn json(&mut self) -> Value {
        let (kind, payload) = self.frame().await;
        assert_eq!(kind, 1, "{}", String::from_utf8_lossy(&payload));
        serde_json::from_slice(&payload).unwrap()
    }

    /// The code with which the server closed.
    async fn closed(&mut self) -> u16 {
        let (kind, payload) = self.frame().await;
        assert_eq!(kind, 8);
        u16::from_be_bytes([payload[0], payload[1]])
    }
}

async fn create(fixture: &Fixture, key: &str) {
    let limits = json!({ "active": 1, "try_release": 1 });
    assert_eq!(
        fixture.send(Method::PUT, &format!("/v1/semaphores/{key}"), limits).await.status,
        200
    );
}

async fn enqueue(fixture: &Fixture, key: &str, task: u64) {
    let entries = json!({ "tasks": [{ "task": task, "priority": 1 }] });
    fixture.done(&format!("/v1/semaphores/{key}/enqueue"), entries).await;
}

#[tokio::test]
async fn events_come_and_are_acknowledged_on_the_same_socket() {
    let fixture = Fixture::new().await;
    create(&fixture, "yang").await;
    create(&fixture, "other").await;
    enqueue(&fixture, "yang", 1).await;
    let mut socket = Socket::open(&fixture, "?semaphore=yang").await;
    let first = socket.json().await;
    assert_eq!((&first["event"]["task"], &first["event"]["kind"]), (&json!(1), &json!("acquired")));
    // While it listens, nothing arrives from another semaphore.
    enqueue(&fixture, "other", 5).await;
    enqueue(&fixture, "yang", 2).await;
    socket.acknowledge(&json!([first["event"]["id"]])).await;
    assert_eq!(socket.json().await, json!({ "acknowledged": 1 }));
    let release = json!({ "items": [{ "task": 1 }] });
    fixture.done("/v1/semaphores/yang/finish", release).await;
    let second = socket.json().await;
    assert_eq!(second["event"]["task"], 2);
    socket.acknowledge(&json!([second["event"]["id"], 999])).await;
    assert_eq!(socket.json().await, json!({ "acknowledged": 1 }));
    let shown = fixture.get("/v1/semaphores/yang").await.body;
    assert_eq!(shown["events"], 0, "nothing is left to be sent");
}

/// Unacknowledged events are not lost with the socket: they are sent again.
#[tokio::test]
async fn a_broken_socket_loses_no_events() {
    let fixture = Fixture::new().await;
    create(&fixture, "yang").await;
    let mut socket = Socket::open(&fixture, "").await;
    enqueue(&fixture, "yang", 1).await;
    let sent = socket.json().await;
    drop(socket);
    assert_eq!(fixture.get("/v1/semaphores/yang").await.body["events"], 1);
    // The next client can acknowledge it, over any socket.
    let mut next = Socket::open(&fixture, "").await;
    next.acknowledge(&json!([sent["event"]["id"]])).await;
    assert_eq!(next.json().await, json!({ "acknowledged": 1 }));
    assert_eq!(fixture.get("/v1/semaphores/yang").await.body["events"], 0);
}

#[tokio::test]
async fn wrong_messages_end_the_socket() {
    let fixture = Fixture::new().await;
    create(&fixture, "yang").await;
    for (kind, text, code) in [(1, "{\"ack\": 1}", 1007), (1, "[1]", 1007), (2, "x", 1003)] {
        let mut socket = Socket::open(&fixture, "").await;
        socket.send(kind, text.as_bytes()).await;
        assert_eq!(socket.closed().await, code, "{text}");
    }
    let mut socket = Socket::open(&fixture, "").await;
    socket.send(9, b"there?").await;
    assert_eq!(socket.frame().await, (10, b"there?".to_vec()), "a ping is answered");
}

#[tokio::test]
async fn an_unauthorized_client_gets_no_socket() {
    let fixture = Fixture::new().await;
    for (query, more, status) in [
        ("?semaphore=nowhere", "", "404"),
        ("?semaphore=a%2Fb", "", "400"),
        ("?what=1", "", "400"),
        ("", "origin: http://evil.example\r\n", "403"),
    ] {
        let (head, _) = Socket::ask(&fixture, query, more).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{query}: {head}");
    }
    fixture.get("/v1/semaphore-events/socket").await.refused(400, "invalid");
}

/// A web page sends its token as one of its protocols, and a browser fails unless one of them is in
/// the response.
#[tokio::test]
async fn a_page_gets_one_of_its_protocols() {
    let fixture = Fixture::new().await;
    let offered = "sec-websocket-protocol: taskyard.events, bearer.secret\r\n";
    let (head, _) = Socket::ask(&fixture, "", offered).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert!(head.to_lowercase().contains("sec-websocket-protocol: taskyard.events\r\n"), "{head}");
}

/// A frame that is too large was read to its end before its size was checked.
#[tokio::test]
async fn a_large_frame_is_refused_early() {
    let fixture = Fixture::new().await;
    let mut socket = Socket::open(&fixture, "").await;
    let mut head = vec![0x81, 0x80 | 127];
    head.extend((1_u64 << 20).to_be_bytes());
    head.extend([7, 1, 9, 3]);
    socket.0.write_all(&head).await.unwrap();
    let mut rest = Vec::new();
    // With or without a close frame, the server ends it.
    let _ = socket.0.read_to_end(&mut rest).await;
}

/// A server that stops closes its sockets instead of letting listeners wait.
#[tokio::test]
async fn a_stop_ends_the_socket() {
    let fixture = Fixture::new().await;
    let mut socket = Socket::open(&fixture, "").await;
    fixture.engine.stop().await.unwrap();
    assert_eq!(socket.closed().await, 1001);
}

//! Requests that are too large or too many are refused with a clear error, and the server
//! continues.

use serde_json::json;
use taskyard_core::limits::{BATCH_TASKS_MAX, PAYLOAD_BYTES_DEFAULT};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::yield_now;

use crate::fixture::{Fixture, post_bytes, read_all};

#[tokio::test]
async fn a_payload_over_the_limit_is_refused() {
    let fixture = Fixture::new().await;
    let most = "x".repeat(PAYLOAD_BYTES_DEFAULT - 5);
    fixture.done("/v1/tubes/mail/put", json!({ "data": most })).await;
    let over = "x".repeat(PAYLOAD_BYTES_DEFAULT - 4);
    let answer = fixture.post("/v1/tubes/mail/put", json!({ "data": over })).await;
    answer.refused(413, "too_large");
    assert_eq!(answer.body["error"]["limit"], PAYLOAD_BYTES_DEFAULT);
}

#[tokio::test]
async fn a_batch_over_the_limit_is_refused() {
    let fixture = Fixture::new().await;
    let tasks = vec![json!({ "data": 0 }); BATCH_TASKS_MAX + 1];
    let answer = fixture.post("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    answer.refused(413, "too_large");
    fixture.done("/v1/tubes/mail/put", json!({ "data": 0 })).await;
    let ids = vec![0; BATCH_TASKS_MAX + 1];
    let answer = fixture.post("/v1/tubes/mail/peek", json!({ "ids": ids })).await;
    answer.refused(413, "too_large");
}

#[tokio::test]
async fn a_request_over_the_limit_is_refused_announced_or_not() {
    let fixture = Fixture::with(|config| config.body_bytes_max = 1000).await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": "x".repeat(900) })).await;
    let answer = fixture.post("/v1/tubes/mail/put", json!({ "data": "x".repeat(4_000_000) })).await;
    assert!(answer.refused(413, "too_large").contains("1000"));
    let piece = format!("12c\r\n{}\r\n", "x".repeat(300));
    let chunked = format!(
        "POST /v1/tubes/mail/put HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        piece.repeat(4)
    );
    let answer = read_all(&mut fixture.raw(&chunked).await).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn a_request_in_many_pieces_is_assembled() {
    let fixture = Fixture::new().await;
    let head = "POST /v1/tubes/mail/put HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let pieces: String =
        "{\"data\": \"a long way\"}".chars().map(|char| format!("1\r\n{char}\r\n")).collect();
    let mut stream = fixture.raw(&format!("{head}{pieces}0\r\n\r\n")).await;
    assert!(read_all(&mut stream).await.starts_with("HTTP/1.1 200"));
    assert_eq!(fixture.get("/v1/tubes/mail/tasks/0").await.body["data"], "a long way");
}

#[tokio::test]
async fn a_large_request_is_parsed_on_a_blocking_thread() {
    let fixture = Fixture::new().await;
    let tasks: Vec<_> = (0..9_000).map(|n| json!({ "data": format!("{n:0100}") })).collect();
    let put = fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    assert_eq!(put["tasks"][8_999]["id"], 8_999);
    let answer = fixture.post("/v1/tubes/mail/put", json!({ "x": "x".repeat(1 << 20) })).await;
    answer.refused(400, "invalid");
}

#[tokio::test]
async fn connections_over_the_limit_get_an_error() {
    let fixture = Fixture::with(|config| config.connections_max = 2).await;
    let health = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = fixture.raw(health).await;
        assert!(first_bytes(&mut stream).await.starts_with("HTTP/1.1 200"));
        open.push(stream);
    }
    let answer = read_all(&mut fixture.raw(health).await).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("retry-after: 1\r\n") && answer.contains("\"overloaded\""), "{answer}");
    open[0].write_all(health.as_bytes()).await.unwrap();
    assert!(first_bytes(&mut open[0]).await.starts_with("HTTP/1.1 200"), "others continue");
    drop(open.pop());
    while !first_bytes(&mut fixture.raw(health).await).await.starts_with("HTTP/1.1 200") {
        yield_now().await;
    }
}

#[tokio::test]
async fn input_that_is_not_http_is_refused_and_the_server_continues() {
    let fixture = Fixture::new().await;
    for bytes in ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\u{16}\u{3}\u{1}"] {
        let mut stream = fixture.raw(bytes).await;
        stream.shutdown().await.unwrap();
        let answer = read_all(&mut stream).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{bytes:?}: {answer}");
    }
    let cut = post_bytes("/v1/tubes/mail/put", "{\"data\": 1}");
    drop(fixture.raw(&cut[..cut.len() - 3]).await);
    for odd in [
        "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\nConnection: close\r\n\r\n",
        "BREW /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ] {
        let answer = read_all(&mut fixture.raw(odd).await).await;
        assert!(answer.starts_with("HTTP/1.1 40"), "{odd}: {answer}");
    }
    assert_eq!(fixture.get("/healthz").await.status, 200);
    assert_eq!(fixture.get("/v1/tubes").await.body["tubes"], json!([]), "half a put puts nothing");
}

async fn first_bytes(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 4096];
    let count = stream.read(&mut bytes).await.unwrap();
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

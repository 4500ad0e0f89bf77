//! A server whose store is not open yet.

use serde_json::Value;
use taskyard_server::{IprotoConfig, Listeners};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::fixture::{config, engine, read_all};

async fn get(address: std::net::SocketAddr, path: &str) -> (String, Value) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = read_all(&mut stream).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), serde_json::from_str(body).unwrap_or_default())
}

// The addresses were bound, dropped and bound again once the store was open: clients that connected
// meanwhile were reset, and another program could take the port.
#[tokio::test]
async fn early_clients_get_an_error_or_wait() {
    let mut config = config();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let iproto = free.local_addr().unwrap();
    drop(free);
    config.iproto = Some(IprotoConfig::new(iproto));
    let listeners = Listeners::bind(config).await.unwrap();
    let address = listeners.address();
    let mut early = TcpStream::connect(iproto).await.unwrap();

    let (head, health) = get(address, "/healthz").await;
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert_eq!(health["status"], "starting");
    let (head, refusal) = get(address, "/v1/stats").await;
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("retry-after: 1"), "{head}");
    assert_eq!(refusal["error"]["code"], "store_away");
    let message = refusal["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("the server is starting"), "{message}");

    // A request that is incomplete when the server becomes ready is answered too.
    let mut late = TcpStream::connect(address).await.unwrap();
    late.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    let server = listeners.serve(engine()).await.unwrap();
    assert_eq!(server.address(), address);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async move { drop(stopped.await) }));
    late.write_all(b"Host: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    assert!(read_all(&mut late).await.starts_with("HTTP/1.1 "));

    let (head, health) = get(address, "/healthz").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(health["status"], "ok");
    let mut greeting = [0; 128];
    early.read_exact(&mut greeting).await.unwrap();
    assert!(greeting.starts_with(b"Tarantool "), "the early connection is served");
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

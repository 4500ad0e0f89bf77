//! A server for each test, and a client for it.

use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::Value;
use taskyard_core::{Result, TubeName};
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, Server, UsersHandle};
use taskyard_store::MemoryStore;
use taskyard_testkit::recorded_output::{keep_log, record};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};

/// A running server and its client.
pub struct Fixture {
    pub engine: Engine,
    pub users: UsersHandle,
    pub address: SocketAddr,
    pub client: Client,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<()>>,
}

/// A response: its status, its headers by name, its JSON.
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

pub fn engine() -> Engine {
    let clock = Arc::new(SystemClock::new());
    Engine::start(Box::new(MemoryStore::default()), clock, Settings::default())
}

pub fn config() -> Config {
    Config::new(SocketAddr::from(([127, 0, 0, 1], 0)))
}

impl Fixture {
    pub async fn new() -> Self {
        Fixture::with(|_| {}).await
    }

    /// A server with a changed configuration.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Fixture::over(engine(), change).await
    }

    /// The same with an engine of the test.
    pub async fn over(engine: Engine, change: impl FnOnce(&mut Config)) -> Self {
        keep_log();
        let mut config = config();
        change(&mut config);
        let server = Server::bind(config, engine.clone()).await.unwrap();
        let address = server.address();
        let users = server.users();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(server.run(async move { drop(stopped.await) }));
        let client = Client::builder().no_proxy().build().unwrap();
        Fixture { engine, users, address, client, stop, running }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    pub async fn get(&self, path: &str) -> Answer {
        Answer::of(self.request(Method::GET, path).send().await.unwrap()).await
    }

    pub async fn send(&self, method: Method, path: &str, body: Value) -> Answer {
        Answer::of(self.request(method, path).json(&body).send().await.unwrap()).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Method::POST, path, body).await
    }

    /// Sends a POST that must succeed.
    pub async fn done(&self, path: &str, body: Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    pub async fn text(&self, path: &str) -> String {
        let text = self.request(Method::GET, path).send().await.unwrap().text().await.unwrap();
        record("answers", &text);
        text
    }

    /// Sends bytes on a new connection and leaves it open.
    pub async fn raw(&self, bytes: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        stream
    }

    /// The value of a metric without labels.
    pub async fn metric(&self, name: &str) -> u64 {
        let text = self.text("/metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    }

    /// Waits until that many consumers wait on the tube.
    pub async fn consumers(&self, tube: &str, count: usize) {
        let tube = TubeName::new(tube).unwrap();
        let waiting = async || self.engine.waiting_counts().await.get(&tube).map_or(0, |c| c.takes);
        while waiting().await != count {
            yield_now().await;
        }
    }

    /// Starts to stop the server, without waiting for it.
    pub fn stop(self) -> JoinHandle<Result<()>> {
        self.stop.send(()).unwrap();
        self.running
    }
}

impl Answer {
    pub async fn of(response: Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        if status >= 400 {
            record("answers", &format!("{text}\n"));
        }
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status, headers, body }
    }

    /// Checks that this is an error of that kind, and returns its message.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> &str {
        assert_eq!(self.status, status, "{}", self.body);
        assert_eq!(self.body["error"]["code"], code, "{}", self.body);
        assert_eq!(self.headers["content-type"], "application/json");
        let message = self.body["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty());
        message
    }
}

/// The bytes of a POST with this JSON text.
pub fn post_bytes(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Everything until the server closes.
pub async fn read_all(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.unwrap();
    String::from_utf8(text).unwrap()
}

//! A server for each test, and clients that speak to it in frames.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use taskyard_core::{Command, Execute, Reply, Result, Span, Timestamp, TubeName};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_iproto::{Fault, Greeting, Operation, Shape, encode_request, next_frame, parse_reply};
use taskyard_server::{Config, IprotoConfig, Server, UsersHandle};
use taskyard_store::{MemoryStore, Store};
use taskyard_testkit::recorded_output::keep_log;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};

/// A running server whose time is moved by hand.
pub struct TestServer {
    pub engine: Engine,
    pub users: UsersHandle,
    pub http: SocketAddr,
    pub address: SocketAddr,
    clock: Arc<ManualClock>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<()>>,
}

/// A client on a connection of its own.
pub struct RawClient {
    pub stream: TcpStream,
    pub greeting: Greeting,
    arrived: Vec<u8>,
    next_sync: u64,
}

/// What came back: the data, or why not.
pub type IprotoAnswer = Result<Value, Fault>;

impl TestServer {
    pub async fn new() -> Self {
        TestServer::with(|_| {}).await
    }

    /// A server whose configuration was changed first.
    pub async fn with(change: impl FnOnce(&mut IprotoConfig)) -> Self {
        TestServer::with_all(|config| change(config.iproto.as_mut().unwrap())).await
    }

    pub async fn with_all(change: impl FnOnce(&mut Config)) -> Self {
        TestServer::on(Box::new(MemoryStore::default()), change).await
    }

    /// A server over this store.
    pub async fn on(store: Box<dyn Store>, change: impl FnOnce(&mut Config)) -> Self {
        keep_log();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config::new(any);
        config.iproto = Some(IprotoConfig::new(any));
        change(&mut config);
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000_000)));
        let engine = Engine::start(store, clock.clone(), Settings::default());
        let server = Server::bind(config, engine.clone()).await.unwrap();
        let (http, address) = (server.address(), server.iproto_address().unwrap());
        let users = server.users();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(server.run(async move { drop(stopped.await) }));
        TestServer { engine, users, http, address, clock, stop, running }
    }

    pub async fn connect(&self) -> RawClient {
        RawClient::new(self.address).await
    }

    /// A client, and a tube of this kind.
    pub async fn with_tube(&self, name: &str, kind: &str) -> RawClient {
        let mut client = self.connect().await;
        client.done("queue.create_tube", json!([name, kind])).await;
        client
    }

    pub fn advance(&self, seconds: u64) {
        self.clock.advance(Span::from_secs(seconds));
    }

    /// Waits until that many consumers wait on the tube.
    pub async fn consumers(&self, tube: &str, count: usize) {
        let tube = TubeName::new(tube).unwrap();
        let waiting = async || self.engine.waiting_counts().await.get(&tube).map_or(0, |c| c.takes);
        while waiting().await != count {
            yield_now().await;
        }
    }

    /// Waits until that many tasks of the tube are ready.
    pub async fn ready(&self, tube: &str, count: u64) {
        loop {
            let tube = Some(TubeName::new(tube).unwrap());
            let mut replies = self.engine.execute(vec![Command::Tubes { tube }]).await;
            let Some(Ok(Reply::Tubes(tubes))) = replies.pop() else { panic!("no tube") };
            if tubes[0].stats.tasks.ready == count {
                return;
            }
            yield_now().await;
        }
    }

    pub async fn metrics(&self) -> String {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let metrics = client.get(format!("http://{}/metrics", self.http)).send().await.unwrap();
        metrics.text().await.unwrap()
    }

    /// How many requests with this verb were answered.
    pub async fn answered(&self, verb: &str) -> u64 {
        let line = format!("taskyard_iproto_requests_total{{verb=\"{verb}\",code=\"0\"}} ");
        let metrics = self.metrics().await;
        let count = metrics.lines().find_map(|found| found.strip_prefix(&line));
        count.map_or(0, |count| count.parse().unwrap())
    }

    /// Waits until there are this many iproto connections; closed connections have left their
    /// sessions.
    pub async fn connections(&self, count: usize) {
        let line = format!("taskyard_iproto_connections {count}");
        while !self.metrics().await.lines().any(|found| found == line) {
            yield_now().await;
        }
    }

    /// Asks the server to stop, without waiting for it.
    pub fn stop(self) -> JoinHandle<Result<()>> {
        self.stop.send(()).unwrap();
        self.running
    }
}

impl RawClient {
    pub async fn new(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut greeting = [0; 128];
        stream.read_exact(&mut greeting).await.unwrap();
        let greeting = Greeting::parse(&greeting).unwrap();
        RawClient { stream, greeting, arrived: Vec::new(), next_sync: 0 }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// A request's bytes, with a number of its own.
    pub fn request(&mut self, operation: &Operation<'_>) -> (u64, Vec<u8>) {
        self.next_sync += 1;
        let mut bytes = Vec::new();
        encode_request(&mut bytes, self.next_sync, operation);
        (self.next_sync, bytes)
    }

    pub fn call_bytes(&mut self, name: &str, args: &Value, shape: Shape) -> (u64, Vec<u8>) {
        let args = packed(args);
        self.request(&Operation::Call { name, args: &args, shape })
    }

    /// Sends a call and does not wait for its answer.
    pub async fn post(&mut self, name: &str, args: Value) -> u64 {
        let (sync, bytes) = self.call_bytes(name, &args, Shape::Call);
        self.send(&bytes).await;
        sync
    }

    /// Sends a request and waits for its answer.
    pub async fn execute(&mut self, operation: &Operation<'_>) -> IprotoAnswer {
        let (sync, bytes) = self.request(operation);
        self.send(&bytes).await;
        self.answer_to(sync).await
    }

    pub async fn call(&mut self, name: &str, args: Value) -> IprotoAnswer {
        let sync = self.post(name, args).await;
        self.answer_to(sync).await
    }

    /// The same in the shape of version 1.6.
    pub async fn call_16(&mut self, name: &str, args: Value) -> IprotoAnswer {
        let args = packed(&args);
        self.execute(&Operation::Call { name, args: &args, shape: Shape::Call16 }).await
    }

    pub async fn eval(&mut self, expression: &str, args: Value) -> IprotoAnswer {
        let args = packed(&args);
        self.execute(&Operation::Eval { expression, args: &args }).await
    }

    /// A call that must work.
    pub async fn done(&mut self, name: &str, args: Value) -> Value {
        self.call(name, args).await.unwrap_or_else(|fault| panic!("{name}: {fault:?}"))
    }

    /// A call that must be refused with this code and a text that contains this.
    pub async fn refused(&mut self, name: &str, args: Value, code: u32, text: &str) {
        let fault = self.call(name, args).await.expect_err(name);
        assert!(fault.code == code && fault.text.contains(text), "{name}: {fault:?}");
    }

    pub async fn ping(&mut self) {
        assert_eq!(self.execute(&Operation::Ping).await.unwrap(), Value::Null);
    }

    /// The next reply, whatever it answers; `None` when the server has closed.
    pub async fn next(&mut self) -> Option<(u64, IprotoAnswer)> {
        let frame = self.next_bytes().await?;
        let reply = parse_reply(&frame).unwrap();
        let answer = match (reply.fault(), reply.data) {
            (Some(fault), _) => Err(fault),
            (None, Some(data)) => Ok(unpacked(data)),
            (None, None) => Ok(Value::Null),
        };
        Some((reply.sync, answer))
    }

    /// The bytes of the next reply, without its length.
    pub async fn next_bytes(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(frame) = next_frame(&self.arrived, usize::MAX).unwrap() {
                let (body, consumed) = (frame.body.to_vec(), frame.consumed);
                self.arrived.drain(..consumed);
                return Some(body);
            }
            // A server that refuses the rest of what was sent may reset the connection.
            if self.stream.read_buf(&mut self.arrived).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// The next reply, which must answer this.
    pub async fn answer_to(&mut self, sync: u64) -> IprotoAnswer {
        let (answered, answer) = self.next().await.expect("the server has closed");
        assert_eq!(answered, sync, "{answer:?}");
        answer
    }

    /// The identity of the session.
    pub async fn identity(&mut self) -> [u8; 16] {
        let args = packed(&json!([]));
        let (_, bytes) = self.request(&Operation::Call {
            name: "queue.identify",
            args: &args,
            shape: Shape::Call,
        });
        self.send(&bytes).await;
        let frame = self.next_bytes().await.unwrap();
        frame[frame.len() - 16..].try_into().unwrap()
    }

    /// Joins the session of this identity.
    pub async fn identify(&mut self, session: &[u8]) -> Result<(), Fault> {
        let mut args = vec![0x91, 0xc4, session.len() as u8];
        args.extend_from_slice(session);
        let (_, bytes) = self.request(&Operation::Call {
            name: "queue.identify",
            args: &args,
            shape: Shape::Call,
        });
        self.send(&bytes).await;
        let frame = self.next_bytes().await.unwrap();
        match parse_reply(&frame).unwrap().fault() {
            Some(fault) => Err(fault),
            None if frame.ends_with(session) => Ok(()),
            None => panic!("another session"),
        }
    }
}

pub fn packed(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap()
}

pub fn unpacked(bytes: &[u8]) -> Value {
    rmp_serde::from_slice(bytes).unwrap()
}

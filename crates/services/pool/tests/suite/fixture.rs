//! A pool for each test, and a client that sends and receives frames.

use std::net::SocketAddr;
use std::ops::Range;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use taskyard_pool::backend::set_sandbox_init_executable;
use taskyard_pool::config::SandboxKind;
use taskyard_pool::gateway::router;
use taskyard_pool::scheduler::Status;
use taskyard_pool::{Config, Pool};
use taskyard_testkit::recorded_output::keep_log;
use taskyard_testkit::skipped::skip;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Programs that exist on every machine: a shell script as the task itself, never around it.
pub const PROGRAMS: &str = "
programs:
  sh:
    command: [/bin/sh, '{main}']
    interactive: [/bin/cat]
    input: .sh
    formats: {txt: text/plain}
    result: result.{format}
";

/// Whether bubblewrap works on this machine.
static BUBBLEWRAP: LazyLock<bool> = LazyLock::new(|| {
    let mut trial = Command::new("/usr/bin/bwrap");
    trial.args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/true"]);
    trial.status().is_ok_and(|status| status.success())
});

/// Enables sandboxes: the executable of the tests cannot be their init process. Without bubblewrap programs run without
/// a sandbox, because most tests are about something else.
pub fn enable_sandboxes(config: &Config) -> Config {
    keep_log();
    set_sandbox_init_executable(env!("CARGO_BIN_EXE_taskyard-pool-sandbox-init").into());
    let sandbox = if *BUBBLEWRAP { config.sandbox } else { SandboxKind::None };
    Config { sandbox, ..config.clone() }
}

pub struct TestPool {
    pub pool: Pool,
    pub address: String,
    serving: JoinHandle<()>,
}

impl TestPool {
    /// A pool with so many backends and the standard programs; `more` is further configuration.
    pub async fn new(backends: u32, more: &str) -> Self {
        let text = format!("backends: {backends}\nseed: 1\n{PROGRAMS}{more}");
        TestPool::of(Config::parse(&text).unwrap()).await
    }

    /// A pool with this configuration.
    pub async fn of(config: Config) -> Self {
        let config = enable_sandboxes(&config);
        let wanted = config.sandbox == SandboxKind::Bubblewrap;
        let pool = Pool::start(config).await.unwrap();
        assert_eq!(pool.backends().isolation().has_bubblewrap(), wanted);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let app =
            router(pool.gateway().clone()).into_make_service_with_connect_info::<SocketAddr>();
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        TestPool { pool, address, serving }
    }

    /// Whether programs run in bubblewrap; otherwise notes that the test is skipped.
    pub fn has_bubblewrap(&self) -> bool {
        let has = self.pool.backends().isolation().has_bubblewrap();
        if !has {
            skip("bubblewrap does not work on this machine");
        }
        has
    }

    /// Sends a whole task and returns the status and the response.
    pub async fn post(&self, body: Value) -> (u16, Value) {
        self.post_to("sh", body).await
    }

    pub async fn post_to(&self, program: &str, body: Value) -> (u16, Value) {
        post(&self.address, program, body).await
    }

    /// Runs a script over plain HTTP and returns the response.
    pub async fn run(&self, script: &str) -> Value {
        let file = serde_json::json!({ "filename": "a.sh", "text": script });
        self.post(serde_json::json!({ "input": [file] })).await.1
    }

    /// A client of the standard program.
    pub async fn client(&self) -> Client {
        self.connect("/pool/run/sh").await
    }

    pub async fn connect(&self, path: &str) -> Client {
        connect(&self.address, path).await
    }

    /// A client that has sent a script and `start`.
    pub async fn start(&self, options: &str, script: &str) -> Client {
        let mut client = self.client().await;
        client.send(&format!("options {options}")).await;
        client.file("a.sh", script).await;
        client.send("start {}").await;
        client
    }

    pub async fn status(&self) -> Status {
        self.pool.status().await.unwrap()
    }

    /// Polls until the status is as required.
    #[track_caller]
    pub fn until(&self, what: impl Fn(&Status) -> bool) -> impl Future<Output = Status> {
        let caller = std::panic::Location::caller();
        async move {
            let given_up = Instant::now() + PATIENCE;
            loop {
                let status = self.status().await;
                if what(&status) {
                    return status;
                }
                assert!(Instant::now() < given_up, "{caller}: waited in vain: {status:#?}");
                tokio::task::yield_now().await;
            }
        }
    }

    /// Polls until nothing is left of any task.
    pub async fn until_empty(&self) {
        let empty = |status: &Status| status.tracked + status.running + status.queued == 0;
        let status = self.until(empty).await;
        assert_eq!(status.inconsistency, None);
        assert!(status.classes.iter().all(|class| class.running == 0), "{status:#?}");
        let given_up = Instant::now() + PATIENCE;
        while self.pool.backends().folders() > 0 {
            assert!(Instant::now() < given_up, "folders are left");
            tokio::task::yield_now().await;
        }
        // Ready sandboxes have empty folders.
        let all = std::fs::read_dir(self.pool.backends().folder()).unwrap().flatten();
        for folder in all {
            let left = std::fs::read_dir(folder.path()).into_iter().flatten().next();
            assert!(left.is_none(), "{left:?}");
        }
    }

    /// Polls until so many sandboxes are ready.
    pub async fn until_ready(&self, count: usize) {
        let given_up = Instant::now() + PATIENCE;
        while self.pool.backends().sandboxes().ready != count {
            assert!(Instant::now() < given_up, "{:?}", self.pool.backends().sandboxes());
            tokio::task::yield_now().await;
        }
    }

    /// Stops the pool, so that everything that exists afterwards was left behind.
    pub async fn stop(&self) {
        self.pool.stop(Duration::ZERO).await;
        // A busy machine takes longer than the pool waits.
        let given_up = Instant::now() + PATIENCE;
        while let Some(left) = std::fs::read_dir(self.pool.backends().folder()).unwrap().next() {
            assert!(Instant::now() < given_up, "{left:?}");
            tokio::task::yield_now().await;
        }
    }
}

/// Polls until none of these users has a live process: killed ones take a moment to end.
pub async fn until_gone(users: Range<u32>) {
    let given_up = Instant::now() + PATIENCE;
    for user in users {
        while let Some(process) = processes(user).pop() {
            assert!(Instant::now() < given_up, "{process}");
            tokio::task::yield_now().await;
        }
    }
}

/// The live processes of a user.
pub fn processes(uid: u32) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let statuses =
        entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
    let of_user = statuses.filter(|status| {
        status.contains(&format!("Uid:\t{uid}\t")) && !status.contains("State:\tZ")
    });
    of_user.collect()
}

/// Sends a whole task to the pool at this address.
pub async fn post(address: &str, program: &str, body: Value) -> (u16, Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{address}/pool/run/{program}");
    let answer = client.post(url).json(&body).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// A client of the gateway at this address.
pub async fn connect(address: &str, path: &str) -> Client {
    try_connect(address, path).await.unwrap()
}

/// The same for a gateway that may be gone.
pub async fn try_connect(address: &str, path: &str) -> Option<Client> {
    let url = format!("ws://{address}{path}");
    let (socket, _) = tokio_tungstenite::connect_async(url).await.ok()?;
    Some(Client { socket })
}

impl Drop for TestPool {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

pub struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

/// A frame with the bytes that follow it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedFrame {
    pub verb: String,
    pub body: Value,
    pub bytes: Vec<u8>,
}

impl ReceivedFrame {
    pub fn error(&self) -> &str {
        self.body["error"].as_str().unwrap_or_default()
    }
}

impl Client {
    pub async fn send(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    /// Sends a frame to a pool that may have closed the connection already.
    pub async fn send_late(&mut self, text: &str) {
        let _ = self.socket.send(Message::text(text)).await;
    }

    pub async fn bytes(&mut self, bytes: &[u8]) {
        self.socket.send(Message::binary(bytes.to_vec())).await.unwrap();
    }

    pub async fn file(&mut self, name: &str, text: &str) {
        self.send(&format!("input {}", serde_json::json!({ "filename": name }))).await;
        self.bytes(text.as_bytes()).await;
    }

    pub async fn send_file_late(&mut self, name: &str, text: &str) {
        self.send_late(&format!("input {}", serde_json::json!({ "filename": name }))).await;
        let _ = self.socket.send(Message::binary(text.as_bytes().to_vec())).await;
    }

    pub async fn stdin(&mut self, text: &str) {
        self.send(r#"input {"stream": "stdin"}"#).await;
        self.bytes(text.as_bytes()).await;
    }

    async fn message(&mut self) -> Option<Message> {
        loop {
            let message = timeout(PATIENCE, self.socket.next()).await.expect("the pool answers");
            match message {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(message)) => return Some(message),
            }
        }
    }

    /// The next frame; `None` when the connection is closed.
    pub async fn next_frame(&mut self) -> Option<ReceivedFrame> {
        let text = self.message().await?.into_text().unwrap();
        let (verb, body) = text.split_once(' ').unwrap();
        let bytes = match verb {
            "output" | "result" => self.message().await?.into_data().to_vec(),
            _ => Vec::new(),
        };
        Some(ReceivedFrame { verb: verb.into(), body: serde_json::from_str(body).unwrap(), bytes })
    }

    /// Receives until there is such a frame.
    #[track_caller]
    pub fn until(&mut self, verb: &str) -> impl Future<Output = ReceivedFrame> {
        let caller = std::panic::Location::caller();
        async move {
            let mut before = Vec::new();
            while let Some(received) = self.next_frame().await {
                if received.verb == verb {
                    return received;
                }
                before.push(received);
            }
            panic!("{caller}: no {verb} after {before:?}");
        }
    }

    /// Receives output until it contains this text.
    #[track_caller]
    pub fn until_output(&mut self, text: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let mut all = String::new();
            while let Some(received) = self.next_frame().await {
                all.push_str(&String::from_utf8_lossy(&received.bytes));
                if all.contains(text) {
                    return;
                }
                assert_ne!(received.verb, "complete", "{caller}: {received:?} after {all:?}");
            }
            panic!("{caller}: the connection ended after {all:?}");
        }
    }

    /// All frames up to the end.
    pub async fn rest(&mut self) -> Vec<ReceivedFrame> {
        let mut all = Vec::new();
        while let Some(received) = self.next_frame().await {
            all.push(received);
        }
        all
    }
}

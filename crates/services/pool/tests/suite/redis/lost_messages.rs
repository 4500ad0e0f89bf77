//! Messages that never arrive: lost replies of Redis, silent backends, and programs that do not read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use taskyard_pool::backend::StubRunner;
use taskyard_pool::redis::{BackendHost, BackendHostOptions, PoolAddress};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, accept_async};

use super::fixture::{Part, RedisFixture, TestGateway};
use super::forged_messages::submit;
use crate::fixture::Client;

/// A pool in which the test acts as the backend.
struct ManualBackend {
    fixture: RedisFixture,
    scheduler: Option<Part>,
    gateway: TestGateway,
    number: Mutex<String>,
    listener: TcpListener,
}

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A task that the test has claimed.
struct Claimed {
    id: String,
    attempt: String,
}

impl ManualBackend {
    async fn new(more: &str) -> Option<Self> {
        let fixture = RedisFixture::new(1, more)?;
        let (scheduler, gateway) = (fixture.scheduler("one"), fixture.gateway().await);
        fixture.until(|status| status["leader"]["name"].is_string()).await;
        let number = Mutex::new(String::new());
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(16).unwrap();
        let scheduler = Some(scheduler);
        let backend = ManualBackend { fixture, scheduler, gateway, number, listener };
        backend.heartbeat(None);
        backend.settled().await;
        Some(backend)
    }

    /// Sends a heartbeat with the run.
    fn heartbeat(&self, runs: Option<&Claimed>) {
        let known = if runs.is_some() { "another" } else { "" };
        let mut call = vec!["heartbeat", "", "600000", "{}", known];
        if let Some(Claimed { id, attempt }) = runs {
            call.extend([id, attempt, "0", "default", "60000000", "1", "1", "60000000"]);
        }
        let reply = self.fixture.function(&call);
        *self.number.lock().unwrap() = reply.lines().next().unwrap().to_owned();
    }

    async fn settled(&self) {
        let settled = |status: &Value| status["backends"] == 1 && status["paused"] == false;
        self.fixture.until(settled).await;
    }

    /// Claims the next task.
    async fn claim(&self) -> Claimed {
        let address = format!("ws://{}/x", self.listener.local_addr().unwrap());
        let number = self.number.lock().unwrap().clone();
        let given_up = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < given_up, "nothing is offered");
            let reply = self.fixture.function(&["claim", &number, &address]);
            let mut lines = reply.lines().map(str::to_owned);
            if reply.lines().count() > 5
                && let (Some(id), Some(attempt)) = (lines.next(), lines.next())
            {
                return Claimed { id, attempt };
            }
            tokio::task::yield_now().await;
        }
    }

    /// Accepts the connection of the gateway.
    async fn accept(&self) -> WebSocketStream<TcpStream> {
        let comes = timeout(PATIENCE, self.listener.accept()).await.expect("a gateway comes");
        accept_async(comes.unwrap().0).await.unwrap()
    }

    /// Completes when the gateway has disconnected.
    async fn until_left(&self, socket: &mut WebSocketStream<TcpStream>) {
        let gone = async { while socket.next().await.is_some_and(|reply| reply.is_ok()) {} };
        timeout(PATIENCE, gone).await.expect("it leaves");
    }

    fn finish(&self, claimed: &Claimed, how: &str) {
        let reply =
            self.fixture.function(&["finish", &claimed.id, &claimed.attempt, how, "1", "-"]);
        assert_eq!(reply.lines().next(), Some("1"));
    }

    /// The task runs once more, and its client receives the end of that run.
    async fn expect_rerun(&self, first: &Claimed, client: &mut Client) {
        let second = self.serve().await;
        assert_eq!(second.id, first.id);
        assert_eq!(client.until("complete").await.error(), "");
        self.fixture.until_empty().await;
    }

    /// Claims the next task and ends it without an error.
    async fn serve(&self) -> Claimed {
        let claimed = self.claim().await;
        let mut socket = self.accept().await;
        self.finish(&claimed, "done");
        socket.send(Message::text("complete {}")).await.unwrap();
        self.until_left(&mut socket).await;
        claimed
    }
}

const LONG: &str = "leases: {task_seconds: 6, backend_seconds: 3, leader_seconds: 6}\n";

fn numbers(attempt: &str) -> (u64, u64) {
    let (lead, number) = attempt.split_once('-').unwrap();
    (lead.parse().unwrap(), number.parse().unwrap())
}

/// A scheduler whose connection was cut reads the state again and numbers runs from one. It did so under its old
/// lead, and runs got the names of earlier ones: a gateway that had followed a later run took the next one for an old
/// message, and its client received nothing any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_that_reads_the_state_again_gives_runs_new_names() {
    let Some(backend) = ManualBackend::new(LONG).await else { return };
    for _ in 0..3 {
        let mut client = backend.gateway.start("{}", "").await;
        backend.serve().await;
        assert_eq!(client.until("complete").await.error(), "");
    }
    let mut client = backend.gateway.start("{}", "").await;
    let first = backend.claim().await;
    let _followed = backend.accept().await;
    // Its next call waits in Redis, and its connection ends before the reply.
    let redis = backend.fixture.redis();
    redis.talk(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let given_up = Instant::now() + PATIENCE;
    let blocked = loop {
        assert!(Instant::now() < given_up, "it asks nothing");
        let all = redis.talk(&["CLIENT", "LIST"]);
        let waits = |line: &&str| {
            line.contains(" name=taskyard-pool-scheduler ") && line.contains(" flags=b ")
        };
        if let Some(line) = all.lines().find(waits) {
            break line.split([' ', '=']).nth(1).unwrap().to_owned();
        }
        tokio::task::yield_now().await;
    };
    redis.talk(&["CLIENT", "KILL", "ID", &blocked]);
    redis.talk(&["CLIENT", "UNPAUSE"]);
    backend.finish(&first, "lost");
    let second = backend.serve().await;
    assert_eq!(second.id, first.id);
    assert!(numbers(&second.attempt) > numbers(&first.attempt), "{}", second.attempt);
    assert_eq!(client.until("complete").await.error(), "");
    backend.fixture.until_empty().await;
}

/// A backend accepted a connection and sent nothing: messages to the task were handled only fifteen seconds later,
/// when the next backend had given it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_does_not_answer_is_replaced() {
    let Some(backend) = ManualBackend::new(LONG).await else { return };
    let mut client = backend.gateway.start("{}", "").await;
    let first = backend.claim().await;
    let (mut silent, _) = backend.listener.accept().await.unwrap();
    backend.finish(&first, "lost");
    let gone = async {
        let mut bytes = Vec::new();
        silent.read_to_end(&mut bytes).await
    };
    // The gateway itself would wait longer than this.
    timeout(Duration::from_secs(10), gone).await.expect("it is left").unwrap();
    backend.serve().await;
    assert_eq!(client.until("complete").await.error(), "");
    backend.fixture.until_empty().await;
}

/// A machine fails when Redis knows that the run is over and its client does not: the client never received an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_does_not_report_an_end_is_given_up() {
    let short = "leases: {task_seconds: 4, backend_seconds: 0.3, leader_seconds: 6}\n";
    let Some(backend) = ManualBackend::new(short).await else { return };
    let mut client = backend.gateway.start("{}", "").await;
    let first = backend.claim().await;
    let mut silent = backend.accept().await;
    backend.finish(&first, "done");
    backend.until_left(&mut silent).await;
    backend.expect_rerun(&first, &mut client).await;
}

/// A machine fails together with a Redis that loses its data: the run is not reported again, and its connection does
/// not end. The gateway waited for the backend forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_fails_with_redis_is_given_up() {
    let Some(backend) = ManualBackend::new(LONG).await else { return };
    let mut client = backend.gateway.start("{}", "").await;
    let first = backend.claim().await;
    let mut silent = backend.accept().await;
    backend.fixture.redis().talk(&["FLUSHALL"]);
    backend.until_left(&mut silent).await;
    backend.heartbeat(None);
    backend.expect_rerun(&first, &mut client).await;
}

/// The same for a backend that reported its run, so that Redis knows the run but not its address, and failed after
/// its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_reported_its_run_and_then_fails_is_given_up() {
    let short = "leases: {task_seconds: 4, backend_seconds: 1, leader_seconds: 6}\n";
    let Some(backend) = ManualBackend::new(short).await else { return };
    let mut client = backend.gateway.start("{}", "").await;
    let first = backend.claim().await;
    let mut silent = backend.accept().await;
    backend.fixture.redis().talk(&["FLUSHALL"]);
    backend.heartbeat(Some(&first));
    backend.settled().await;
    backend.finish(&first, "done");
    backend.until_left(&mut silent).await;
    backend.expect_rerun(&first, &mut client).await;
}

/// A scheduler considered a run lost that ended successfully just then: its client received the error that it was
/// killed. And a command for an earlier run reached the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_about_another_run_are_ignored() {
    let Some(backend) = ManualBackend::new(LONG).await else { return };
    let mut client = backend.gateway.start("{}", "").await;
    let claimed = backend.claim().await;
    let mut socket = backend.accept().await;
    let redis = backend.fixture.redis();
    let lock = redis.talk(&["GET", "scheduler.leader"]);
    let lead = lock.split(' ').next().unwrap();
    let give_up = |attempt: &str| {
        backend.fixture.function(&["end_task", lead, &claimed.id, "lost", "late error", attempt])
    };
    assert_eq!(give_up("1-1"), "0");
    let gateway = redis.talk(&["HGET", &format!("task:{}", claimed.id), "gateway"]);
    let channel = format!("gateway:{gateway}");
    for (attempt, limit) in [("1-1", "1"), (claimed.attempt.as_str(), "5000000")] {
        let text = format!("control {} {attempt} limit {limit}", claimed.id);
        assert_eq!(redis.talk(&["PUBLISH", &channel, &text]), "1");
    }
    let command = timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(command.into_text().unwrap(), "limit 5000000");
    backend.finish(&claimed, "done");
    assert_eq!(give_up(&claimed.attempt), "0");
    socket.send(Message::text("complete {}")).await.unwrap();
    assert_eq!(client.until("complete").await.error(), "");
    drop(socket);
    backend.fixture.until_empty().await;
}

/// A client lowers the duration, and the scheduler that read it fails before it acted on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lowered_duration_survives_the_scheduler_that_read_it() {
    let Some(mut backend) = ManualBackend::new(LONG).await else { return };
    let mut client = backend.gateway.start(r#"{"duration": 50}"#, "").await;
    let claimed = backend.claim().await;
    let mut socket = backend.accept().await;
    backend.scheduler.take().unwrap().stop().await;
    assert_eq!(backend.fixture.function(&["lower_duration", &claimed.id, "5000000"]), "done");
    backend.fixture.redis().talk(&["DEL", "queue.incoming"]);
    backend.scheduler = Some(backend.fixture.scheduler("two"));
    let command = timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(command.into_text().unwrap(), "limit 5000000");
    backend.finish(&claimed, "done");
    socket.send(Message::text("complete {}")).await.unwrap();
    assert_eq!(client.until("complete").await.error(), "");
    drop(socket);
    backend.fixture.until_empty().await;
}

/// A program does not read its standard input while it writes: its gateway waited until it would read and forwarded
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_of_a_program_that_does_not_read_is_forwarded() {
    let more = format!("{LONG}limits: {{input_bytes_max: 100000000}}\n");
    let Some(backend) = ManualBackend::new(&more).await else { return };
    let mut client = backend.gateway.session().await;
    let claimed = backend.claim().await;
    let mut socket = backend.accept().await;
    socket.send(Message::text(r#"output {"stream": "stdout"}"#)).await.unwrap();
    socket.send(Message::binary("up")).await.unwrap();
    client.until_output("up").await;
    // More than the connection to the backend buffers.
    let piece = "x".repeat(64 << 10);
    for _ in 0..256 {
        client.stdin(&piece).await;
    }
    backend.finish(&claimed, "done");
    socket.send(Message::text("complete {}")).await.unwrap();
    assert_eq!(client.until("complete").await.error(), "");
    drop(socket);
    backend.fixture.until_empty().await;
}

/// Forwards everything between a backend and Redis, and closes the first connection on which this text comes as a
/// reply. Reports the tokens with which the backend claims tasks, and when the connection was closed.
async fn proxy(
    listener: TcpListener,
    port: u16,
    text: &'static str,
    event_sender: mpsc::UnboundedSender<ProxyEvent>,
) {
    let cut = Arc::new(AtomicBool::new(false));
    while let Ok((near, _)) = listener.accept().await {
        let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let ((mut from_backend, mut to_backend), (mut from_redis, mut to_redis)) =
            (near.into_split(), far.into_split());
        let claims = event_sender.clone();
        let asking = tokio::spawn(async move {
            let mut bytes = vec![0; 1 << 20];
            while let Ok(count @ 1..) = from_backend.read(&mut bytes).await {
                let reply = String::from_utf8_lossy(&bytes[..count]);
                if let Some((_, token)) = reply.rsplit_once("/pool/backend/") {
                    let _ = claims.send(ProxyEvent::Claim(token.trim_end().to_owned()));
                }
                to_redis.write_all(&bytes[..count]).await.unwrap();
            }
        });
        let (cut, event_sender) = (cut.clone(), event_sender.clone());
        tokio::spawn(async move {
            let mut bytes = vec![0; 1 << 20];
            while let Ok(count @ 1..) = from_redis.read(&mut bytes).await {
                let wanted = String::from_utf8_lossy(&bytes[..count]).contains(text);
                if wanted && !cut.swap(true, Ordering::AcqRel) {
                    let _ = event_sender.send(ProxyEvent::Cut);
                    break;
                }
                if to_backend.write_all(&bytes[..count]).await.is_err() {
                    break;
                }
            }
            asking.abort();
        });
    }
}

#[derive(Debug, PartialEq)]
enum ProxyEvent {
    Claim(String),
    Cut,
}

/// A backend that did not receive the reply to a claim claimed another task with the same token: the gateway of one
/// task could connect to the program of the other, and its client saw the output.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_not_used_for_two_tasks() {
    let Some(fixture) = RedisFixture::new(1, "") else { return };
    let _scheduler = fixture.scheduler("one");
    fixture.until(|status| status["leader"]["name"].is_string()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (event_sender, mut events) = mpsc::unbounded_channel();
    tokio::spawn(proxy(listener, fixture.redis().port(), "reply is lost", event_sender));
    let options = BackendHostOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        identity: None,
        grace: Duration::ZERO,
    };
    let (site, stub) =
        (PoolAddress::parse(&url, "backend").unwrap(), StubRunner { takes: Duration::ZERO });
    let host =
        BackendHost::open(fixture.config.clone(), &site, Arc::new(stub), options).await.unwrap();
    let host = tokio::spawn(host.run(std::future::pending()));
    submit(&fixture, &["sh", "{}", "", "a.sh", "reply is lost"]);
    let mut lost = None;
    while let Some(ProxyEvent::Claim(token)) = events.recv().await {
        lost = Some(token);
    }
    let Some(ProxyEvent::Claim(next)) = events.recv().await else { panic!("it claims no more") };
    assert_eq!(next.len(), 32, "{next}");
    assert_ne!(Some(next), lost);
    host.abort();
}

//! Words that never arrive: lost answers of Redis, backends that say nothing, and those that do not listen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use taskyard_pool::backend::Stub;
use taskyard_pool::redis::{Bay, BayOptions, Site};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, accept_async};

use super::edges::bring;
use super::yard::{Gateway, Part, Yard};

/// A pool in which the test is the backend.
struct Stage {
    yard: Yard,
    _scheduler: Part,
    gateway: Gateway,
    number: String,
    listener: TcpListener,
}

/// A task that the test has claimed.
struct Claimed {
    id: String,
    attempt: String,
}

impl Stage {
    async fn new(more: &str) -> Option<Self> {
        let yard = Yard::new(1, more)?;
        let (scheduler, gateway) = (yard.scheduler("one"), yard.gateway().await);
        yard.until(|status| status["leader"]["name"].is_string()).await;
        let said = yard.function(&["beat", "", "600000", "{}", ""]);
        let number = said.lines().next().unwrap().to_owned();
        yard.until(|status| status["backends"] == 1 && status["paused"] == false).await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(16).unwrap();
        Some(Stage { yard, _scheduler: scheduler, gateway, number, listener })
    }

    /// Claims the next task.
    async fn claim(&self) -> Claimed {
        let address = format!("ws://{}/x", self.listener.local_addr().unwrap());
        loop {
            let said = self.yard.function(&["claim", &self.number, &address]);
            let mut lines = said.lines().map(str::to_owned);
            if said.lines().count() > 5
                && let (Some(id), Some(attempt)) = (lines.next(), lines.next())
            {
                return Claimed { id, attempt };
            }
            tokio::task::yield_now().await;
        }
    }

    /// The gateway that comes for it.
    async fn meet(&self) -> WebSocketStream<TcpStream> {
        accept_async(self.listener.accept().await.unwrap().0).await.unwrap()
    }

    fn finish(&self, claimed: &Claimed, how: &str) {
        let said = self.yard.function(&["finish", &claimed.id, &claimed.attempt, how, "1", "-"]);
        assert_eq!(said.lines().next(), Some("1"));
    }

    /// Claims the next task and ends it well.
    async fn serve(&self) -> Claimed {
        let claimed = self.claim().await;
        let mut socket = self.meet().await;
        self.finish(&claimed, "done");
        socket.send(Message::text("complete {}")).await.unwrap();
        while socket.next().await.is_some_and(|said| said.is_ok()) {}
        claimed
    }
}

const LONG: &str = "leases: {task_seconds: 60, backend_seconds: 3, leader_seconds: 6}\n";

fn numbers(attempt: &str) -> (u64, u64) {
    let (lead, number) = attempt.split_once('-').unwrap();
    (lead.parse().unwrap(), number.parse().unwrap())
}

/// A scheduler whose connection was cut reads everything anew and counts runs from one. It did so under the number that it had, and
/// runs got the names of earlier ones: a gateway that had followed a later one took the next for an old word, and its client
/// was told nothing for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_that_begins_anew_gives_runs_new_names() {
    let Some(stage) = Stage::new(LONG).await else { return };
    for _ in 0..3 {
        let mut client = stage.gateway.start("{}", "").await;
        stage.serve().await;
        assert_eq!(client.until("complete").await.error(), "");
    }
    let mut client = stage.gateway.start("{}", "").await;
    let first = stage.claim().await;
    let _followed = stage.meet().await;
    // Its next call waits in Redis, and its connection ends before the answer.
    let redis = stage.yard.redis();
    redis.talk(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let blocked = loop {
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
    stage.finish(&first, "lost");
    let second = stage.serve().await;
    assert_eq!(second.id, first.id);
    assert!(numbers(&second.attempt) > numbers(&first.attempt), "{}", second.attempt);
    assert_eq!(client.until("complete").await.error(), "");
    stage.yard.until_empty().await;
}

/// A backend that accepts a connection and says nothing: what the task was told meanwhile it heard a quarter of a minute later, when
/// the next backend had given it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_does_not_answer_is_left_for_another() {
    let Some(stage) = Stage::new(LONG).await else { return };
    let mut client = stage.gateway.start("{}", "").await;
    let first = stage.claim().await;
    let (mut silent, _) = stage.listener.accept().await.unwrap();
    stage.finish(&first, "lost");
    let gone = async {
        let mut bytes = Vec::new();
        silent.read_to_end(&mut bytes).await
    };
    // The gateway itself would try for longer than this.
    timeout(Duration::from_secs(10), gone).await.expect("it is left").unwrap();
    stage.serve().await;
    assert_eq!(client.until("complete").await.error(), "");
    stage.yard.until_empty().await;
}

/// A machine that is gone when Redis knows that the run is over, and its client does not: nobody ever told that one anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_is_silent_about_an_end_is_not_waited_for() {
    let short = "leases: {task_seconds: 1, backend_seconds: 0.3, leader_seconds: 6}\n";
    let Some(stage) = Stage::new(short).await else { return };
    let mut client = stage.gateway.start("{}", "").await;
    let first = stage.claim().await;
    let mut silent = stage.meet().await;
    stage.finish(&first, "done");
    while silent.next().await.is_some_and(|said| said.is_ok()) {}
    let second = stage.serve().await;
    assert_eq!(second.id, first.id);
    assert_eq!(client.until("complete").await.error(), "");
    stage.yard.until_empty().await;
}

/// A program that does not read its standard input while it writes: its gateway waited until it would read, and passed nothing on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_does_not_listen_is_heard() {
    let more = format!("{LONG}limits: {{input_bytes_max: 100000000}}\n");
    let Some(stage) = Stage::new(&more).await else { return };
    let mut client = stage.gateway.session().await;
    let claimed = stage.claim().await;
    let mut socket = stage.meet().await;
    socket.send(Message::text(r#"output {"stream": "stdout"}"#)).await.unwrap();
    socket.send(Message::binary("up")).await.unwrap();
    client.until_output("up").await;
    // More than the connection to the backend holds.
    let piece = "x".repeat(64 << 10);
    for _ in 0..256 {
        client.stdin(&piece).await;
    }
    stage.finish(&claimed, "done");
    socket.send(Message::text("complete {}")).await.unwrap();
    assert_eq!(client.until("complete").await.error(), "");
    drop(socket);
    stage.yard.until_empty().await;
}

/// Carries everything between a backend and Redis, and ends the first connection on which this text comes as an answer. Tells
/// with which tokens the backend claims, and when that was.
async fn carry(
    listener: TcpListener,
    port: u16,
    text: &'static str,
    told: mpsc::UnboundedSender<Carried>,
) {
    let cut = Arc::new(AtomicBool::new(false));
    while let Ok((near, _)) = listener.accept().await {
        let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let ((mut asks, mut hears), (mut answers, mut listens)) =
            (near.into_split(), far.into_split());
        let claims = told.clone();
        let asking = tokio::spawn(async move {
            let mut bytes = vec![0; 1 << 20];
            while let Ok(count @ 1..) = asks.read(&mut bytes).await {
                let said = String::from_utf8_lossy(&bytes[..count]);
                if let Some((_, token)) = said.rsplit_once("/pool/backend/") {
                    let _ = claims.send(Carried::Claim(token.trim_end().to_owned()));
                }
                listens.write_all(&bytes[..count]).await.unwrap();
            }
        });
        let (cut, told) = (cut.clone(), told.clone());
        tokio::spawn(async move {
            let mut bytes = vec![0; 1 << 20];
            while let Ok(count @ 1..) = answers.read(&mut bytes).await {
                let wanted = String::from_utf8_lossy(&bytes[..count]).contains(text);
                if wanted && !cut.swap(true, Ordering::AcqRel) {
                    let _ = told.send(Carried::Cut);
                    break;
                }
                if hears.write_all(&bytes[..count]).await.is_err() {
                    break;
                }
            }
            asking.abort();
        });
    }
}

#[derive(Debug, PartialEq)]
enum Carried {
    Claim(String),
    Cut,
}

/// A backend that never hears that it has claimed a task claims another. It gave both the same token: the gateway of the one could come
/// to the program of the other, and its client saw what that wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_not_given_to_two_tasks() {
    let Some(yard) = Yard::new(1, "") else { return };
    let _scheduler = yard.scheduler("one");
    yard.until(|status| status["leader"]["name"].is_string()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (told, mut carried) = mpsc::unbounded_channel();
    tokio::spawn(carry(listener, yard.redis().port(), "never heard", told));
    let options = BayOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        identity: None,
        grace: Duration::ZERO,
    };
    let (site, stub) = (Site::parse(&url, "backend").unwrap(), Stub { takes: Duration::ZERO });
    let bay = Bay::open(yard.config.clone(), &site, Arc::new(stub), options).await.unwrap();
    let bay = tokio::spawn(bay.run(std::future::pending()));
    bring(&yard, &["sh", "{}", "", "a.sh", "never heard"]);
    let mut lost = None;
    while let Some(Carried::Claim(token)) = carried.recv().await {
        lost = Some(token);
    }
    let Some(Carried::Claim(next)) = carried.recv().await else { panic!("it claims no more") };
    assert_eq!(next.len(), 32, "{next}");
    assert_ne!(Some(next), lost);
    bay.abort();
}

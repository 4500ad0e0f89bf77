//! Words that never arrive: lost answers of Redis, backends that say nothing, and those that do not listen.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
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
use crate::rig::Client;

/// A pool in which the test is the backend.
struct Stage {
    yard: Yard,
    scheduler: Option<Part>,
    gateway: Gateway,
    number: Mutex<String>,
    listener: TcpListener,
}

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

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
        let number = Mutex::new(String::new());
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(16).unwrap();
        let scheduler = Some(scheduler);
        let stage = Stage { yard, scheduler, gateway, number, listener };
        stage.beat(None);
        stage.settled().await;
        Some(stage)
    }

    /// Says that the backend lives, and what it runs.
    fn beat(&self, runs: Option<&Claimed>) {
        let known = if runs.is_some() { "another" } else { "" };
        let mut call = vec!["beat", "", "600000", "{}", known];
        if let Some(Claimed { id, attempt }) = runs {
            call.extend([id, attempt, "0", "default", "60000000", "1", "1", "60000000"]);
        }
        let said = self.yard.function(&call);
        *self.number.lock().unwrap() = said.lines().next().unwrap().to_owned();
    }

    async fn settled(&self) {
        let settled = |status: &Value| status["backends"] == 1 && status["paused"] == false;
        self.yard.until(settled).await;
    }

    /// Claims the next task.
    async fn claim(&self) -> Claimed {
        let address = format!("ws://{}/x", self.listener.local_addr().unwrap());
        let number = self.number.lock().unwrap().clone();
        let given_up = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < given_up, "nothing is offered");
            let said = self.yard.function(&["claim", &number, &address]);
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
        let comes = timeout(PATIENCE, self.listener.accept()).await.expect("a gateway comes");
        accept_async(comes.unwrap().0).await.unwrap()
    }

    /// Ready when the gateway has left.
    async fn until_left(&self, socket: &mut WebSocketStream<TcpStream>) {
        let gone = async { while socket.next().await.is_some_and(|said| said.is_ok()) {} };
        timeout(PATIENCE, gone).await.expect("it leaves");
    }

    fn finish(&self, claimed: &Claimed, how: &str) {
        let said = self.yard.function(&["finish", &claimed.id, &claimed.attempt, how, "1", "-"]);
        assert_eq!(said.lines().next(), Some("1"));
    }

    /// The task runs once more, and its client hears the end of that.
    async fn runs_again(&self, first: &Claimed, client: &mut Client) {
        let second = self.serve().await;
        assert_eq!(second.id, first.id);
        assert_eq!(client.until("complete").await.error(), "");
        self.yard.until_empty().await;
    }

    /// Claims the next task and ends it well.
    async fn serve(&self) -> Claimed {
        let claimed = self.claim().await;
        let mut socket = self.meet().await;
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
    let short = "leases: {task_seconds: 4, backend_seconds: 0.3, leader_seconds: 6}\n";
    let Some(stage) = Stage::new(short).await else { return };
    let mut client = stage.gateway.start("{}", "").await;
    let first = stage.claim().await;
    let mut silent = stage.meet().await;
    stage.finish(&first, "done");
    stage.until_left(&mut silent).await;
    stage.runs_again(&first, &mut client).await;
}

/// A machine that is gone together with a Redis that lost everything: nobody brings the run back, and its connection does not end.
/// The gateway waited for a backend that might come back, for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_goes_dark_with_redis_is_not_waited_for() {
    let Some(stage) = Stage::new(LONG).await else { return };
    let mut client = stage.gateway.start("{}", "").await;
    let first = stage.claim().await;
    let mut silent = stage.meet().await;
    stage.yard.redis().talk(&["FLUSHALL"]);
    stage.until_left(&mut silent).await;
    stage.beat(None);
    stage.runs_again(&first, &mut client).await;
}

/// The same for one that came back, so that Redis knows the run but not where it is, and was gone after its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_came_back_and_is_silent_about_an_end_is_not_waited_for() {
    let short = "leases: {task_seconds: 4, backend_seconds: 1, leader_seconds: 6}\n";
    let Some(stage) = Stage::new(short).await else { return };
    let mut client = stage.gateway.start("{}", "").await;
    let first = stage.claim().await;
    let mut silent = stage.meet().await;
    stage.yard.redis().talk(&["FLUSHALL"]);
    stage.beat(Some(&first));
    stage.settled().await;
    stage.finish(&first, "done");
    stage.until_left(&mut silent).await;
    stage.runs_again(&first, &mut client).await;
}

/// A scheduler takes a run for lost that ends just then, well: its client was told that it was killed. And what an earlier run was
/// told reached the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_about_another_run_change_nothing() {
    let Some(stage) = Stage::new(LONG).await else { return };
    let mut client = stage.gateway.start("{}", "").await;
    let claimed = stage.claim().await;
    let mut socket = stage.meet().await;
    let redis = stage.yard.redis();
    let lock = redis.talk(&["GET", "scheduler.leader"]);
    let lead = lock.split(' ').next().unwrap();
    let give_up = |attempt: &str| {
        stage.yard.function(&["give_up", lead, &claimed.id, "lost", "late words", attempt])
    };
    assert_eq!(give_up("1-1"), "0");
    let gateway = redis.talk(&["HGET", &format!("task:{}", claimed.id), "gateway"]);
    let channel = format!("gateway:{gateway}");
    for (attempt, limit) in [("1-1", "1"), (claimed.attempt.as_str(), "5000000")] {
        let text = format!("control {} {attempt} limit {limit}", claimed.id);
        assert_eq!(redis.talk(&["PUBLISH", &channel, &text]), "1");
    }
    let told = timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(told.into_text().unwrap(), "limit 5000000");
    stage.finish(&claimed, "done");
    assert_eq!(give_up(&claimed.attempt), "0");
    socket.send(Message::text("complete {}")).await.unwrap();
    assert_eq!(client.until("complete").await.error(), "");
    drop(socket);
    stage.yard.until_empty().await;
}

/// A client wants less time, and the scheduler that heard it is gone before it did anything about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wish_outlives_the_scheduler_that_heard_it() {
    let Some(mut stage) = Stage::new(LONG).await else { return };
    let mut client = stage.gateway.start(r#"{"duration": 50}"#, "").await;
    let claimed = stage.claim().await;
    let mut socket = stage.meet().await;
    stage.scheduler.take().unwrap().stop().await;
    assert_eq!(stage.yard.function(&["wish", &claimed.id, "5000000"]), "done");
    stage.yard.redis().talk(&["DEL", "queue.incoming"]);
    stage.scheduler = Some(stage.yard.scheduler("two"));
    let told = timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(told.into_text().unwrap(), "limit 5000000");
    stage.finish(&claimed, "done");
    socket.send(Message::text("complete {}")).await.unwrap();
    assert_eq!(client.until("complete").await.error(), "");
    drop(socket);
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

//! Sessions: the tasks of a client return when it leaves, unless it comes back in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use taskyard_core::{Body, Command, Error, Timestamp};
use taskyard_store::{BodyKey, Capabilities, Executed, MemoryStore, Pending, Store};
use tokio::task::yield_now;

use crate::fixture::TestServer;

#[tokio::test]
async fn tasks_return_when_their_client_leaves() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let mut leaving = server.connect().await;
    for task in 0..3 {
        client.done("queue.tube.mail:put", json!([task])).await;
    }
    leaving.done("queue.tube.mail:take", json!([0])).await;
    leaving.done("queue.tube.mail:take", json!([0])).await;
    server.ready("mail", 1).await;
    client.refused("queue.tube.mail:ack", json!([0]), 32, "Task was not taken").await;
    drop(leaving);
    server.ready("mail", 3).await;
    assert_eq!(client.done("queue.tube.mail:take", json!([0])).await, json!([[0, "t", 0]]));
}

#[tokio::test]
async fn a_session_that_is_joined_in_time_finishes_its_task() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    client.done("queue.cfg", json!([{ "ttr": 10.0 }])).await;
    client.done("queue.tube.mail:put", json!([1])).await;
    let mut first = server.connect().await;
    first.done("queue.tube.mail:take", json!([0])).await;
    let session = first.identity().await;
    assert_eq!(first.identity().await, session);
    drop(first);
    server.connections(1).await;
    server.advance(9);
    let mut second = server.connect().await;
    second.identify(&session).await.unwrap();
    server.advance(60);
    assert_eq!(second.done("queue.tube.mail:ack", json!([0])).await, json!([[0, "-", 1]]));
    assert_eq!(second.identity().await, session);
}

#[tokio::test]
async fn a_session_that_is_joined_too_late_is_unknown() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    client.done("queue.cfg", json!([{ "ttr": 10 }])).await;
    client.done("queue.tube.mail:put", json!([1])).await;
    let mut first = server.connect().await;
    first.done("queue.tube.mail:take", json!([0])).await;
    let session = first.identity().await;
    drop(first);
    server.connections(1).await;
    server.advance(11);
    let mut second = server.connect().await;
    let fault = second.identify(&session).await.unwrap_err();
    assert!(fault.code == 32 && fault.text.contains("is unknown."), "{fault:?}");
    let fault = second.identify(b"short").await.unwrap_err();
    assert_eq!((fault.code, &*fault.text), (32, "Invalid UUID format."));
    server.ready("mail", 1).await;
    second.ping().await;
}

#[tokio::test]
async fn connections_that_share_a_session_share_its_tasks() {
    let server = TestServer::new().await;
    let mut one = server.with_tube("mail", "fifottl").await;
    let session = one.identity().await;
    let mut two = server.connect().await;
    two.identify(&session).await.unwrap();
    for task in 0..2 {
        one.done("queue.tube.mail:put", json!([task])).await;
        one.done("queue.tube.mail:take", json!([0])).await;
    }
    two.done("queue.tube.mail:release", json!([0])).await;
    drop(one);
    // The other connection is still open.
    two.done("queue.tube.mail:touch", json!([1, 5])).await;
    two.done("queue.tube.mail:ack", json!([1])).await;
}

#[tokio::test]
async fn switching_sessions_leaves_the_old_one() {
    let server = TestServer::new().await;
    let mut one = server.with_tube("mail", "fifo").await;
    one.done("queue.tube.mail:put", json!([1])).await;
    let mut two = server.connect().await;
    two.done("queue.tube.mail:take", json!([0])).await;
    server.ready("mail", 0).await;
    let session = one.identity().await;
    two.identify(&[7; 16]).await.unwrap_err();
    // The refusal has changed nothing.
    server.ready("mail", 0).await;
    two.identify(&session).await.unwrap();
    server.ready("mail", 1).await;
    two.refused("queue.tube.mail:ack", json!([0]), 32, "Task was not taken").await;
    one.done("queue.tube.mail:take", json!([0])).await;
    two.done("queue.tube.mail:ack", json!([0])).await;
}

// A request after an identify in the same write belongs to the new session already.
#[tokio::test]
async fn requests_after_an_identify_wait_for_it() {
    let server = TestServer::new().await;
    let mut one = server.with_tube("mail", "fifo").await;
    one.done("queue.tube.mail:put", json!([1])).await;
    one.done("queue.tube.mail:take", json!([0])).await;
    let session = one.identity().await;
    let mut two = server.connect().await;
    let mut args = vec![0x91, 0xb0];
    args.extend(session);
    let name = "queue.identify";
    let shape = taskyard_iproto::Shape::Call;
    let identify = taskyard_iproto::Operation::Call { name, args: &args, shape };
    let (_, mut bytes) = two.request(&identify);
    let (ack, more) = two.call_bytes("queue.tube.mail:ack", &json!([0]), shape);
    bytes.extend(more);
    two.send(&bytes).await;
    assert!(two.next_bytes().await.unwrap().ends_with(&session));
    assert_eq!(two.answer_to(ack).await.unwrap(), json!([[0, "-", 1]]));
}

#[tokio::test]
async fn ttr_is_the_time_of_a_delivery() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    client.done("queue.tube.mail:put", json!([1, { "ttr": 5 }])).await;
    client.done("queue.tube.mail:take", json!([0])).await;
    server.advance(6);
    client.refused("queue.tube.mail:ack", json!([0]), 32, "Task was not taken").await;
    server.ready("mail", 1).await;
}

// A waiting take stayed in the session that its connection left: it was answered that the session
// is unknown or, if sessions outlive their connections, with a task that could not be finished.
#[tokio::test]
async fn waiting_takes_move_to_the_new_session() {
    for ttr in [0, 3_600] {
        let server = TestServer::new().await;
        let mut one = server.with_tube("mail", "fifottl").await;
        one.done("queue.cfg", json!([{ "ttr": ttr }])).await;
        let session = one.identity().await;
        let mut two = server.connect().await;
        let first = two.post("queue.tube.mail:take", json!([])).await;
        let second = two.post("queue.tube.mail:take_many", json!([5, 60])).await;
        server.consumers("mail", 2).await;
        two.identify(&[7; 16]).await.unwrap_err();
        two.identify(&session).await.unwrap();
        server.consumers("mail", 2).await;
        one.done("queue.tube.mail:put", json!(["a"])).await;
        assert_eq!(two.answer_to(first).await.unwrap(), json!([[0, "t", "a"]]), "in their order");
        one.done("queue.tube.mail:put", json!(["b"])).await;
        assert_eq!(two.answer_to(second).await.unwrap(), json!([[[1, "t", "b"]]]));
        two.done("queue.tube.mail:ack", json!([0])).await;
        one.done("queue.tube.mail:ack", json!([1])).await;
        let last = two.post("queue.tube.mail:take", json!([60])).await;
        server.consumers("mail", 1).await;
        server.advance(61);
        assert_eq!(two.answer_to(last).await.unwrap(), json!([]));
    }
}

// An identify that was refused because of too many pending requests counted as done: every take
// after it was answered that the session is unknown.
#[tokio::test]
async fn a_refused_identify_can_be_repeated() {
    let server = TestServer::with(|config| config.in_flight_max = 1).await;
    let mut client = server.connect().await;
    client.done("queue.create_tube", json!(["mail", "limfifottl", { "capacity": 1 }])).await;
    client.done("queue.tube.mail:put", json!([1])).await;
    let waiting = client.post("queue.tube.mail:put", json!([2, { "timeout": 60 }])).await;
    while server.engine.waiting().await.is_empty() {
        yield_now().await;
    }
    client.refused("queue.identify", json!([]), 32, "unanswered").await;
    server.connect().await.done("queue.tube.mail:delete", json!([0])).await;
    assert_eq!(client.answer_to(waiting).await.unwrap(), json!([[1, "r", 2]]));
    assert_eq!(client.done("queue.tube.mail:take", json!([0])).await, json!([[1, "t", 2]]));
    client.identity().await;
}

/// A memory store in which no session can be left while it is stuck.
struct Sticky {
    store: MemoryStore,
    stuck: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

impl Store for Sticky {
    fn execute(&self, now: Timestamp, mut commands: Vec<Command>) -> Pending<'_, Executed> {
        if !self.stuck.load(Ordering::Relaxed) {
            return self.store.execute(now, commands);
        }
        let leaves = |command: &Command| matches!(command, Command::LeaveSession { .. });
        let refused: Vec<_> = (0..commands.len()).filter(|at| leaves(&commands[*at])).collect();
        self.refused.fetch_add(refused.len(), Ordering::Relaxed);
        commands.retain(|command| !leaves(command));
        let others = self.store.execute(now, commands);
        Box::pin(async move {
            let mut executed = others.await;
            for at in refused {
                executed.replies.insert(at, Err(Error::Store("the disk is full".into())));
            }
            executed
        })
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.store.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.store.close()
    }
}

// A client that left while the disk was full kept its tasks until the server was restarted: leaving
// its session was tried only once.
#[tokio::test]
async fn leaving_a_session_is_retried() {
    let (stuck, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let store =
        Sticky { store: MemoryStore::default(), stuck: stuck.clone(), refused: refused.clone() };
    let server = TestServer::on(Box::new(store), |_| {}).await;
    let mut client = server.with_tube("mail", "fifo").await;
    client.done("queue.tube.mail:put_many", json!([[[1], [2], [3]]])).await;
    let (mut leaving, mut switching) = (server.connect().await, server.connect().await);
    leaving.done("queue.tube.mail:take_many", json!([2, 0])).await;
    switching.done("queue.tube.mail:take", json!([0])).await;
    let session = client.identity().await;
    stuck.store(true, Ordering::Relaxed);
    drop(leaving);
    // Switching to another session leaves one too.
    switching.identify(&session).await.unwrap();
    while refused.load(Ordering::Relaxed) < 4 {
        yield_now().await;
    }
    server.ready("mail", 0).await;
    stuck.store(false, Ordering::Relaxed);
    server.ready("mail", 3).await;
}

/// A memory store whose sessions cannot be joined while it is unreachable. All other commands
/// succeed, as if it were reachable in between.
struct Joinless {
    store: MemoryStore,
    away: Arc<AtomicBool>,
}

impl Store for Joinless {
    fn execute(&self, now: Timestamp, mut commands: Vec<Command>) -> Pending<'_, Executed> {
        let joins = |command: &Command| matches!(command, Command::JoinSession { .. });
        let refused: Vec<_> = match self.away.load(Ordering::Relaxed) {
            true => (0..commands.len()).filter(|at| joins(&commands[*at])).collect(),
            false => Vec::new(),
        };
        if !refused.is_empty() {
            commands.retain(|command| !joins(command));
            self.away.store(false, Ordering::Relaxed);
        }
        let others = self.store.execute(now, commands);
        Box::pin(async move {
            let mut executed = others.await;
            for at in refused {
                executed.replies.insert(at, Err(Error::StoreUnavailable("it is away".into())));
            }
            executed
        })
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.store.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.store.close()
    }
}

// A waiting take survived an outage of its store, but the join of its session that was sent before
// did not: the take was answered that the UUID is unknown.
#[tokio::test]
async fn a_take_survives_an_outage_in_which_its_session_could_not_be_joined() {
    for (take, args) in [("take", json!([0])), ("take", json!([60])), ("take_many", json!([1, 60]))]
    {
        let away = Arc::new(AtomicBool::new(false));
        let store = Joinless { store: MemoryStore::default(), away: away.clone() };
        let server = TestServer::on(Box::new(store), |config| {
            // The repeated take needs no second admission.
            config.iproto.as_mut().unwrap().in_flight_max = 1;
        })
        .await;
        let mut client = server.with_tube("mail", "fifo").await;
        let mut taker = server.connect().await;
        if args[0] == 0 {
            client.done("queue.tube.mail:put", json!([1])).await;
        }
        away.store(true, Ordering::Relaxed);
        let taking = taker.post(&format!("queue.tube.mail:{take}"), args.clone()).await;
        if args[0] != 0 {
            server.consumers("mail", 1).await;
            client.done("queue.tube.mail:put", json!([1])).await;
        }
        let taken = taker.answer_to(taking).await.unwrap();
        let task = json!([0, "t", 1]);
        assert_eq!(taken, if take == "take" { json!([task]) } else { json!([[task]]) });
        // Its session was joined once, so it ends with the connection.
        drop(taker);
        server.ready("mail", 1).await;
    }
}

// Several waiting takes found their session unknown: it was joined once for each of them and left
// once, and kept its tasks.
#[tokio::test]
async fn takes_of_an_unknown_session_join_it_once() {
    let away = Arc::new(AtomicBool::new(false));
    let store = Joinless { store: MemoryStore::default(), away: away.clone() };
    let server = TestServer::on(Box::new(store), |_| {}).await;
    let mut client = server.with_tube("mail", "fifo").await;
    let mut taker = server.connect().await;
    away.store(true, Ordering::Relaxed);
    let mut bytes = Vec::new();
    let mut takes = Vec::new();
    for _ in 0..5 {
        let shape = taskyard_iproto::Shape::Call;
        let (take, more) = taker.call_bytes("queue.tube.mail:take", &json!([60]), shape);
        takes.push(take);
        bytes.extend(more);
    }
    taker.send(&bytes).await;
    server.consumers("mail", 5).await;
    client.done("queue.tube.mail:put_many", json!([[[1], [2], [3], [4], [5]]])).await;
    for take in takes {
        assert_eq!(taker.answer_to(take).await.unwrap()[0][1], "t");
    }
    drop(taker);
    server.ready("mail", 5).await;
}

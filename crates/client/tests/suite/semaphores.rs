//! Semaphores with many concurrent clients, in memory and on disk; their events as a stream.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_core::Stream;
use taskyard::{Client, EventKind, TaskId};
use taskyard_conformance::semaphores::storm;
use taskyard_core::{Command, Error, Execute, Reply, Span, Timestamp};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_store::OpenOptions;
use taskyard_stores::open;
use tokio::task::JoinSet;

const CLIENTS: u64 = 16;
const SEMAPHORES: usize = 200;

/// A queue whose clock advances with each call.
struct AdvancingQueue(Engine, Arc<ManualClock>);

impl Execute for AdvancingQueue {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        self.1.advance(Span::from_micros(100_000));
        self.0.execute(commands).await
    }
}

/// Sixteen clients on two hundred semaphores: afterwards no grant is held twice or leaked, and no event is missing.
async fn storm_on(url: &str) {
    let store = open(url, &OpenOptions::default()).expect("the store opens");
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
    let engine = Engine::start(store, clock.clone(), Settings::default());
    storm::prepare(&engine, SEMAPHORES, storm::LEASE).await;
    let mut clients = JoinSet::new();
    for seed in storm::client_seeds(CLIENTS) {
        let stormy = AdvancingQueue(engine.clone(), clock.clone());
        clients.spawn(async move { storm::run_client(&stormy, seed, SEMAPHORES, 300).await });
    }
    let told = clients.join_all().await.into_iter().flatten().collect();
    clock.advance(Span::from_secs(3600));
    storm::check_invariants(&engine, SEMAPHORES, told).await;
    engine.stop().await.expect("the engine stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_clients_in_memory() {
    storm_on("memory:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_clients_on_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    storm_on(&format!("sqlite:{}", folder.path().display())).await;
}

/// The stream returns an event that arrives while it is polled, and a pending request is not lost when polling pauses.
#[tokio::test]
async fn events_are_a_stream() {
    let client = Client::open("memory:").await.expect("the store opens");
    let manager = client.semaphores();
    manager.update("yang", 1, 1).await.expect("the semaphore is created");
    let yang = manager.get_or_create("yang").await.expect("the semaphore exists");
    let mut stream = pin!(yang.events().into_stream());
    let nothing = poll_fn(|context| Poll::Ready(stream.as_mut().poll_next(context).is_pending()));
    assert!(nothing.await, "there is no event yet");
    yang.enqueue(TaskId(7), 1.0).await.expect("the task is enqueued");
    let event = poll_fn(|context| stream.as_mut().poll_next(context)).await;
    let event = event.expect("the stream never ends").expect("the request succeeds");
    assert_eq!((event.task, event.kind), (TaskId(7), EventKind::Acquired));
    yang.release(event.task, Some(event.grant)).await.expect("the grant is released");
    let again = client.semaphores().get_or_create("yang").await.expect("the semaphore exists");
    assert_eq!(again.info().await.expect("the request succeeds").acquired, 0);
    yang.enqueue(TaskId(8), 1.0).await.expect("the task is enqueued");
    let event = poll_fn(|context| stream.as_mut().poll_next(context)).await;
    assert_eq!(
        event.expect("the stream never ends").expect("the request succeeds").task,
        TaskId(8)
    );
}

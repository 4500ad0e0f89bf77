//! Several engines on one store: what one does, those who wait at another learn by a notice or, when
//! that is lost, by looking from time to time.

use std::sync::{Arc, Mutex};

use taskyard_core::{
    Body, Command, Error, Execute, Kind, NewTask, Reply, Span, Timestamp, TubeOptions,
};
use taskyard_engine::{Engine, HandClock, Settings};
use taskyard_store::{
    BodyKey, Capabilities, Elsewhere, Executed, MemoryStore, Pending, Store, Watcher,
};

use crate::rig::{put, take, taken, tube};

const POLL: Span = Span::from_secs(5);
const MINUTE: Span = Span::from_secs(60);

/// One of several doors to the same tasks.
struct Door {
    tasks: Arc<MemoryStore>,
    watcher: Arc<Mutex<Option<Watcher>>>,
}

impl Store for Door {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        self.tasks.execute(now, commands)
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.tasks.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { shared: true, ..self.tasks.capabilities() }
    }

    fn watch(&self, watcher: Watcher) {
        *self.watcher.lock().unwrap() = Some(watcher);
    }

    fn poll_every(&self) -> Option<Span> {
        Some(POLL)
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.tasks.close()
    }
}

/// Two engines on one store, and a way to tell the second one what happened.
struct Two {
    clock: Arc<HandClock>,
    first: Engine,
    second: Engine,
    watcher: Arc<Mutex<Option<Watcher>>>,
}

impl Two {
    async fn new() -> Self {
        let clock = Arc::new(HandClock::new(Timestamp::from_micros(1_000_000)));
        let tasks = Arc::new(MemoryStore::default());
        let start = || {
            let watcher = Arc::new(Mutex::new(None));
            let door = Door { tasks: tasks.clone(), watcher: watcher.clone() };
            (Engine::start(Box::new(door), clock.clone(), Settings::default()), watcher)
        };
        let ((first, _), (second, watcher)) = (start(), start());
        let options = TubeOptions::new(Kind::FifoTtl);
        let create = Command::CreateTube { tube: tube("mail"), options, if_not_exists: false };
        first.execute(vec![create]).await.remove(0).unwrap();
        // Answered by the loop, which by then has asked to be told.
        second.waiting().await;
        Two { clock, first, second, watcher }
    }

    fn tell(&self, what: Elsewhere) {
        let watcher = self.watcher.lock().unwrap().clone();
        watcher.expect("the engine wants to be told")(what);
    }

    /// A take that waits at the second engine.
    async fn waiting(&self) -> tokio::task::JoinHandle<Vec<Result<Reply, Error>>> {
        let before = self.second.waiting().await.len();
        let engine = self.second.clone();
        let waiting =
            tokio::spawn(async move { engine.execute(vec![take("mail", 1, MINUTE)]).await });
        while self.second.waiting().await.len() == before {
            tokio::task::yield_now().await;
        }
        waiting
    }

    async fn put(&self, payloads: &[u8]) {
        self.first.execute(vec![put("mail", payloads, Span::ZERO)]).await.remove(0).unwrap();
    }
}

#[tokio::test]
async fn a_notice_wakes_those_who_wait_elsewhere() {
    let two = Two::new().await;
    let (a, b) = (two.waiting().await, two.waiting().await);
    two.put(&[1, 2]).await;
    assert_eq!(two.second.waiting().await.len(), 2, "nobody told it yet");
    two.tell(Elsewhere::Tube(tube("mail")));
    assert_eq!(taken(a.await.unwrap().remove(0)).len(), 1);
    assert_eq!(taken(b.await.unwrap().remove(0)).len(), 1, "one notice is enough for both");
}

#[tokio::test]
async fn a_lost_notice_costs_no_more_than_the_time_between_two_looks() {
    let two = Two::new().await;
    let waiting = two.waiting().await;
    two.put(&[1]).await;
    two.clock.advance(POLL);
    assert_eq!(taken(waiting.await.unwrap().remove(0)).len(), 1);
}

#[tokio::test]
async fn what_another_engine_delayed_becomes_ready_here() {
    let two = Two::new().await;
    let task = NewTask { delay: Some(Span::from_secs(1)), ..NewTask::new(Body::new(&[0x01])) };
    let put = Command::Put { tube: tube("mail"), tasks: vec![task], wait: Span::ZERO };
    two.first.execute(vec![put]).await.remove(0).unwrap();
    two.first.stop().await.unwrap();
    let waiting = two.waiting().await;
    two.clock.advance(POLL);
    assert_eq!(taken(waiting.await.unwrap().remove(0)).len(), 1);
}

#[tokio::test]
async fn notices_of_unknown_tubes_are_harmless() {
    let two = Two::new().await;
    two.tell(Elsewhere::Tube(tube("nobody")));
    two.tell(Elsewhere::Anything);
    assert!(two.second.waiting().await.is_empty());
}

//! Several engines on one store: what one does, those who wait at another learn by a notice or, when
//! that is lost, by looking from time to time.

use std::future::ready;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use taskyard_core::{
    Body, Command, Effects, Error, Execute, Kind, NewTask, Reply, SemaphoreCommand, SemaphoreKey,
    SemaphoreReply, Span, TaskId, Timestamp, TubeOptions, Wish,
};
use taskyard_engine::{Engine, HandClock, Settings};
use taskyard_store::{
    BodyKey, Capabilities, Executed, MemoryStore, Pending, RemoteChange, Store, Watcher,
};

use crate::rig::{put, take, taken, tube};

const POLL: Span = Span::from_secs(5);
const MINUTE: Span = Span::from_secs(60);

/// One of several doors to the same tasks.
struct Door {
    tasks: Arc<MemoryStore>,
    watcher: Arc<Mutex<Option<Watcher>>>,
    /// Whether nothing can be reached by it.
    shut: Arc<AtomicBool>,
    /// How often somebody asked for events.
    fetches: Arc<AtomicUsize>,
}

impl Store for Door {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        if self.shut.load(Ordering::SeqCst) {
            let away = Err(Error::StoreAway("away".into()));
            let (replies, effects) = (vec![away; commands.len()], Effects::default());
            return Box::pin(ready(Executed { replies, effects, unloaded: Vec::new() }));
        }
        let fetches = |command: &&Command| {
            matches!(command, Command::Semaphore(SemaphoreCommand::Events { .. }))
        };
        self.fetches.fetch_add(commands.iter().filter(fetches).count(), Ordering::SeqCst);
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
    /// Of the second.
    shut: Arc<AtomicBool>,
    fetches: Arc<AtomicUsize>,
}

impl Two {
    async fn new() -> Self {
        let clock = Arc::new(HandClock::new(Timestamp::from_micros(1_000_000)));
        let tasks = Arc::new(MemoryStore::default());
        let start = || {
            let (watcher, shut) = (Arc::new(Mutex::new(None)), Arc::default());
            let fetches = Arc::new(AtomicUsize::default());
            let door = Door {
                tasks: tasks.clone(),
                watcher: watcher.clone(),
                shut: Arc::clone(&shut),
                fetches: fetches.clone(),
            };
            let engine = Engine::start(Box::new(door), clock.clone(), Settings::default());
            (engine, watcher, shut, fetches)
        };
        let ((first, ..), (second, watcher, shut, fetches)) = (start(), start());
        let options = TubeOptions::new(Kind::FifoTtl);
        let create = Command::CreateTube { tube: tube("mail"), options, if_not_exists: false };
        first.execute(vec![create]).await.remove(0).unwrap();
        // Answered by the loop, which by then has asked to be told.
        second.waiting().await;
        Two { clock, first, second, watcher, shut, fetches }
    }

    fn tell(&self, what: RemoteChange) {
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
    two.tell(RemoteChange::Tube(tube("mail")));
    assert_eq!(taken(a.await.unwrap().remove(0)).len(), 1);
    assert_eq!(taken(b.await.unwrap().remove(0)).len(), 1, "one notice is enough for both");
}

// Notices were of tubes alone: who waited for events at another server looked once a second.
#[tokio::test]
async fn a_notice_of_events_wakes_those_who_listen_elsewhere() {
    let two = Two::new().await;
    let key = SemaphoreKey::new("yang").unwrap();
    let configure =
        SemaphoreCommand::Configure { key: key.clone(), change: Box::default(), only_new: false };
    let wishes = vec![Wish { task: TaskId(1), priority: 1.0 }];
    let enqueue = SemaphoreCommand::Enqueue { key, wishes };
    let events = SemaphoreCommand::Events { key: None, count: 1, wait: MINUTE };
    let engine = two.second.clone();
    let waiting =
        tokio::spawn(async move { engine.execute(vec![Command::Semaphore(events)]).await });
    for command in [configure, enqueue] {
        two.first.execute(vec![Command::Semaphore(command)]).await.remove(0).unwrap();
    }
    // Told until it listens.
    while !waiting.is_finished() {
        two.tell(RemoteChange::Events);
        two.second.waiting().await;
    }
    let heard = waiting.await.unwrap().remove(0);
    assert!(
        matches!(&heard, Ok(Reply::Semaphore(SemaphoreReply::Events(events))) if events.len() == 1),
        "{heard:?}"
    );
}

// Each event made everybody who waited for events ask the store, and so did each look: with many listeners most of what
// a batch did was in vain.
#[tokio::test]
async fn of_many_who_listen_only_as_many_ask_as_there_is_something_for() {
    const LISTENERS: usize = 20;
    let two = Two::new().await;
    let key = SemaphoreKey::new("yang").unwrap();
    let configure =
        SemaphoreCommand::Configure { key: key.clone(), change: Box::default(), only_new: false };
    two.first.execute(vec![Command::Semaphore(configure)]).await.remove(0).unwrap();
    let mut waiting: Vec<_> = (0..LISTENERS)
        .map(|_| {
            let events =
                SemaphoreCommand::Events { key: Some(key.clone()), count: 1, wait: MINUTE };
            let engine = two.second.clone();
            tokio::spawn(async move { engine.execute(vec![Command::Semaphore(events)]).await })
        })
        .collect();
    // Each asks once when it comes.
    while two.fetches.load(Ordering::SeqCst) < LISTENERS {
        tokio::task::yield_now().await;
    }
    let wishes = [1, 2].map(|task| Wish { task: TaskId(task), priority: 1.0 }).to_vec();
    let enqueue = Command::Semaphore(SemaphoreCommand::Enqueue { key, wishes });
    two.first.execute(vec![enqueue]).await.remove(0).unwrap();
    two.tell(RemoteChange::Events);
    while waiting.iter().filter(|listener| listener.is_finished()).count() < 2 {
        two.second.waiting().await;
    }
    waiting.retain(|listener| !listener.is_finished());
    assert_eq!(waiting.len(), LISTENERS - 2);
    two.second.waiting().await;
    let asked = two.fetches.load(Ordering::SeqCst) - LISTENERS;
    assert_eq!(asked, 3, "two found one each, and the third nothing");
    waiting.iter().for_each(|listener| listener.abort());
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
    two.tell(RemoteChange::Tube(tube("nobody")));
    two.tell(RemoteChange::Anything);
    assert!(two.second.waiting().await.is_empty());
}

// Everybody who waited was answered with an error when the database was away for a moment.
#[tokio::test]
async fn who_waits_does_not_notice_that_the_store_is_away() {
    let two = Two::new().await;
    two.shut.store(true, Ordering::SeqCst);
    let refused = two.second.execute(vec![put("mail", b"0", Span::ZERO)]).await.remove(0);
    assert_eq!(refused, Err(Error::StoreAway("away".into())), "who does not wait is told");
    let waiting = two.second.execute(vec![take("mail", 1, MINUTE)]);
    let over = two.second.execute(vec![take("mail", 1, Span::from_secs(7))]);
    let steps = async {
        while two.second.waiting().await.len() < 2 {}
        two.first.execute(vec![put("mail", b"1", Span::ZERO)]).await.remove(0).unwrap();
        two.clock.advance(POLL);
        two.second.waiting().await;
        two.clock.advance(POLL);
        while two.second.waiting().await.len() > 1 {}
        two.shut.store(false, Ordering::SeqCst);
        two.tell(RemoteChange::Anything);
    };
    let (mut waiting, mut over, ()) = tokio::join!(waiting, over, steps);
    assert_eq!(taken(waiting.remove(0)).len(), 1);
    assert_eq!(over.remove(0), Err(Error::StoreAway("away".into())), "in vain, and why");
}

//! Several engines on one store: waiting commands of one engine learn of changes by another through
//! a notification or, when that is lost, by polling.

use std::future::ready;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use taskyard_core::{
    Body, Command, Effects, EnqueueItem, Error, Execute, Kind, NewTask, NoEstimate, Reply,
    SemaphoreCommand, SemaphoreKey, SemaphoreReply, Span, TaskId, Timestamp, TubeOptions,
};
use taskyard_engine::{
    CommandCounts, Engine, ManualClock, SeriesRequest, SeriesStart, Settings, Step,
};
use taskyard_store::{
    BodyKey, Capabilities, Executed, MemoryStore, Pending, RemoteChange, Store, Watcher,
};

use crate::fixture::{put, take, taken, tube};

const POLL: Span = Span::from_secs(5);
const MINUTE: Span = Span::from_secs(60);

/// One of several connections to the same tasks.
struct Connection {
    tasks: Arc<MemoryStore>,
    watcher: Arc<Mutex<Option<Watcher>>>,
    /// Whether the store cannot be reached through it.
    unreachable: Arc<AtomicBool>,
    /// How many commands fetched events.
    fetches: Arc<AtomicUsize>,
    /// How far the clock of the store is behind, in microseconds.
    behind: i64,
}

impl Store for Connection {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        if self.unreachable.load(Ordering::SeqCst) {
            let away = Err(Error::StoreUnavailable("away".into()));
            let (replies, effects) = (vec![away; commands.len()], Effects::default());
            return Box::pin(ready(Executed { replies, effects, unloaded: Vec::new() }));
        }
        let fetches = |command: &&Command| {
            matches!(command, Command::Semaphore(SemaphoreCommand::Events { .. }))
        };
        self.fetches.fetch_add(commands.iter().filter(fetches).count(), Ordering::SeqCst);
        self.tasks.execute(now.moved(-self.behind), commands)
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

/// Two engines on one store, and a way to notify the second one.
pub struct TwoEngines {
    pub clock: Arc<ManualClock>,
    pub first: Engine,
    pub second: Engine,
    watcher: Arc<Mutex<Option<Watcher>>>,
    /// Of the second engine.
    pub unreachable: Arc<AtomicBool>,
    fetches: Arc<AtomicUsize>,
}

impl TwoEngines {
    pub async fn new() -> Self {
        Self::behind(Span::ZERO).await
    }

    /// The clock of the store is so much behind that of the servers, and shows 1 s at first.
    pub async fn behind(behind: Span) -> Self {
        let start = Timestamp::from_micros(1_000_000) + behind;
        let clock = Arc::new(ManualClock::new(start));
        let tasks = Arc::new(MemoryStore::default());
        let start = || {
            let (watcher, unreachable) = (Arc::new(Mutex::new(None)), Arc::default());
            let fetches = Arc::new(AtomicUsize::default());
            let connection = Connection {
                tasks: tasks.clone(),
                watcher: watcher.clone(),
                unreachable: Arc::clone(&unreachable),
                fetches: fetches.clone(),
                behind: behind.as_micros(),
            };
            let engine = Engine::start(Box::new(connection), clock.clone(), Settings::default());
            (engine, watcher, unreachable, fetches)
        };
        let ((first, ..), (second, watcher, unreachable, fetches)) = (start(), start());
        let options = TubeOptions::new(Kind::FifoTtl);
        let create = Command::CreateTube { tube: tube("mail"), options, if_not_exists: false };
        first.execute(vec![create]).await.remove(0).unwrap();
        // Answered by the loop, which has registered its watcher by then.
        second.waiting().await;
        TwoEngines { clock, first, second, watcher, unreachable, fetches }
    }

    fn notify(&self, what: RemoteChange) {
        let watcher = self.watcher.lock().unwrap().clone();
        watcher.expect("the engine has registered a watcher")(what);
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

/// A server without consumers of its own denied that there are any while some waited at another server. Only a task that
/// stays in the queue shows that there are none.
#[tokio::test]
async fn consumers_of_another_server_are_not_denied() {
    let two = TwoEngines::new().await;
    let forecast = async |id: u64| {
        let asked = Command::Positions { tube: tube("mail"), ids: vec![TaskId(id)] };
        match two.first.execute(vec![asked]).await.remove(0) {
            Ok(Reply::Positions(positions)) => positions[0].estimate,
            other => panic!("positions were expected, not {other:?}"),
        }
    };
    two.put(&[1]).await;
    assert_eq!(forecast(0).await, Some(Err(NoEstimate::NoHistory)));
    two.clock.advance(Span::from_secs(2));
    assert_eq!(forecast(0).await, Some(Err(NoEstimate::NoConsumer)));
    let delete = Command::Delete { tube: tube("mail"), ids: vec![TaskId(0)], show: false };
    two.first.execute(vec![delete]).await.remove(0).unwrap();
    let waiting = two.waiting().await;
    let tasks = vec![NewTask { delay: Some(MINUTE), ..NewTask::new(Body::new(&[0xc0])) }];
    let put = Command::Put { tube: tube("mail"), tasks, wait: Span::ZERO };
    two.first.execute(vec![put]).await.remove(0).unwrap();
    two.clock.advance(Span::from_secs(10));
    assert_eq!(forecast(1).await, Some(Err(NoEstimate::NoHistory)));
    waiting.abort();
}

#[tokio::test]
async fn tasks_in_a_shared_store_are_counted_every_five_seconds_while_a_series_is_observed() {
    let two = TwoEngines::new().await;
    let request = SeriesRequest { tube: None, from: SeriesStart::Oldest, step: Step::Second };
    let observe = async || two.second.series(request.clone()).await.unwrap().points;
    two.put(&[1]).await;
    assert_eq!(observe().await, []);
    two.clock.advance(Span::from_secs(1));
    observe().await;
    two.put(&[2, 3]).await;
    for _ in 0..6 {
        two.clock.advance(Span::from_secs(1));
        observe().await;
    }
    let points = observe().await;
    let ready: Vec<_> = points.iter().map(|point| point.depth.ready).collect();
    assert_eq!(ready, [1, 1, 1, 1, 1, 3, 3]);
    assert!(points.iter().all(|point| point.counts == CommandCounts::default()), "not its own");
}

// The requests of another server counted as observers: one open page made all servers read all tubes.
#[tokio::test]
async fn tasks_in_a_shared_store_are_not_counted_for_other_servers() {
    let two = TwoEngines::new().await;
    let request = SeriesRequest { tube: None, from: SeriesStart::Oldest, step: Step::Second };
    let unobserved = async || two.second.unobserved_series(request.clone()).await.unwrap().points;
    two.put(&[1]).await;
    for _ in 0..7 {
        two.clock.advance(Span::from_secs(1));
        unobserved().await;
    }
    let ready: Vec<_> = unobserved().await.iter().map(|point| point.depth.ready).collect();
    assert_eq!(ready, [0; 7]);
}

#[tokio::test]
async fn a_notification_wakes_waiting_takes_of_another_engine() {
    let two = TwoEngines::new().await;
    let (a, b) = (two.waiting().await, two.waiting().await);
    two.put(&[1, 2]).await;
    assert_eq!(two.second.waiting().await.len(), 2, "it is not notified yet");
    two.notify(RemoteChange::Tube(tube("mail")));
    assert_eq!(taken(a.await.unwrap().remove(0)).len(), 1);
    assert_eq!(taken(b.await.unwrap().remove(0)).len(), 1, "one notification is enough for both");
}

// Notifications named tubes only: a caller that waited for events at another server polled once a
// second.
#[tokio::test]
async fn a_notification_of_events_wakes_listeners_of_another_engine() {
    let two = TwoEngines::new().await;
    let key = SemaphoreKey::new("yang").unwrap();
    let configure =
        SemaphoreCommand::Configure { key: key.clone(), change: Box::default(), only_new: false };
    let entries = vec![EnqueueItem { task: TaskId(1), priority: 1.0 }];
    let enqueue = SemaphoreCommand::Enqueue { key, entries };
    let events = SemaphoreCommand::Events { key: None, count: 1, wait: MINUTE };
    let engine = two.second.clone();
    let waiting =
        tokio::spawn(async move { engine.execute(vec![Command::Semaphore(events)]).await });
    for command in [configure, enqueue] {
        two.first.execute(vec![Command::Semaphore(command)]).await.remove(0).unwrap();
    }
    // Notified until it listens.
    while !waiting.is_finished() {
        two.notify(RemoteChange::Events);
        two.second.waiting().await;
    }
    let heard = waiting.await.unwrap().remove(0);
    assert!(
        matches!(&heard, Ok(Reply::Semaphore(SemaphoreReply::Events(events))) if events.len() == 1),
        "{heard:?}"
    );
}

// Each event made every listener query the store, and so did each poll: with many listeners most of
// a batch was fruitless.
#[tokio::test]
async fn only_as_many_listeners_query_as_there_are_events() {
    const LISTENERS: usize = 20;
    let two = TwoEngines::new().await;
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
    // Each queries once when it arrives.
    while two.fetches.load(Ordering::SeqCst) < LISTENERS {
        tokio::task::yield_now().await;
    }
    let entries = [1, 2].map(|task| EnqueueItem { task: TaskId(task), priority: 1.0 }).to_vec();
    let enqueue = Command::Semaphore(SemaphoreCommand::Enqueue { key, entries });
    two.first.execute(vec![enqueue]).await.remove(0).unwrap();
    two.notify(RemoteChange::Events);
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
async fn a_lost_notification_costs_at_most_one_poll_interval() {
    let two = TwoEngines::new().await;
    let waiting = two.waiting().await;
    two.put(&[1]).await;
    two.clock.advance(POLL);
    assert_eq!(taken(waiting.await.unwrap().remove(0)).len(), 1);
}

#[tokio::test]
async fn a_task_delayed_by_another_engine_becomes_ready_here() {
    let two = TwoEngines::new().await;
    let task = NewTask { delay: Some(Span::from_secs(1)), ..NewTask::new(Body::new(&[0x01])) };
    let put = Command::Put { tube: tube("mail"), tasks: vec![task], wait: Span::ZERO };
    two.first.execute(vec![put]).await.remove(0).unwrap();
    two.first.stop().await.unwrap();
    let waiting = two.waiting().await;
    two.clock.advance(POLL);
    assert_eq!(taken(waiting.await.unwrap().remove(0)).len(), 1);
}

#[tokio::test]
async fn notifications_of_unknown_tubes_are_harmless() {
    let two = TwoEngines::new().await;
    two.notify(RemoteChange::Tube(tube("unknown")));
    two.notify(RemoteChange::Anything);
    assert!(two.second.waiting().await.is_empty());
}

// Every waiting command was answered with an error when the database was unavailable for a moment.
#[tokio::test]
async fn waiting_commands_survive_an_unavailable_store() {
    let two = TwoEngines::new().await;
    two.unreachable.store(true, Ordering::SeqCst);
    let refused = two.second.execute(vec![put("mail", b"0", Span::ZERO)]).await.remove(0);
    assert_eq!(
        refused,
        Err(Error::StoreUnavailable("away".into())),
        "a command that does not wait gets the error"
    );
    let waiting = two.second.execute(vec![take("mail", 1, MINUTE)]);
    let over = two.second.execute(vec![take("mail", 1, Span::from_secs(7))]);
    let steps = async {
        while two.second.waiting().await.len() < 2 {}
        two.first.execute(vec![put("mail", b"1", Span::ZERO)]).await.remove(0).unwrap();
        two.clock.advance(POLL);
        two.second.waiting().await;
        two.clock.advance(POLL);
        while two.second.waiting().await.len() > 1 {}
        two.unreachable.store(false, Ordering::SeqCst);
        two.notify(RemoteChange::Anything);
    };
    let (mut waiting, mut over, ()) = tokio::join!(waiting, over, steps);
    assert_eq!(taken(waiting.remove(0)).len(), 1);
    assert_eq!(
        over.remove(0),
        Err(Error::StoreUnavailable("away".into())),
        "the wait ends with the reason"
    );
}

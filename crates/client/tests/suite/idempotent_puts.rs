//! Puts that are repeated after a lost answer add their tasks once; puts with the same key do, too.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use taskyard::{
    Client, Embedded, Error, Execute, Http, Iproto, Kind, NewTask, Placed, State, TaskId,
    TubeOptions, new_task,
};
use taskyard_conformance::model::{amount, seeds};
use taskyard_core::{Command, Error as Refusal, Key, KeyRequest, Reply};
use taskyard_store::OpenOptions;
use taskyard_stores::open;
use taskyard_testkit::faulty_proxy::{CutRule, FaultyProxy, Target};
use taskyard_testkit::same_keys::SameKeys;
use taskyard_testkit::server::{self, TestServer, block_on};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// How many connections are cut for each transport and store in a usual run, and for each of `TASKYARD_RUNS`: a storm with five runs
/// cuts 10,000.
const CUTS: usize = 1_000;
const CUTS_OF_A_RUN: usize = 2_000;
/// How many clients put at the same time.
const CLIENTS: u64 = 32;
/// The most tasks of a put.
const BATCH_MAX: usize = 3;

/// The tasks of a storm, by their numbers.
#[derive(Default)]
struct StormCounts {
    /// The next number.
    next: AtomicUsize,
    /// How many puts were acknowledged, and how many ended with an unknown outcome.
    acknowledged: AtomicUsize,
    unknown: AtomicUsize,
}

/// Puts until enough connections were cut. Returns the numbers of acknowledged tasks.
async fn put_until_cut(
    client: Client,
    proxy: Arc<FaultyProxy>,
    counts: Arc<StormCounts>,
    seed: u64,
) -> Vec<usize> {
    let mut rng = Rng::with_seed(seed);
    let (mut done, cuts) = (Vec::new(), amount(CUTS, CUTS_OF_A_RUN));
    while proxy.cuts() < cuts {
        let count = rng.usize(1..=BATCH_MAX);
        let first = counts.next.fetch_add(count, Ordering::Relaxed);
        let numbers: Vec<usize> = (first..first + count).collect();
        match client.put_many("mail", &numbers).await {
            Ok(ids) => {
                assert_eq!(ids.len(), count);
                counts.acknowledged.fetch_add(count, Ordering::Relaxed);
                done.extend(numbers);
            }
            // Only if the machine is so busy that all attempts fail.
            Err(Error::Refused(Refusal::OutcomeUnknown(_))) => {
                counts.unknown.fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }
    done
}

/// Takes and acks everything, so that repeated puts meet keys of ended tasks too; returns how often each number came.
async fn drain(served: &TestServer, until: impl Fn() -> bool) -> HashMap<usize, usize> {
    let client = Client::new(served.connect());
    let mut seen = HashMap::new();
    loop {
        let is_last = until();
        let tasks = client.take_many("mail", 1_000, Duration::ZERO).await.unwrap();
        for task in &tasks {
            *seen.entry(task.data::<usize>().unwrap()).or_default() += 1;
        }
        if tasks.is_empty() && is_last {
            return seen;
        }
        client.ack_many(&tasks).await.unwrap();
        tokio::task::yield_now().await;
    }
}

/// Clients put through a proxy that cuts connections at random bytes: every acknowledged task exists once, any other at
/// most once.
async fn cut_connections<E: Execute + 'static>(
    served: TestServer,
    proxy: FaultyProxy,
    connect: impl Fn(&FaultyProxy) -> E,
    seed: u64,
) {
    served.client().create("mail", TubeOptions::new(Kind::Fifo)).await.unwrap();
    let (proxy, counts) = (Arc::new(proxy), Arc::new(StormCounts::default()));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let client = Client::new(connect(&proxy));
        let seed = seed * CLIENTS + number;
        clients.spawn(put_until_cut(client, proxy.clone(), counts.clone(), seed));
    }
    let running = Arc::new(AtomicUsize::new(1));
    let drained = running.clone();
    let acknowledged = async {
        let mut all = Vec::new();
        while let Some(done) = clients.join_next().await {
            all.extend(done.unwrap());
        }
        running.store(0, Ordering::Relaxed);
        all
    };
    let (acknowledged, seen) =
        tokio::join!(acknowledged, drain(&served, || drained.load(Ordering::Relaxed) == 0));
    let twice: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "seed {seed}: added twice: {twice:?}");
    let lost: Vec<_> = acknowledged.iter().filter(|number| !seen.contains_key(number)).collect();
    assert!(lost.is_empty(), "seed {seed}: acknowledged and lost: {lost:?}");
    let unknown = counts.unknown.load(Ordering::Relaxed);
    assert!(seen.len() <= acknowledged.len() + unknown, "seed {seed}");
    assert!(acknowledged.len() > unknown, "seed {seed}: {unknown} of unknown outcome");
    served.stop().await;
}

/// A server over the store of this URL.
async fn serve(url: &str) -> TestServer {
    let store = open(url, &OpenOptions::default()).unwrap();
    TestServer::start(store, server::clock(), server::config()).await
}

/// A proxy that cuts every connection after some bytes of requests and replies.
fn cutting_proxy(server: SocketAddr, bytes: RangeInclusive<usize>, seed: u64) -> FaultyProxy {
    let rule = CutRule { bytes, counts_requests: true };
    FaultyProxy::cutting(Target::Port(server.port()), rule, seed)
}

fn cut_http(url: &str) {
    let seed = seeds(1)[0];
    block_on(async {
        let served = serve(url).await;
        let server: SocketAddr = served.http.url().trim_start_matches("http://").parse().unwrap();
        let proxy = cutting_proxy(server, 0..=3_000, seed);
        let connect =
            |proxy: &FaultyProxy| Http::new(&format!("http://{}", proxy.address())).unwrap();
        cut_connections(served, proxy, connect, seed).await;
    });
}

fn cut_iproto(url: &str) {
    let seed = seeds(1)[0];
    block_on(async {
        let served = serve(url).await;
        // The greeting has 128 bytes.
        let proxy = cutting_proxy(served.iproto, 128..=1_500, seed);
        let connect = |proxy: &FaultyProxy| Iproto::new(&proxy.address().to_string()).unwrap();
        cut_connections(served, proxy, connect, seed).await;
    });
}

#[test]
fn storm_of_cut_connections_over_http() {
    cut_http("memory:");
}

#[test]
fn storm_of_cut_connections_over_iproto() {
    cut_iproto("memory:");
}

#[test]
fn storm_of_cut_connections_over_http_to_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    cut_http(&url_of(&folder));
}

#[test]
fn storm_of_cut_connections_over_iproto_to_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    cut_iproto(&url_of(&folder));
}

/// The URL of a store on disk.
fn url_of(folder: &TempDir) -> String {
    format!("sqlite:{}", folder.path().display())
}

/// The store URL is the argument, so that the test runs on every store with keys.
fn same_keys(url: &str) {
    block_on(async {
        let client = Client::open(url).await.unwrap();
        let embedded = client.transport::<Embedded>().expect("it is embedded");
        assert!(embedded.engine().capabilities().keys);
        client.create("mail", TubeOptions::new(Kind::Fifo)).await.unwrap();
        let (seed, rounds) = (seeds(1)[0], amount(20, SameKeys::ROUNDS_OF_A_RUN));
        let mut clients = JoinSet::new();
        for number in 0..16 {
            let batches = SameKeys::new(seed * 16 + number, rounds);
            clients.spawn(put_same_keys(client.clone(), batches));
        }
        let mut added = 0;
        while let Some(new) = clients.join_next().await {
            added += new.unwrap();
        }
        assert_eq!(added, SameKeys::KEYS, "seed {seed}, {rounds} rounds");
        assert_eq!(client.stats("mail").await.unwrap().tasks.ready, SameKeys::KEYS as u64);
        client.close().await.unwrap();
    });
}

/// Puts these batches; returns how many tasks were added.
async fn put_same_keys(client: Client, batches: SameKeys) -> usize {
    let mut added = 0;
    for tasks in batches {
        let placed = client.put_tasks("mail", tasks, Duration::ZERO).await.unwrap();
        added += placed.iter().filter(|placed| !placed.existing).count();
    }
    added
}

#[test]
fn storm_of_the_same_keys_in_memory() {
    same_keys("memory:");
}

#[test]
fn storm_of_the_same_keys_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    same_keys(&url_of(&folder));
}

/// A queue that executes commands and loses the first replies, or refuses keys.
#[derive(Clone)]
struct LossyQueue {
    queue: Client,
    losses: Arc<AtomicUsize>,
    has_keys: bool,
    /// How many puts were sent.
    sent: Arc<AtomicUsize>,
}

impl LossyQueue {
    async fn new(losses: usize, has_keys: bool) -> Self {
        let queue = Client::open("memory:").await.unwrap();
        let (losses, sent) = (Arc::new(AtomicUsize::new(losses)), Arc::default());
        LossyQueue { queue, losses, has_keys, sent }
    }

    fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Execute for LossyQueue {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Refusal>> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let keyed = commands.iter().any(|command| match command {
            Command::Put { tasks, .. } => tasks.iter().any(|task| task.key.is_some()),
            _ => false,
        });
        if keyed && !self.has_keys {
            let refusal = Refusal::MissingFeature { store: "plain", feature: "unique keys" };
            return vec![Err(refusal)];
        }
        let replies = self.queue.execute(commands).await;
        let left = self.losses.load(Ordering::Relaxed);
        self.losses.store(left.saturating_sub(1), Ordering::Relaxed);
        match left {
            0 => replies,
            _ => vec![Err(Refusal::OutcomeUnknown("lost on purpose".into()))],
        }
    }

    fn may_lose_replies(&self) -> bool {
        true
    }
}

#[test]
fn a_repeated_put_looks_like_the_first() {
    block_on(async {
        let queue = LossyQueue::new(2, true).await;
        let client = Client::new(queue.clone());
        let tasks = vec![new_task("a").unwrap(), new_task("b").unwrap()];
        let placed = client.put_tasks("mail", tasks, Duration::ZERO).await.unwrap();
        let new = |id| Placed { id: TaskId(id), state: State::Ready, existing: false };
        assert_eq!(placed, [new(0), new(1)]);
        assert_eq!(queue.sent(), 3);
        assert_eq!(queue.queue.stats("mail").await.unwrap().tasks.ready, 2);
    });
}

#[test]
fn keys_of_the_caller_are_used_and_repeated_only_if_they_stay_held() {
    block_on(async {
        let queue = LossyQueue::new(0, true).await;
        let client = Client::new(queue.clone());
        let keyed = |unique_for| {
            let mut request = KeyRequest::new(Key::new("mine").unwrap());
            request.held.unique_for = taskyard::Span::from_secs(unique_for);
            NewTask { key: Some(Box::new(request)), ..new_task("a").unwrap() }
        };
        let put = |unique_for| {
            let tasks = vec![new_task("b").unwrap(), keyed(unique_for)];
            client.put_tasks("mail", tasks, Duration::ZERO)
        };
        assert!(!put(600).await.unwrap()[1].existing);
        queue.losses.store(1, Ordering::Relaxed);
        let placed = put(600).await.unwrap();
        assert_eq!((placed[0].existing, placed[1].existing), (false, true));
        queue.losses.store(1, Ordering::Relaxed);
        let refused = put(0).await.unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::OutcomeUnknown(_))), "{refused}");
        assert_eq!(queue.sent(), 4, "the last put is not repeated");
    });
}

#[test]
fn without_keys_a_put_is_not_repeated() {
    block_on(async {
        let plain = LossyQueue::new(0, false).await;
        let client = Client::new(plain.clone());
        client.put("mail", "a").await.unwrap();
        assert_eq!(plain.sent(), 2, "the first put finds out that there are no keys");
        client.clone().put("mail", "b").await.unwrap();
        assert_eq!(plain.sent(), 3);
        plain.losses.store(1, Ordering::Relaxed);
        let refused = client.put("mail", "c").await.unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::OutcomeUnknown(_))), "{refused}");
        assert_eq!(plain.sent(), 4);
        let refused = client.put_keyed("mail", "key", "d").await.unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::MissingFeature { .. })), "{refused}");

        let queue = LossyQueue::new(1, true).await;
        let client = Client::new(queue.clone()).idempotent(false);
        let refused = client.put("mail", "a").await.unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::OutcomeUnknown(_))), "{refused}");
        assert_eq!(queue.sent(), 1);
        let task = queue.queue.peek("mail", TaskId(0)).await.unwrap().unwrap();
        assert_eq!(task.task.key, None);
    });
}

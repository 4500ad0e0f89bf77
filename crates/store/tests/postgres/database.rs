//! A database for each case.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, NewTask, Outcome, Reply, Span, Take, Task,
    Timestamp, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store::conformance::{StoreHarness, block_on};
use taskyard_store::postgres::{Clock, PostgresStore};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::cluster::{Cluster, programs};

/// The server that the tests of this process share.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::new(programs().expect("whoever asks has looked for it"));
        prepare(&cluster);
        cluster
    })
}

/// Makes the database that the others are copies of.
pub fn prepare(cluster: &Cluster) {
    sql(&cluster.url("postgres"), "CREATE DATABASE original");
    let store = PostgresStore::open(&cluster.url("original"), Clock::Caller).expect("it opens");
    block_on(store.close()).expect("it closes");
}

/// A database of its own on a cluster, gone when this is dropped.
pub struct Database {
    cluster: &'static Cluster,
    name: String,
}

impl Database {
    /// A copy of the original.
    pub fn new(cluster: &'static Cluster) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("case_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let create = format!("CREATE DATABASE {name} TEMPLATE original STRATEGY file_copy");
        sql(&cluster.url("postgres"), &create);
        Database { cluster, name }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.cluster.url(&self.name)
    }

    /// A store in it whose clock is the caller's.
    pub fn open(&self) -> PostgresStore {
        PostgresStore::open(&self.url(), Clock::Caller).expect("the store opens")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        sql(&self.cluster.url("postgres"), &drop);
    }
}

/// A queue in a database of its own.
pub fn queue() -> StoreHarness {
    let database = Database::new(cluster());
    StoreHarness::new(move || Box::new(database.open()))
}

/// Runs a case, unless there is no PostgreSQL and the tests are to go on without.
pub fn run(case: impl Future) {
    if programs().is_some() {
        block_on(case);
    }
}

/// Runs plain SQL. Answers the first column of the last row, as text.
pub fn sql(url: &str, text: &str) -> Option<String> {
    runtime().block_on(async move {
        let client = connect(url).await;
        let answers = client.simple_query(text).await;
        let answers = answers.unwrap_or_else(|error| panic!("{text}: {error:?}"));
        answers.iter().rev().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    })
}

/// A connection of the test's own.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
    tokio::spawn(connection);
    client
}

/// The moment at which the tests of a store alone ask.
pub const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// Asks a store one thing.
pub fn ask(store: &PostgresStore, command: Command) -> Result<Reply, Error> {
    block_on(store.execute(NOW, vec![command])).replies.remove(0)
}

/// Makes the tube `mail`.
pub fn make_tube(store: &PostgresStore, options: TubeOptions) -> TubeName {
    let tube = TubeName::new("mail").expect("a name");
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    assert_eq!(ask(store, create), Ok(Reply::Created(true)));
    tube
}

/// Puts tasks that carry nothing.
pub fn put(tube: &TubeName, count: usize) -> Command {
    let tasks = vec![NewTask::new(Body::new(&[0xc0])); count];
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

/// Takes without a session.
pub fn take(store: &PostgresStore, tube: &TubeName, count: usize) -> Vec<Task> {
    let take = Take { tube: tube.clone(), count, session: None, lease: None, wait: Span::ZERO };
    match ask(store, Command::Take(take)) {
        Ok(Reply::Taken(tasks)) => tasks,
        other => panic!("a take answers with tasks, not {other:?}"),
    }
}

/// Acks by lease.
pub fn ack(store: &PostgresStore, tube: &TubeName, task: &Task) -> Outcome {
    let holder = Holder::Lease(task.lease.expect("a taken task has a lease"));
    let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
    match ask(store, Command::Finish { tube: tube.clone(), items, show: false }) {
        Ok(Reply::Finished(mut outcomes)) => outcomes.remove(0),
        other => panic!("an ack has an outcome, not {other:?}"),
    }
}

/// What the tests' own connections run on.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime starts")
    })
}

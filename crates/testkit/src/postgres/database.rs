//! A database for each case.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use taskyard_conformance::{StoreHarness, block_on};
use taskyard_store::Store;
use taskyard_store_postgres::{Clock, Postgres, PostgresStore};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::cluster::{Cluster, programs};
use super::own_cluster::OwnCluster;
use crate::faulty_proxy::{FaultyProxy, Protocol, Target};
use crate::recorded_output::in_url;
use crate::{LossyPath, Request, SharedDatabase};

/// The server that the tests of this process share.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::new(programs().expect("the tests checked that it is installed"));
        prepare(&cluster);
        cluster
    })
}

/// Creates the template of all other databases.
pub fn prepare(cluster: &Cluster) {
    sql(&cluster.url("postgres"), "CREATE DATABASE original");
    let store = PostgresStore::open(&cluster.url("original"), Clock::Caller).expect("it opens");
    block_on(store.close()).expect("it closes");
}

/// A database of one test on a cluster.
pub struct Database {
    cluster: &'static Cluster,
    name: String,
    /// Whether another test may use it afterwards.
    again: AtomicBool,
}

/// Databases of finished tests. Creating one takes much longer than emptying it.
static IDLE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Above this number of tubes dropping all at once is faster than one by one.
const TUBES_MAX: usize = 100;

/// How many others are connected to a database.
const OTHERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// Empties a database after all other connections are closed.
const EMPTY: &str = "
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
DO $$ BEGIN
    EXECUTE (SELECT 'DROP SEQUENCE ' || string_agg(ids::text, ',') FROM taskyard.tube HAVING count(*) > 0);
EXCEPTION WHEN null_value_not_allowed THEN RETURN; END $$;
DELETE FROM taskyard.task;
DELETE FROM taskyard.done;
DELETE FROM taskyard.retention;
DELETE FROM taskyard.key;
DELETE FROM taskyard.ended_keys;
DELETE FROM taskyard.bucket;
DELETE FROM taskyard.schedule;
DELETE FROM taskyard.tube;
DELETE FROM taskyard.count;
DELETE FROM taskyard.counter;
DELETE FROM taskyard.semaphore;
DELETE FROM taskyard.semaphore_state;
DELETE FROM taskyard.semaphore_recheck;
DELETE FROM taskyard.semaphore_task;
DELETE FROM taskyard.semaphore_event;
DELETE FROM taskyard.subqueue;
DELETE FROM taskyard.session;
DELETE FROM taskyard.connection;
DELETE FROM taskyard.server;
ALTER SEQUENCE taskyard.semaphore_grants RESTART;
UPDATE taskyard.incarnation SET began = 0;
UPDATE taskyard.setting SET session_ttr = 0;
";

impl Database {
    /// A database that a store can open, as if it were new.
    pub fn new() -> Self {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(name) => Database { cluster: cluster(), name, again: AtomicBool::new(true) },
            None => Self::copy(cluster(), true),
        }
    }

    /// A new one on this cluster.
    pub fn on(cluster: &'static Cluster) -> Self {
        Self::copy(cluster, false)
    }

    /// One that no store has opened yet.
    pub fn unopened() -> Self {
        Self::make(cluster(), "", false)
    }

    fn copy(cluster: &'static Cluster, again: bool) -> Self {
        Self::make(cluster, "TEMPLATE original STRATEGY file_copy", again)
    }

    fn make(cluster: &'static Cluster, template: &str, again: bool) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("case_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        sql(&cluster.url("postgres"), &format!("CREATE DATABASE {name} {template}"));
        Database { cluster, name, again: AtomicBool::new(again) }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.cluster.url_with_password(&self.name)
    }

    /// Its name on the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A store in it whose clock is the caller's.
    pub fn open(&self) -> PostgresStore {
        PostgresStore::open(&self.url(), Clock::Caller).expect("the store opens")
    }
}

impl Default for Database {
    fn default() -> Self {
        Database::new()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.again.load(Ordering::Relaxed) && !thread::panicking() {
            let tubes = sql(&self.url(), "SELECT count(*) FROM taskyard.tube");
            if tubes.is_some_and(|tubes| tubes.parse().is_ok_and(|tubes: usize| tubes < TUBES_MAX))
            {
                sql(&self.url(), EMPTY);
                // A server that is just ending comes back by itself, and what it writes would be found by the next test.
                if sql(&self.url(), OTHERS).as_deref() == Some("0") {
                    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
                    idle.push(self.name.clone());
                    return;
                }
            }
        }
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        sql(&self.cluster.url("postgres"), &drop);
    }
}

/// A queue in a database of its own.
pub fn queue() -> StoreHarness {
    let database = Database::new();
    StoreHarness::new(move || Box::new(database.open()))
}

/// The PostgreSQL that the tests of this process share.
pub struct SharedPostgres;

impl SharedDatabase for SharedPostgres {
    type Backend = Postgres;
    type Part = Database;
    type Server = OwnCluster;
    const LEASES_INCREASE: bool = true;
    const TIMES_ARE_DOUBLES: bool = false;
    /// Heartbeats have a connection of their own, which listens. After a reply the database waits, outside a transaction.
    const PROTOCOL: Protocol =
        Protocol { exempt: Some(b"LISTEN"), complete: Some(b"Z\0\0\0\x05I"), shows_port: false };

    fn is_installed() -> bool {
        programs().is_some()
    }

    fn part() -> Database {
        Database::new()
    }

    fn url(part: &Database) -> String {
        part.url()
    }

    fn server() -> Option<OwnCluster> {
        OwnCluster::new()
    }

    fn lossy_path() -> LossyPath<Database> {
        let part = Database::new();
        // The connection with the heartbeat is left alone.
        let protocol = Protocol { complete: Some(b"COMMIT\0"), ..Self::PROTOCOL };
        let proxy = FaultyProxy::new(Target::Socket(cluster().socket()), protocol);
        let password = in_url(cluster().password());
        let url = format!("postgres://postgres:{password}@{}/{}", proxy.address(), part.name);
        LossyPath { part, url, proxy }
    }

    fn word_of(_: Request) -> &'static [u8] {
        b"COMMIT\0"
    }

    fn audit(part: &Database) {
        check_counts(&part.url());
    }

    fn server_count(part: &Database) -> usize {
        server_count(&part.url())
    }

    fn write_format(part: &Database, format: u32) {
        let update = format!("UPDATE taskyard.version SET tables = {format}, functions = {format}");
        sql(&part.url(), &update);
        part.again.store(false, Ordering::Relaxed);
    }
}

/// Runs a case, unless PostgreSQL is not installed and the tests may go on without it.
pub fn run(case: impl Future) {
    SharedPostgres::run(case);
}

/// Runs plain SQL. Answers the first column of the last row, as text.
pub fn sql(url: &str, text: &str) -> Option<String> {
    let (done, answered) = channel();
    let (at, asked) = (url.to_owned(), text.to_owned());
    // The caller may be on a runtime of its own, which cannot wait for another.
    runtime().spawn(async move {
        let client = connect(&at).await;
        done.send(client.simple_query(&asked).await)
    });
    let answers = answered.recv().expect("the database is there");
    let answers = answers.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    answers.iter().rev().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

/// Kills one process of the database's server, as a system without memory does: the server recovers in place, under the same
/// postmaster. Answers when it accepts connections again.
pub fn crash(url: &str) {
    let (done, recovered) = channel();
    let at = url.to_owned();
    runtime().spawn(async move {
        let [(killed, _), (_other, ended)] = [open(&at).await, open(&at).await]
            .map(|opened| opened.unwrap_or_else(|error| panic!("{at}: {error}")));
        let row = killed.query_one("SELECT pg_backend_pid()", &[]).await.expect("it has a number");
        let process: i32 = row.get(0);
        let kill =
            std::process::Command::new("kill").args(["-KILL", &process.to_string()]).status();
        assert!(kill.expect("there is a program that kills").success());
        // All other connections end when the recovery begins, and none is accepted before its end.
        let _ = ended.await;
        while open(&at).await.is_err() {}
        done.send(())
    });
    recovered.recv().expect("the database recovers");
}

/// The number of servers of a database.
pub(super) fn server_count(url: &str) -> usize {
    let count = sql(url, "SELECT count(*) FROM taskyard.server");
    count.and_then(|count| count.parse().ok()).expect("a number")
}

/// Waits until this is so in the database.
pub fn wait_until(url: &str, condition: &str) {
    // Views of statistics show the same during one transaction unless they are read anew.
    let wait = "PERFORM pg_sleep(0.01); PERFORM pg_stat_clear_snapshot()";
    let limit = "SET statement_timeout = '150s'";
    sql(
        url,
        &format!("{limit}; DO $$ BEGIN WHILE NOT ({condition}) LOOP {wait}; END LOOP; END $$"),
    );
}

/// Panics where what was counted is not what is there.
pub fn check_counts(url: &str) {
    let wrong = sql(
        url,
        "WITH stands AS (
            SELECT tube, count(*) FILTER (WHERE state = 0) AS ready,
                count(*) FILTER (WHERE state = 5) AS passed,
                count(*) FILTER (WHERE state = 1) AS taken,
                count(*) FILTER (WHERE state IN (2, 6)) AS delayed,
                count(*) FILTER (WHERE state IN (3, 4)) AS buried
            FROM taskyard.task GROUP BY tube),
        counted AS (
            SELECT tube, sum(ready) AS ready, sum(passed) AS passed, sum(taken) AS taken,
                sum(delayed) AS delayed, sum(buried) AS buried
            FROM taskyard.count GROUP BY tube)
        SELECT string_agg(coalesce(s::text, '()') || ' but ' || coalesce(c::text, '()'), '; ')
        FROM stands s FULL JOIN counted c USING (tube)
        WHERE (coalesce(s.ready, 0), coalesce(s.passed, 0), coalesce(s.taken, 0),
                coalesce(s.delayed, 0), coalesce(s.buried, 0))
            <> (coalesce(c.ready, 0), coalesce(c.passed, 0), coalesce(c.taken, 0),
                coalesce(c.delayed, 0), coalesce(c.buried, 0))",
    );
    assert_eq!(wrong, None, "tasks stand otherwise than they were counted");
}

/// A connection of the test's own.
pub async fn connect(url: &str) -> Client {
    open(url).await.expect("it connects").0
}

/// The same, with the task that runs the connection.
async fn open(url: &str) -> Result<(Client, ConnectionTask), tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    Ok((client, tokio::spawn(connection)))
}

type ConnectionTask = JoinHandle<Result<(), tokio_postgres::Error>>;

/// The runtime of the tests' own connections.
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

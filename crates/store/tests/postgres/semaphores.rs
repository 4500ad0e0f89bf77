//! Semaphores with several servers on one database.

use std::sync::Barrier;
use std::thread;

use taskyard_core::{Command, Error, Execute, Reply, Span, Timestamp};
use taskyard_store::Store;
use taskyard_store::conformance::semaphores::{SemaphoreAsk, storm};
use taskyard_store::conformance::{Harness, StoreHarness, block_on};
use taskyard_store::postgres::{Clock, PostgresStore};
use tokio_postgres::{Client, NoTls};

use crate::database::{Database, run, runtime, sql};

const CLIENTS: u64 = 16;
const SEMAPHORES: usize = 200;

/// A server of its own on the database.
fn server(database: &Database) -> StoreHarness {
    let url = database.url();
    StoreHarness::new(move || {
        Box::new(PostgresStore::open(&url, Clock::Caller).expect("the store opens"))
    })
}

/// A store that may fail: nothing is done before its commands.
struct Direct(PostgresStore);

impl Execute for Direct {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        self.0.execute(Timestamp::from_micros(1_700_000_000_000_000), commands).await.replies
    }
}

/// Lets many clients play, each with a server of its own; `meanwhile` runs beside them.
fn storm(database: &Database, calls: usize, meanwhile: impl Fn() + Sync) -> storm::Told {
    let barrier = Barrier::new(CLIENTS as usize + 1);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|seed| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let queue = Direct(database.open());
                    barrier.wait();
                    block_on(storm::play(&queue, seed, SEMAPHORES, calls))
                })
            })
            .collect();
        barrier.wait();
        meanwhile();
        let told = clients.into_iter().flat_map(|client| client.join().expect("no client fails"));
        told.collect()
    })
}

fn judge(database: &Database, told: storm::Told) {
    let queue = server(database);
    queue.advance(Span::from_secs(3600));
    block_on(storm::judge(&queue, SEMAPHORES, told));
    let wrong = sql(&database.url(), "SELECT * FROM taskyard.semaphore_audit");
    assert_eq!(wrong, None);
}

#[test]
fn a_storm_leaves_everything_in_order() {
    run(async {
        let database = Database::new();
        block_on(storm::prepare(&server(&database), SEMAPHORES));
        let told = storm(&database, 60, || {});
        judge(&database, told);
    });
}

/// Connections are cut ten times: a batch has happened or not, and no place is lost.
#[test]
fn a_storm_with_cut_connections_leaves_everything_in_order() {
    run(async {
        let database = Database::new();
        block_on(storm::prepare(&server(&database), SEMAPHORES));
        let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.3";
        let told = storm(&database, 60, || {
            for _ in 0..10 {
                sql(&database.url(), cut);
            }
        });
        judge(&database, told);
    });
}

/// Whether somebody waits for a lock in this database.
async fn somebody_waits(watcher: &Client) -> bool {
    let waiting = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    watcher.query_one(waiting, &[]).await.expect("can be asked").get::<_, i64>(0) > 0
}

async fn connect(database: &Database) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

/// One holds its lock while another comes, in both orders: whoever comes second sees what the first did, so no free
/// place and no waiter is overlooked.
#[test]
fn a_release_and_an_enqueue_never_miss_each_other() {
    const RELEASE: &str =
        "SELECT * FROM taskyard.semaphore_finish('yang', NULL, '{1}', '{NULL}', '{0}', '{NULL}')";
    const ENQUEUE: &str = "SELECT * FROM taskyard.semaphore_enqueue('yang', NULL, '{2}', '{1}')";
    let _runtime = runtime().enter();
    run(async {
        for (first, second) in [(RELEASE, ENQUEUE), (ENQUEUE, RELEASE)] {
            let database = Database::new();
            let queue = server(&database);
            queue.limits(1, 0).await;
            queue.enqueue(1, 1.0).await;
            let (one, other, watcher) =
                (connect(&database).await, connect(&database).await, connect(&database).await);
            one.batch_execute("BEGIN").await.expect("begins");
            one.batch_execute(first).await.expect("is done");
            let second = tokio::spawn(async move { other.batch_execute(second).await });
            while !somebody_waits(&watcher).await {}
            one.batch_execute("COMMIT").await.expect("commits");
            second.await.expect("does not fail").expect("is done");
            let standing = queue.standing(2).await.expect("it is there");
            assert!(standing.grant.is_some(), "{standing:?} after {first}");
            assert!(queue.standing(1).await.is_none());
        }
    });
}

/// Every look-up must be by an index however many wait: a plan that walks over all of them would only show later.
#[test]
fn the_best_and_the_worst_are_found_by_an_index() {
    let _runtime = runtime().enter();
    run(async {
        let database = Database::new();
        let queue = server(&database);
        queue.limits(10, 10).await;
        let wishes: Vec<_> = (0..5000).map(|task| (task, (task % 100) as f64)).collect();
        queue.enqueue_many(&wishes).await;
        let client = connect(&database).await;
        client
            .batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
            .await
            .expect("set");
        for (status, order) in [
            ("status = 'WAIT'", "rank, seq"),
            ("status = 'ACQUIRED' AND NOT pinned", "rank DESC, seq DESC"),
            ("status = 'TRY_RELEASE'", "rank, seq"),
        ] {
            let explain = format!(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT task_id FROM taskyard.semaphore_task \
                 WHERE semaphore_id = (SELECT id FROM taskyard.semaphore) AND {status} \
                 ORDER BY {order} LIMIT 1"
            );
            let rows = client.simple_query(&explain).await.expect("explains");
            let plan = rows.iter().find_map(|row| match row {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            });
            let plan = plan.expect("a plan");
            assert!(plan.contains("semaphore_task_") && !plan.contains("\"Sort\""), "{plan}");
        }
    });
}

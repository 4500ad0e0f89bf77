//! Semaphores with several servers on one database.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use taskyard_conformance::random::runs;
use taskyard_conformance::semaphores::{SemaphoreCommands, storm};
use taskyard_conformance::{Harness, StoreHarness, block_on};
use taskyard_core::{
    Body, Command, Error, Execute, Finish, FinishItem, Holder, Kind, NewTask, Reply,
    SemaphoreChange, SemaphoreKey, Span, Take, Task, TaskId, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_postgres::{Clock, PostgresStore};
use tokio_postgres::{Client, NoTls};

use taskyard_testkit::calls::NOW;
use taskyard_testkit::postgres::{Cluster, programs};
use taskyard_testkit::postgres::{Database, prepare, run, runtime, sql};

const CLIENTS: u64 = 16;
const SEMAPHORES: usize = 200;

/// A server of its own on the database.
fn server(database: &Database) -> StoreHarness {
    let url = database.url();
    StoreHarness::new(move || {
        Box::new(PostgresStore::open(&url, Clock::Caller).expect("the store opens"))
    })
}

/// A store whose commands may fail.
struct Direct(PostgresStore);

impl Execute for Direct {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        self.0.execute(NOW, commands).await.replies
    }
}

/// The same with a clock that advances.
struct Stormy<'a>(PostgresStore, &'a storm::Clock);

impl Execute for Stormy<'_> {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let (now, ticks) = self.1.pass();
        if ticks {
            self.0.execute(now, vec![Command::Tick { limit: 100, seed: 0 }]).await;
        }
        self.0.execute(now, commands).await.replies
    }
}

/// Runs many random clients, each with a server of its own; `meanwhile` runs beside them.
fn storm(database: &Database, calls: usize, meanwhile: impl Fn() + Sync) -> storm::DeliveredEvents {
    let (barrier, clock) = (Barrier::new(CLIENTS as usize + 1), storm::Clock::new(NOW));
    thread::scope(|scope| {
        let clients: Vec<_> = storm::client_seeds(CLIENTS)
            .into_iter()
            .map(|seed| {
                let (barrier, clock) = (&barrier, &clock);
                scope.spawn(move || {
                    let queue = Stormy(database.open(), clock);
                    barrier.wait();
                    block_on(storm::run_client(&queue, seed, SEMAPHORES, calls))
                })
            })
            .collect();
        barrier.wait();
        meanwhile();
        let told = clients.into_iter().flat_map(|client| client.join().expect("no client fails"));
        told.collect()
    })
}

fn judge(database: &Database, told: storm::DeliveredEvents) {
    let queue = server(database);
    queue.advance(Span::from_secs(3600));
    block_on(storm::check_invariants(&queue, SEMAPHORES, told));
    let wrong = sql(&database.url(), "SELECT * FROM taskyard.semaphore_audit");
    assert_eq!(wrong, None);
}

#[test]
fn a_storm_leaves_no_inconsistency() {
    run(async {
        let database = Database::new();
        block_on(storm::prepare(&server(&database), SEMAPHORES, storm::LEASE));
        let told = storm(&database, 60, || {});
        judge(&database, told);
    });
}

/// Connections are cut ten times: a batch has happened or not, and no place is lost.
#[test]
fn a_storm_with_cut_connections_leaves_no_inconsistency() {
    run(async {
        let database = Database::new();
        block_on(storm::prepare(&server(&database), SEMAPHORES, storm::LEASE));
        let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.3";
        let told = storm(&database, 60, || {
            for _ in 0..10 * runs() {
                sql(&database.url(), cut);
            }
        });
        judge(&database, told);
    });
}

/// A server that repeats commands while the database is down, and counts the answers. A repeated command advances the clock
/// as much as a single one.
struct Patient<'a>(Stormy<'a>, &'a AtomicUsize);

impl Execute for Patient<'_> {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let Stormy(store, clock) = &self.0;
        let (now, ticks) = clock.pass();
        if ticks {
            store.execute(now, vec![Command::Tick { limit: 100, seed: 0 }]).await;
        }
        loop {
            let replies = store.execute(now, commands.clone()).await.replies;
            if replies.iter().any(|reply| matches!(reply, Err(Error::StoreUnavailable(_)))) {
                thread::yield_now();
                continue;
            }
            self.1.fetch_add(1, Ordering::Relaxed);
            return replies;
        }
    }
}

/// How many answers come before each kill.
const ANSWERS: usize = 300;

/// The database is killed twice in a storm, as by a loss of power: a call has happened or not, and no place, grant or
/// event is lost or given twice.
#[test]
fn a_storm_with_kills_of_the_database_leaves_no_inconsistency() {
    let Some(programs) = programs() else { return };
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::new(programs)));
    prepare(cluster);
    let database = &Database::on(cluster);
    block_on(storm::prepare(&server(database), SEMAPHORES, storm::LEASE));
    let (answers, clock) = (&AtomicUsize::new(0), &storm::Clock::new(NOW));
    let told = thread::scope(|scope| {
        let clients: Vec<_> = storm::client_seeds(4)
            .into_iter()
            .map(|seed| {
                let queue = Patient(Stormy(database.open(), clock), answers);
                scope.spawn(move || block_on(storm::run_client(&queue, seed, SEMAPHORES, 250)))
            })
            .collect();
        for blow in 1..=2 * runs() {
            while answers.load(Ordering::Relaxed) < blow * ANSWERS {
                thread::yield_now();
            }
            cluster.kill();
            cluster.start();
        }
        clients.into_iter().flat_map(|client| client.join().expect("no client fails")).collect()
    });
    judge(database, told);
}

/// Four servers work on two tubes with one semaphore while connections are cut: the capacity is never exceeded, every task is
/// done once, and every place is free in the end.
#[test]
fn a_storm_on_tubes_with_a_semaphore() {
    run(async {
        let database = &Database::new();
        let queue = server(database);
        queue.limits(3, 3).await;
        let tubes = ["one", "two"].map(|name| TubeName::new(name).expect("a name"));
        for tube in &tubes {
            let semaphore = SemaphoreKey::new("yang").ok();
            let options = TubeOptions { semaphore, ..TubeOptions::new(Kind::FifoTtl) };
            let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
            queue.execute(vec![create]).await.remove(0).expect("it is made");
        }
        let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.3";
        let barrier = Barrier::new(5);
        thread::scope(|scope| {
            for seed in storm::client_seeds(4) {
                let (barrier, tubes) = (&barrier, &tubes);
                scope.spawn(move || {
                    let queue = Direct(database.open());
                    barrier.wait();
                    block_on(work(&queue, seed, tubes));
                });
            }
            barrier.wait();
            for _ in 0..5 * runs() {
                sql(&database.url(), cut);
                let most = sql(
                    &database.url(),
                    "SELECT max(acquired + revoking) FROM taskyard.semaphore_state",
                );
                assert!(most.is_some_and(|most| most.parse::<u32>().expect("a number") <= 3));
            }
        });
        for view in ["semaphore_audit", "gate_audit"] {
            assert_eq!(sql(&database.url(), &format!("SELECT * FROM taskyard.{view}")), None);
        }
        // The remaining tasks can be done, and then no place is held.
        let queue = Direct(database.open());
        for tube in &tubes {
            queue.execute(vec![Command::ReleaseAll { tube: tube.clone() }]).await;
        }
        while finish_some(&queue, &tubes).await > 0 {}
        let left = sql(&database.url(), "SELECT count(*) FROM taskyard.semaphore_task");
        assert_eq!(left.as_deref(), Some("0"));
        assert_eq!(sql(&database.url(), "SELECT * FROM taskyard.gate_audit"), None);
    });
}

/// Puts, takes, acks, releases and deletes; the outcome does not matter.
async fn work(queue: &Direct, seed: u64, tubes: &[TubeName]) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..60 * runs() {
        let tube = tubes[rng.usize(0..tubes.len())].clone();
        let mut task = NewTask::new(Body::new(&[0xc0]));
        task.pri = Some(rng.u64(0..4));
        let id = TaskId(rng.u64(0..60));
        let item = |finish| FinishItem { id, holder: Holder::Any, finish };
        let release = Finish::Release { delay: Span::ZERO, counted: true };
        let command = match rng.u8(0..8) {
            0..3 => Command::Put { tube, tasks: vec![task], wait: Span::ZERO },
            3..5 => take_from(tube),
            5 => Command::Finish { tube, items: vec![item(Finish::Ack)], show: false },
            6 => Command::Finish { tube, items: vec![item(release)], show: false },
            _ => Command::Delete { tube, ids: vec![id], show: false },
        };
        let other = take_from(tubes[rng.usize(0..tubes.len())].clone());
        let batch = if rng.bool() { vec![command] } else { vec![command, other] };
        for reply in queue.execute(batch).await {
            let away = |error: &Error| {
                matches!(
                    error,
                    Error::Store(_) | Error::StoreUnavailable(_) | Error::OutcomeUnknown(_)
                )
            };
            assert!(reply.as_ref().err().is_none_or(away), "{reply:?}");
        }
    }
}

fn take_from(tube: TubeName) -> Command {
    let (session, lease, wait) = (None, None, Span::ZERO);
    Command::Take(Take { tube, count: 2, session, lease, worker: None, wait })
}

/// Takes and acks all tasks; returns how many there were.
async fn finish_some(queue: &Direct, tubes: &[TubeName]) -> usize {
    let mut done = 0;
    for tube in tubes {
        let reply = queue.execute(vec![take_from(tube.clone())]).await.remove(0);
        let Ok(Reply::Taken(tasks)) = reply else { panic!("{reply:?}") };
        assert!(tasks.len() <= 3);
        let ack = |task: &Task| FinishItem {
            id: task.id,
            holder: Holder::Lease(task.lease.expect("it is taken")),
            finish: Finish::Ack,
        };
        let items: Vec<_> = tasks.iter().map(ack).collect();
        done += items.len();
        let finish = Command::Finish { tube: tube.clone(), items, show: false };
        queue.execute(vec![finish]).await.remove(0).expect("they are held");
    }
    done
}

async fn connect(database: &Database) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

// Plans that were made while no task waited read the whole table for each call, and with a million waiting tasks in one
// semaphore a call of any other took seconds.
#[test]
fn no_call_reads_the_tasks_of_other_semaphores() {
    const CALLS: &str = "
        SELECT taskyard.semaphore_enqueue('yang', NULL, '{7,8}', '{1,2}');
        SELECT taskyard.semaphore_finish('yang', NULL, '{7,8}', '{NULL,NULL}', '{0,0}', '{NULL,NULL}');
        SELECT taskyard.semaphore_enqueue_all('{yang,other}', NULL, '{1,1}', '{5,9}', '{1,0}');
        SELECT taskyard.semaphore_release_all('{yang,other}', NULL, '{1,1}', '{5,9}', '{NULL,NULL}');";
    let _runtime = runtime().enter();
    run(async {
        let database = Database::new();
        let queue = server(&database);
        queue.limits(1, 1).await;
        queue.configure("other", SemaphoreChange::limits(0, 0)).await;
        let client = connect(&database).await;
        for _ in 0..8 {
            client.batch_execute(CALLS).await.expect("is done");
        }
        let fill =
            "INSERT INTO taskyard.semaphore_task (semaphore_id, task_id, priority, seq, enqueued)
            SELECT id, n, n, nextval('taskyard.semaphore_seq'), 0
            FROM taskyard.semaphore, generate_series(100, 20000) n WHERE key = 'other'";
        client.batch_execute(fill).await.expect("is filled");
        client.batch_execute("BEGIN").await.expect("begins");
        client.batch_execute(CALLS).await.expect("is done");
        let read = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'semaphore_task'";
        let read: i64 = client.query_one(read, &[]).await.expect("can be asked").get(0);
        assert_eq!(read, 0, "times the whole table was read");
    });
}

/// Every search uses an index however many tasks wait: a plan that reads all of them would be slow only later.
#[test]
fn the_best_and_the_worst_task_are_found_by_an_index() {
    let _runtime = runtime().enter();
    run(async {
        let database = Database::new();
        let queue = server(&database);
        queue.limits(10, 10).await;
        let entries: Vec<_> = (0..5000).map(|task| (task, (task % 100) as f64)).collect();
        queue.enqueue_many(&entries).await;
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

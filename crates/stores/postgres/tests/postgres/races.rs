//! Many servers at the same time.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, Command, Error, Kind, NewTask, Outcome, Reply, Span, Take, Task, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_postgres::PostgresStore;

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::postgres::{Database, check_counts, cluster, run, sql};

const SERVERS: usize = 4;

/// Runs this on each of several servers at the same time.
fn at_once<T: Send>(database: &Database, work: impl Fn(&PostgresStore) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(SERVERS);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..SERVERS)
            .map(|_| {
                scope.spawn(|| {
                    let store = database.open();
                    barrier.wait();
                    work(&store)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no server fails")).collect()
    })
}

fn drain(store: &PostgresStore, tube: &TubeName, count: usize) -> Vec<Task> {
    let mut all = Vec::new();
    loop {
        let tasks = take(store, tube, count);
        if tasks.is_empty() {
            return all;
        }
        for task in &tasks {
            assert_eq!(ack(store, tube, task), Outcome::Done(None));
        }
        all.extend(tasks);
    }
}

#[test]
fn each_task_is_delivered_once() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        ask(&store, put(&tube, 300)).expect("they are put");
        let taken = at_once(&database, |store| drain(store, &tube, 3)).concat();
        let ids: HashSet<_> = taken.iter().map(|task| task.id).collect();
        let leases: HashSet<_> = taken.iter().map(|task| task.lease).collect();
        let left = drain(&store, &tube, 100);
        assert_eq!((taken.len() + left.len(), ids.len()), (300, taken.len()));
        assert_eq!(leases.len(), taken.len());
        check_counts(&database.url());
    });
}

#[test]
fn many_servers_open_an_empty_database() {
    run(async {
        let database = Database::unopened();
        let ids = at_once(&database, |store| {
            let tube = TubeName::new("mail").expect("a name");
            let options = TubeOptions::new(Kind::Fifo);
            let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: true };
            ask(store, create).expect("it is there");
            ask(store, put(&tube, 1)).expect("it is put")
        });
        assert_eq!(ids.len(), SERVERS);
        check_counts(&database.url());
    });
}

/// Ticks add up counts while other calls add rows.
#[test]
fn counts_are_right_under_concurrency() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        at_once(&database, |store| {
            for round in 0..60 {
                ask(store, put(&tube, 2)).expect("they are put");
                for task in take(store, &tube, 1) {
                    ack(store, &tube, &task);
                }
                if round % 10 == 9 {
                    ask(store, Command::Tick { limit: 10, seed: 0 }).expect("it ticks");
                }
                if round == 30 {
                    ask(store, Command::Truncate { tube: tube.clone() }).expect("it is emptied");
                }
            }
        });
        check_counts(&database.url());
    });
}

#[test]
fn a_capacity_is_never_exceeded() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let options = TubeOptions { capacity: Some(3), ..TubeOptions::new(Kind::Fifo) };
        let tube = make_tube(&store, options);
        let put_some = |store: &PostgresStore| {
            let replies = (0..10).map(|_| ask(store, put(&tube, 1)));
            replies.filter(Result::is_ok).count()
        };
        let accepted: usize = at_once(&database, put_some).into_iter().sum();
        assert_eq!(accepted, 3);
        let refusal = ask(&store, put(&tube, 1));
        assert_eq!(refusal, Err(Error::TubeFull { tube, capacity: 3 }));
    });
}

#[test]
fn one_of_a_subqueue_runs_at_a_time() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::Utube));
        let of = |key: &str| NewTask {
            subqueue: Some(key.into()),
            ..NewTask::new(taskyard_core::Body::new(&[0xc0]))
        };
        let put_some = |store: &PostgresStore| {
            let tasks = ["a", "b", "c", "a"].map(of).to_vec();
            let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
            assert!(matches!(ask(store, put), Ok(Reply::Put(_))));
            take(store, &tube, 2)
        };
        let mut taken = at_once(&database, put_some).concat();
        taken.extend(take(&store, &tube, 9));
        let keys: HashSet<_> = taken.iter().map(|task| task.subqueue.clone()).collect();
        assert_eq!((taken.len(), keys.len()), (3, 3), "one of each and no more");
        for task in &taken {
            assert_eq!(ack(&store, &tube, task), Outcome::Done(None));
        }
        let drained: usize =
            at_once(&database, |store| drain(store, &tube, 1).len()).into_iter().sum();
        assert_eq!(drained + drain(&store, &tube, 9).len(), 4 * SERVERS - 3);
        check_counts(&database.url());
    });
}

/// Ends all connections but its own, so that their statistics are complete.
const END: &str = "
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()";

const DEADLOCKS: &str = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";

fn put_key(tube: &TubeName, key: &str) -> Command {
    let task = NewTask { subqueue: Some(key.into()), ..NewTask::new(Body::new(&[0xc0])) };
    Command::Put { tube: tube.clone(), tasks: vec![task], wait: Span::ZERO }
}

// A batch took its locks in the order of its commands: two servers with commands in opposite order deadlocked for a second,
// until the database ended one of the two.
#[test]
fn batches_in_opposite_order_do_not_deadlock() {
    run(async {
        let database = Database::on(cluster());
        let store = database.open();
        let room = TubeOptions { capacity: Some(100_000), ..TubeOptions::new(Kind::Fifo) };
        let lane = TubeOptions::new(Kind::Utube);
        let names = ["big", "huge", "lanes"].map(|name| TubeName::new(name).expect("a name"));
        let [big, huge, lanes] = &names;
        for (tube, options) in [(big, room.clone()), (huge, room), (lanes, lane)] {
            let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
            ask(&store, create).expect("it is made");
        }
        let (session, lease, wait) = (None, None, Span::ZERO);
        let take = Take { tube: lanes.clone(), count: 1, session, lease, worker: None, wait };
        let middle = Command::Take(take);
        let turn = AtomicBool::new(false);
        at_once(&database, |store| {
            let mut batch = vec![
                put(big, 1),
                put_key(lanes, "a"),
                middle.clone(),
                put_key(lanes, "b"),
                put(huge, 1),
            ];
            if turn.fetch_xor(true, Ordering::SeqCst) {
                batch.reverse();
            }
            for _ in 0..40 {
                let replies = block_on(store.execute(NOW, batch.clone())).replies;
                assert!(replies.iter().all(Result::is_ok), "{replies:?}");
            }
        });
        check_counts(&database.url());
        sql(&database.url(), END);
        assert_eq!(sql(&database.url(), DEADLOCKS).as_deref(), Some("0"));
    });
}

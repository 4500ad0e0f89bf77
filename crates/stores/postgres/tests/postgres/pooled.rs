//! Tests behind a real pooler in transaction mode, where no state lasts from one transaction to the next.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use taskyard_conformance::{StoreHarness, model};
use taskyard_core::{Body, Command, Kind, NewTask, Outcome, Reply, SessionId, TubeOptions};
use taskyard_store::{RemoteChange, Store};
use taskyard_store_postgres::{Clock, PostgresStore, put_in};

use taskyard_testkit::calls::{ack, ask, make_tube, put, take};
use taskyard_testkit::postgres::{Database, check_counts, connect, run, runtime, sql};
use taskyard_testkit::postgres::{is_there, pooler};

fn open(database: &Database) -> PostgresStore {
    let url = pooler().url(&database.url());
    PostgresStore::open(&url, Clock::Caller).expect("the store opens")
}

fn run_pooled(case: impl Future) {
    run(async {
        if is_there() {
            case.await;
        }
    });
}

/// All commands, in random order, compared with the core's machine.
#[test]
fn model() {
    for seed in model::seeds(1) {
        run_pooled(async move {
            let database = Database::new();
            let queue = StoreHarness::new(move || Box::new(open(&database)));
            model::replay(queue, seed, 400).await;
        });
    }
}

#[test]
fn several_servers_share_a_few_connections() {
    run_pooled(async {
        let database = Database::new();
        let (here, there) = (open(&database), open(&database));
        let tube = make_tube(&here, TubeOptions::new(Kind::Utube));
        for _ in 0..20 {
            ask(&here, put(&tube, 2)).expect("they are put");
            let task = take(&there, &tube, 1).remove(0);
            assert!(take(&here, &tube, 1).is_empty(), "one of a sub-queue runs at a time");
            assert_eq!(ack(&here, &tube, &task), Outcome::Done(None));
        }
        let session = SessionId([7; 16]);
        ask(&here, Command::JoinSession { session, create: true }).expect("it joins");
        let joined = ask(&there, Command::JoinSession { session, create: false });
        assert_eq!(joined, Ok(Reply::Session(session)));
        check_counts(&database.url());
    });
}

#[test]
fn a_task_exists_when_its_transaction_commits() {
    run_pooled(async {
        let database = Database::new();
        let store = open(&database);
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        runtime().block_on(async {
            let url = pooler().url(&database.url()).replace("?pooler=transaction", "");
            let mut client = connect(&url).await;
            for (byte, commits) in [(1, false), (2, true)] {
                let transaction = client.transaction().await.expect("it begins");
                let task = vec![NewTask::new(Body::new(&[byte]))];
                put_in(&transaction, &tube, task).await.expect("it is put");
                if commits {
                    transaction.commit().await.expect("it commits");
                } else {
                    transaction.rollback().await.expect("it is rolled back");
                }
            }
        });
        let tasks = take(&store, &tube, 9);
        let payloads: Vec<_> = tasks.iter().filter_map(|task| task.body.as_ref()).collect();
        assert_eq!(payloads.iter().map(|body| body.payload()).collect::<Vec<_>>(), [[2]]);
    });
}

#[test]
fn changes_by_other_servers_are_found_by_polling() {
    run_pooled(async {
        let database = Database::new();
        let store = open(&database);
        make_tube(&store, TubeOptions::new(Kind::Fifo));
        let (sender, heard) = mpsc::channel();
        store.watch(Arc::new(move |what| sender.send(what).expect("the test listens")));
        for _ in 0..3 {
            sql(&database.url(), "SELECT taskyard.put('mail', '1')");
        }
        let tubes = heard.try_iter().filter(|what| *what != RemoteChange::Anything).count();
        assert_eq!(tubes, 0);
        let listening = sql(
            &database.url(),
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND query LIKE 'LISTEN%'",
        );
        assert_eq!(listening.as_deref(), Some("0"));
        let every = store.poll_every().expect("it looks");
        assert!(Duration::from_micros(every.as_micros() as u64) <= Duration::from_secs(1));
    });
}

//! Tests that PostgreSQL executes a request and its reply is lost.

use taskyard_conformance::block_on;
use taskyard_core::{Command, Kind, Outcome, Reply, Span, Take, TubeOptions};
use taskyard_store::Store;
use taskyard_store_postgres::{Clock, PostgresStore};

use taskyard_testkit::calls::{NOW, ask, make_tube, put};
use taskyard_testkit::postgres::{
    Database, Pooler, SharedPostgres, check_counts, is_there, run, sql,
};
use taskyard_testkit::suite::lost_replies::is_unknown;
use taskyard_testkit::{LossyPath, Request, SharedDatabase};

taskyard_testkit::lost_reply_suite!(taskyard_testkit::postgres::SharedPostgres);

fn open(path: &LossyPath<Database>) -> PostgresStore {
    PostgresStore::open(&path.url, Clock::Caller).expect("the store opens")
}

// A pooler that lost its own connection returns an error, which was taken for the statement of the database
// that nothing was done: the put was sent again and was executed twice.
#[test]
fn a_batch_whose_reply_a_pooler_lost_is_unknown() {
    run(async {
        if !is_there() {
            return;
        }
        let path = SharedPostgres::lossy_path();
        let database = &path.part;
        let pooler =
            Pooler::before(&format!("host=127.0.0.1 port={}", path.proxy.address().port()));
        let url = pooler.url(&database.url());
        let store = PostgresStore::open(&url, Clock::Caller).expect("the store opens");
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        // Servers behind a pooler share connections, so the heartbeat must be distinguished from the put.
        path.proxy.withhold_reply(b"put_tasks");
        is_unknown(ask(&store, put(&tube, 1)));
        let count = sql(&database.url(), "SELECT count(*) FROM taskyard.task");
        assert_eq!(count.as_deref(), Some("1"));
    });
}

// When the reply to the query about a lost batch was lost too, the backend process of that connection was not
// ended and could still execute the batch later.
#[test]
fn the_backend_process_of_a_lost_connection_is_ended() {
    run(async {
        let path = SharedPostgres::lossy_path();
        let database = &path.part;
        let store = open(&path);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let connections = || {
            let count = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'taskyard'";
            sql(&database.url(), count).expect("it counts")
        };
        // One for batches and one for the heartbeat.
        while connections() != "2" {}
        path.proxy.linger();
        path.proxy.withhold_reply(SharedPostgres::word_of(Request::Put));
        is_unknown(ask(&store, put(&tube, 1)));
        path.proxy.withhold_reply(SharedPostgres::word_of(Request::Put));
        ask(&store, put(&tube, 1)).expect("the put succeeds");
        assert_eq!(connections(), "2");
    });
}

#[test]
fn of_a_batch_on_two_connections_only_the_lost_half_is_unknown() {
    run(async {
        let path = SharedPostgres::lossy_path();
        let database = &path.part;
        let store = open(&path);
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        assert!(ask(&store, put(&tube, 2_001)).is_ok());
        let first = taskyard_testkit::calls::take(&store, &tube, 1).remove(0);
        assert!(matches!(taskyard_testkit::calls::ack(&store, &tube, &first), Outcome::Done(_)));
        let (session, lease, wait) = (None, None, Span::ZERO);
        let take = Command::Take(Take {
            tube: tube.clone(),
            count: 1_000,
            session,
            lease,
            worker: None,
            wait,
        });
        path.proxy.withhold_reply(SharedPostgres::word_of(Request::Put));
        let replies = block_on(store.execute(NOW, vec![take.clone(), take.clone()])).replies;
        let (unknown, taken): (Vec<_>, Vec<_>) = replies.into_iter().partition(Result::is_err);
        is_unknown(unknown.into_iter().next().expect("one half is lost"));
        assert!(matches!(&taken[..], [Ok(Reply::Taken(tasks))] if tasks.len() == 1_000));
        // The lost half was executed, and the store continues to work.
        assert_eq!(ask(&store, take), Ok(Reply::Taken(Vec::new())));
        check_counts(&database.url());
    });
}

//! One process of the database is killed: the database recovers in place, and its postmaster runs on.

use taskyard_conformance::block_on;
use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, Outcome, Reply, SessionId, Span, Take,
    TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_postgres::PostgresStore;

use taskyard_testkit::calls::{ask, make_tube, put};
use taskyard_testkit::postgres::{Cluster, programs};
use taskyard_testkit::postgres::{Database, crash, prepare, sql, wait_until};

const SESSION: SessionId = SessionId([7; 16]);

/// How long servers may be silent in these tests, in microseconds: the database must be up for longer.
const PATIENCE: u32 = 1_000_000;

/// A server that sends heartbeats, and one whose last heartbeat is an hour old and whose session holds a task.
const JUDGE: &str = "'\\x01'";
const SILENT: &str = "'\\x0a'";

fn own_cluster() -> Option<&'static Cluster> {
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::new(programs()?)));
    prepare(cluster);
    Some(cluster)
}

/// A database in which a silent server holds a task, and no other server runs.
fn with_silent_server(cluster: &'static Cluster) -> Database {
    let database = Database::on(cluster);
    let store = database.open();
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    let session = "'\\x07070707070707070707070707070707'";
    let url = database.url();
    sql(
        &url,
        &format!(
            "INSERT INTO taskyard.server VALUES ({SILENT}, taskyard.clock() + 3600000000);
             INSERT INTO taskyard.session VALUES ({session});
             INSERT INTO taskyard.connection VALUES ({session}, {SILENT}, 1)"
        ),
    );
    let session = Some(SESSION);
    let take = Take { tube, count: 1, session, lease: None, worker: None, wait: Span::ZERO };
    let taken = ask(&store, Command::Take(take));
    assert!(matches!(&taken, Ok(Reply::Taken(tasks)) if tasks.len() == 1), "{taken:?}");
    block_on(store.close()).expect("it closes");
    let up = format!("clock_timestamp() > pg_postmaster_start_time() + '{PATIENCE} us'");
    wait_until(&url, &up);
    let long_ago = "UPDATE taskyard.server SET heartbeat = taskyard.clock() - 3600000000";
    sql(&url, long_ago);
    database
}

fn sessions(database: &Database) -> Option<String> {
    sql(&database.url(), "SELECT count(*) FROM taskyard.session WHERE ends IS NULL")
}

// Whether the database had been down was decided by the start of the postmaster, which does not change when one process is
// killed: the first server that came back ended the sessions of the others, whose heartbeats could not be written meanwhile, and
// delivered their tasks again.
#[test]
fn no_server_is_declared_dead_after_a_crash() {
    let Some(cluster) = own_cluster() else { return };
    let database = with_silent_server(cluster);
    let url = database.url();
    // The database received heartbeats regularly, also at the moment of the crash.
    let judge = format!(
        "INSERT INTO taskyard.server VALUES ({JUDGE}, taskyard.clock() + 3600000000, taskyard.clock())"
    );
    sql(&url, &judge);
    let beat = format!("SELECT lost FROM taskyard.heartbeat({JUDGE}, {PATIENCE}, NULL)");
    crash(&url);
    assert_eq!(sql(&url, &beat).as_deref(), Some("0"));
    assert_eq!(sessions(&database).as_deref(), Some("1"));
    // Servers that do not come back are declared dead in the end.
    sql(&url, "UPDATE taskyard.incarnation SET began = 0");
    assert_eq!(sql(&url, &beat).as_deref(), Some("1"));
    assert_eq!(sessions(&database).as_deref(), Some("0"));
}

// A server that was started after the crash found no live one, and released the tasks of all others.
#[test]
fn a_server_started_after_a_crash_ends_no_sessions_of_others() {
    let Some(cluster) = own_cluster() else { return };
    let database = with_silent_server(cluster);
    let url = database.url();
    crash(&url);
    sql(&url, &format!("SELECT taskyard.begin_server({JUDGE}, {PATIENCE})"));
    assert_eq!(sessions(&database).as_deref(), Some("1"));
    assert_eq!(
        sql(&url, "SELECT count(*) FROM taskyard.task WHERE state = 1").as_deref(),
        Some("1")
    );
    // And releases it when that server is really dead.
    sql(
        &url,
        "UPDATE taskyard.incarnation SET began = 0; UPDATE taskyard.server SET heartbeat = 0",
    );
    sql(&url, &format!("SELECT taskyard.begin_server('\\x02', {PATIENCE})"));
    assert_eq!(sessions(&database).as_deref(), Some("0"));
}

/// Asks until the database is there and has answered.
fn answered(store: &PostgresStore, command: &Command) -> Reply {
    loop {
        match ask(store, command.clone()) {
            Ok(reply) => return reply,
            Err(Error::StoreUnavailable(_) | Error::OutcomeUnknown(_)) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

// The same as servers see it: each has a session that holds a task, and can finish it after every crash.
#[test]
fn sessions_keep_their_tasks_across_crashes() {
    let Some(cluster) = own_cluster() else { return };
    let database = Database::on(cluster);
    let url = database.url();
    let servers = [1, 2].map(|number| (database.open(), SessionId([number; 16])));
    let tube = make_tube(&servers[0].0, TubeOptions::new(Kind::Fifo));
    for (store, session) in &servers {
        answered(store, &Command::JoinSession { session: *session, create: true });
    }
    for _ in 0..4 {
        answered(&servers[0].0, &put(&tube, 2));
        let held = servers.each_ref().map(|(store, session)| {
            let session = Some(*session);
            let take = Take {
                tube: tube.clone(),
                count: 1,
                session,
                lease: None,
                worker: None,
                wait: Span::ZERO,
            };
            match answered(store, &Command::Take(take)) {
                Reply::Taken(mut tasks) => tasks.remove(0),
                other => panic!("a take answers with tasks, not {other:?}"),
            }
        });
        // The last heartbeat of one of them was nearly one interval ago.
        sql(
            &url,
            "UPDATE taskyard.server SET heartbeat = heartbeat - 1900000
             WHERE id = (SELECT id FROM taskyard.server ORDER BY id LIMIT 1)",
        );
        crash(&url);
        for ((store, _), task) in servers.iter().zip(held) {
            answered(store, &Command::Tick { limit: 100, seed: 0 });
            let holder = Holder::Lease(task.lease.expect("a taken task has a lease"));
            let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
            let ack = Command::Finish { tube: tube.clone(), items, show: false };
            let Reply::Finished(outcomes) = answered(store, &ack) else { panic!("it is finished") };
            // An ack that is repeated finds no task the second time.
            assert!(!matches!(outcomes[0], Outcome::Stale), "{outcomes:?}");
        }
    }
}

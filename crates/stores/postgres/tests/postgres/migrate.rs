//! Databases of earlier versions.

use taskyard_conformance::block_on;
use taskyard_core::{Command, Kind, Outcome, Reply, TubeOptions};
use taskyard_store::Store;
use taskyard_store_postgres::{Clock, PostgresStore};

use taskyard_testkit::calls::{ack, ask, make_tube, put, take};
use taskyard_testkit::postgres::{Database, cluster, run, sql};

const FIRST: &str = include_str!("../../src/migrations/0001_tables.sql");

/// The tasks of the first version of the tables exist after the upgrade, taken ones included.
#[test]
fn the_first_version_is_upgraded() {
    run(async {
        let database = Database::unopened();
        sql(
            &database.url(),
            &format!(
                "CREATE SCHEMA taskyard;
                CREATE TABLE taskyard.version (tables integer NOT NULL, functions integer NOT NULL);
                {FIRST}
                INSERT INTO taskyard.version VALUES (1, 1);
                CREATE SEQUENCE taskyard.ids_1 MINVALUE 0 START 0;
                INSERT INTO taskyard.tube (number, name, kind, temporary, pri, ttl_kills_taken, paused, ids)
                VALUES (nextval('taskyard.tube_number'), 'old', 'fifottl', false,
                    -9223372036854775808, false, false, 'taskyard.ids_1');
                INSERT INTO taskyard.task (tube, id, state, pri, created, expires, ttr, timer, lease, start, payload)
                SELECT 1, nextval('taskyard.ids_1'), s.state, -9223372036854775808, 1,
                    9223372036854775807, 60000000, s.timer, s.lease, s.timer, '\\xc0'
                FROM (VALUES (0, NULL::bigint, NULL::bigint), (1, 9000000000000000, 7)) AS s(state, timer, lease);
                INSERT INTO taskyard.count (tube, ready, taken) VALUES (1, 1, 1)"
            ),
        );
        let store = database.open();
        let old = taskyard_core::TubeName::new("old").expect("a name");
        // There is no other server, so taken tasks were released.
        let tasks = take(&store, &old, 3);
        assert_eq!(tasks.iter().map(|task| task.id.0).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(ack(&store, &old, &tasks[1]), Outcome::Done(None));
        let shown = ask(&store, Command::Tubes { tube: Some(old) });
        let Ok(Reply::Tubes(tubes)) = shown else { panic!("the tube is shown") };
        assert_eq!((tubes[0].options.keep_done, tubes[0].options.keep_done_max), (None, 10_000));
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        block_on(store.close()).expect("it closes");
        drop(database.open());
        let version = sql(&database.url(), "SELECT tables FROM taskyard.version");
        assert_eq!(version.as_deref(), Some("17"));
    });
}

// The error for a user without privileges was "permission denied", without advice.
#[test]
fn missing_privileges_are_reported_with_advice() {
    run(async {
        let database = Database::unopened();
        let name = database.name();
        let guest = format!("guest_{name}");
        sql(&database.url(), &format!("CREATE ROLE {guest} LOGIN"));
        let url = cluster().url(name).replacen("postgres@", &format!("{guest}@"), 1);
        let refusal = || match PostgresStore::open(&url, Clock::Caller) {
            Ok(_) => panic!("{guest} may not open it"),
            Err(refusal) => refusal.to_string(),
        };
        let first = refusal();
        let grant = format!("GRANT CREATE ON DATABASE {name} TO {guest}");
        assert!(first.contains(&grant) && first.contains("taskyard migrate"), "{first}");
        block_on(database.open().close()).expect("its owner may");
        let second = refusal();
        let grant = format!("GRANT postgres TO {guest}");
        assert!(second.contains(&grant) && second.contains("taskyard migrate"), "{second}");
        sql(&database.url(), &grant);
        let store = PostgresStore::open(&url, Clock::Caller).expect("now it may");
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
    });
}

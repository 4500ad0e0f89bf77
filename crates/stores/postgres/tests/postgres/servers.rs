//! Several servers on one database.

use taskyard_conformance::block_on;
use taskyard_core::{Command, Kind, Outcome, Reply, SessionId, Span, TubeOptions};
use taskyard_store::Store;
use taskyard_store_postgres::PostgresStore;

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::postgres::{Database, run, sql, wait_until};

use taskyard_testkit::suite::servers::{join, take_as};

taskyard_testkit::server_suite!(taskyard_testkit::postgres::SharedPostgres);

const SESSION: SessionId = SessionId([7; 16]);

// The end of a session whose first server died would be reported as the death of a server, although it had come back.
#[test]
fn a_session_that_comes_back_is_no_longer_lost() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let session = "'\\x07070707070707070707070707070707'";
        sql(
            &database.url(),
            &format!(
                "INSERT INTO taskyard.session VALUES ({session}, 9000000000000000);
                 INSERT INTO taskyard.connection VALUES ({session}, '', 0)"
            ),
        );
        join(&store, false);
        let marks = "SELECT count(*) FROM taskyard.connection WHERE count = 0";
        assert_eq!(sql(&database.url(), marks).as_deref(), Some("0"));
    });
}

// After the database hung for two or three seconds, the first server that came back declared another one dead whose last
// heartbeat was only a little older than its own.
#[test]
fn a_server_is_dead_only_after_two_heartbeats_of_another() {
    run(async {
        let database = Database::new();
        let url = database.url();
        wait_until(&url, "clock_timestamp() > pg_postmaster_start_time() + '1 second'");
        // Heartbeats every second: the database hung before the third one of server 0b, and server 0a sent one between the first two.
        sql(
            &url,
            "INSERT INTO taskyard.server (id, heartbeat, previous) VALUES
                ('\\x0a', taskyard.clock() - 3000000, NULL),
                ('\\x0b', taskyard.clock() - 500000, taskyard.clock() - 3500000)",
        );
        let beat = "SELECT lost FROM taskyard.heartbeat('\\x0b', 1000000, NULL)";
        assert_eq!(sql(&url, beat).as_deref(), Some("0"), "it missed one");
        assert_eq!(sql(&url, beat).as_deref(), Some("1"), "it missed two");
    });
}

// After the database stood still for five seconds, the first server that came back sent two heartbeats at once, the delayed one and the
// next, or repaired its rows before, and declared those dead whose own were still on their way.
#[test]
fn all_servers_may_return_after_a_standstill_of_the_database() {
    run(async {
        let database = Database::new();
        let url = database.url();
        wait_until(&url, "clock_timestamp() > pg_postmaster_start_time() + '4 seconds'");
        let repair = "SELECT taskyard.settle_server('\\x0b', '{}', '{}', '{}', 0, NULL)";
        let beat = "SELECT lost FROM taskyard.heartbeat('\\x0b', 4000000, NULL)";
        for first in [beat, repair] {
            sql(
                &url,
                "UPDATE taskyard.incarnation SET began = 0;
                 DELETE FROM taskyard.server;
                 INSERT INTO taskyard.server (id, heartbeat, previous) VALUES
                    ('\\x0a', taskyard.clock() - 6000000, NULL),
                    ('\\x0b', taskyard.clock() - 5500000, taskyard.clock() - 5900000)",
            );
            sql(&url, first);
            assert_eq!(sql(&url, beat).as_deref(), Some("0"), "after {first}");
            // The time to return is over.
            sql(&url, "UPDATE taskyard.incarnation SET began = 0");
            assert_eq!(sql(&url, beat).as_deref(), Some("1"), "after {first}");
        }
    });
}

// Each connection took a hundred lease numbers ahead: a delivery by one server had a smaller number than an earlier one by another, so
// that a resource which accepts only growing numbers refused the holder and accepted the one before.
#[test]
fn a_later_delivery_by_any_server_has_a_larger_lease() {
    run(async {
        let database = Database::new();
        let servers = [database.open(), database.open(), database.open()];
        let tube = make_tube(&servers[0], TubeOptions::new(Kind::Fifo));
        ask(&servers[0], put(&tube, 2)).expect("they are put");
        let mut last = [None; 2];
        for round in 0..30 {
            let store = &servers[round * 7 % servers.len()];
            for task in take(store, &tube, 2) {
                let before = last[task.id.0 as usize].replace(task.lease);
                assert!(before < Some(task.lease), "{before:?}, then {:?}", task.lease);
            }
            ask(store, Command::ReleaseAll { tube: tube.clone() }).expect("they are given back");
        }
    });
}

// Other servers had declared this one dead, and it had not noticed yet: the next take of a session that was connected to it all
// the time was refused, because the session was unknown.
#[test]
fn a_session_that_others_ended_is_restored_by_its_next_take() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 2)).expect("they are put");
        join(&store, true);
        let held = take_as(&store, &tube);
        sql(&database.url(), "SELECT taskyard.delete_server(v.id, 0) FROM taskyard.server v");
        let taken = take_as(&store, &tube);
        assert_eq!(ack(&store, &tube, &held), Outcome::Stale, "it goes on without what it held");
        assert_eq!(ack(&store, &tube, &taken), Outcome::Done(None));
        // It has one connection, as was answered to its client.
        let leave = Command::LeaveSession { session: SESSION };
        assert_eq!(ask(&store, leave), Ok(Reply::Nothing));
        let left = sql(&database.url(), "SELECT count(*) FROM taskyard.connection");
        assert_eq!(left.as_deref(), Some("0"));
    });
}

#[test]
fn what_one_server_counts_the_others_show_a_second_later() {
    run(async {
        let database = Database::new();
        let (here, there) = (database.open(), database.open());
        let tube = make_tube(&here, TubeOptions::new(Kind::Fifo));
        let counted = |store: &PostgresStore, second| {
            let tubes = Command::Tubes { tube: Some(tube.clone()) };
            let now = NOW + Span::from_secs(second);
            match block_on(store.execute(now, vec![tubes])).replies.remove(0) {
                Ok(Reply::Tubes(tubes)) => {
                    (tubes[0].stats.calls.put, tubes[0].stats.calls.ack, tubes[0].stats.tasks.done)
                }
                other => panic!("a tube was expected, not {other:?}"),
            }
        };
        ask(&here, put(&tube, 3)).expect("they are put");
        assert_eq!(counted(&here, 0), (3, 0, 0), "who counted shows it at once");
        let task = take(&there, &tube, 1).remove(0);
        assert_eq!(ack(&there, &tube, &task), Outcome::Done(None));
        assert_eq!(counted(&here, 1), (3, 0, 0));
        assert_eq!(counted(&there, 1), (3, 1, 1));
        assert_eq!(counted(&here, 1), (3, 1, 1));
        // A server that stops adds its counts; one that is killed loses its last second.
        ask(&there, put(&tube, 1)).expect("it is put");
        there.close().await.expect("it closes");
        let killed = database.open();
        ask(&killed, put(&tube, 1)).expect("it is put");
        assert_eq!(counted(&killed, 5), (5, 1, 1));
        ask(&killed, put(&tube, 7)).expect("they are put");
        drop(killed);
        assert_eq!(counted(&here, 6), (5, 1, 1));
        ask(&here, Command::Truncate { tube: tube.clone() }).expect("it is emptied");
        ask(&here, Command::DropTube { tube: tube.clone() }).expect("it is dropped");
        ask(&here, Command::Tick { limit: 1, seed: 0 }).expect("it ticks");
        let again = Command::Tick { limit: 1, seed: 0 };
        block_on(here.execute(NOW + Span::from_secs(9), vec![again]));
        let left = sql(&database.url(), "SELECT count(*) FROM taskyard.counter");
        assert_eq!(left.as_deref(), Some("0"));
    });
}

// The repair of session rows did not renew the heartbeat: the next heartbeat of another server declared this one dead, and it
// had to repair its rows again.
#[test]
fn a_repair_of_session_rows_counts_as_a_heartbeat() {
    run(async {
        let database = Database::new();
        let url = database.url();
        sql(&url, "INSERT INTO taskyard.server VALUES ('\\x0a', 0), ('\\x0b', taskyard.clock())");
        sql(&url, "SELECT taskyard.settle_server('\\x0a', '{}', '{}', '{}', 0, NULL)");
        let lost = sql(&url, "SELECT lost FROM taskyard.heartbeat('\\x0b', 3600000000, NULL)");
        assert_eq!(lost.as_deref(), Some("0"));
        let heard = "SELECT heartbeat > taskyard.clock() - 3600000000 FROM taskyard.server
            WHERE id = '\\x0a'";
        assert_eq!(sql(&url, heard).as_deref(), Some("t"));
    });
}

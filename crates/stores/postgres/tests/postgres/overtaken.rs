//! Pairs of transactions of which one waits for a lock of the other and then sees its changes.

use taskyard_core::{Kind, TubeOptions};
use tokio_postgres::Client;

use taskyard_testkit::calls::make_tube;
use taskyard_testkit::postgres::{Database, check_counts, connect, run, runtime, sql};

/// A second in the tests' own time.
const SECOND: i64 = 1_000_000;

async fn number(client: &Client, text: &str) -> i64 {
    let row = client.query_one(text, &[]).await.expect("it answers");
    row.get::<_, i32>(0).into()
}

/// Runs `first` in a transaction that stays open until `second`, in one of its own, waits for it or is through.
fn overtake(database: &Database, first: &str, second: &str) {
    runtime().block_on(async {
        let url = database.url();
        let (one, other, watch) = (connect(&url).await, connect(&url).await, connect(&url).await);
        one.batch_execute(&format!("BEGIN; {first}")).await.expect("the first is done");
        let process = number(&other, "SELECT pg_backend_pid()").await;
        let second = second.to_owned();
        let second = tokio::spawn(async move { other.batch_execute(&second).await });
        let blocked = format!("SELECT cardinality(pg_blocking_pids({process}))");
        while !second.is_finished() && number(&watch, &blocked).await == 0 {}
        one.batch_execute("COMMIT").await.expect("the first commits");
        second.await.expect("it runs").expect("the second is done");
    });
}

fn with_task(kind: Kind) -> Database {
    let database = Database::new();
    let store = database.open();
    make_tube(&store, TubeOptions::new(kind));
    sql(&database.url(), "SELECT taskyard.put('mail', '1')");
    database
}

fn take(session: &str, lease: &str, now: i64) -> String {
    format!(
        "SELECT taskyard.take_tasks('mail', {now}, 1, {session}, {lease}, 1000, NULL, NULL, true)"
    )
}

fn tick(now: i64) -> String {
    format!("SELECT taskyard.tick({now}, 100, NULL)")
}

// A tick selected a lease that was over and waited for a touch that came in time: the touch was acknowledged, and then the
// tick released the task, since the lease still had the same number.
#[test]
fn a_touch_is_not_undone_by_a_tick_that_waited_for_it() {
    run(async {
        let database = with_task(Kind::FifoTtl);
        let url = database.url();
        let now: i64 = sql(&url, "SELECT taskyard.clock()").expect("a clock").parse().expect("it");
        sql(&url, &take("NULL", &SECOND.to_string(), now));
        let lease = sql(&url, "SELECT lease FROM taskyard.task").expect("it is taken");
        let span = 60 * SECOND;
        let touch = format!(
            "SELECT taskyard.finish_tasks('mail', {now}, '{{0}}', NULL, '{{{lease}}}', NULL, '{{3}}',
                '{{{span}}}', '{{false}}', false, 1)"
        );
        overtake(&database, &touch, &tick(now + 2 * SECOND));
        let state = || sql(&url, "SELECT state FROM taskyard.task");
        assert_eq!(state().as_deref(), Some("1"), "it is held for another minute");
        check_counts(&url);
        sql(&url, &tick(now + 62 * SECOND));
        assert_eq!(state().as_deref(), Some("0"), "and no longer");
        check_counts(&url);
    });
}

// A take checked whether its session was alive without locking it: a session that ended at that moment left the task taken
// without a session, where no tick found it.
#[test]
fn a_task_taken_while_its_session_ends_is_released() {
    run(async {
        let database = with_task(Kind::Fifo);
        let url = database.url();
        sql(&url, "SELECT taskyard.join_session('\\x03', true, '\\x0b', 1)");
        let leave = "SELECT taskyard.leave_session('\\x03', '\\x0b', 1)";
        overtake(&database, &take("'\\x03'", "NULL", 1), leave);
        let held = sql(&url, "SELECT count(*) FROM taskyard.task WHERE state = 1");
        assert_eq!(held.as_deref(), Some("0"));
        check_counts(&url);
    });
}

// A session joined at another server while its old server was deleted; its connections had been read before, so it was ended
// although it had one.
#[test]
fn a_session_that_joins_another_server_outlives_its_own() {
    run(async {
        let partings = [
            "SELECT taskyard.delete_server('\\x0a', 1)",
            "SELECT taskyard.settle_server('\\x0a', '{}', '{}', '{}', 0, 1)",
        ];
        for parting in partings {
            let database = Database::new();
            let url = database.url();
            sql(&url, "SELECT taskyard.join_session('\\x01', true, '\\x0a', 1)");
            let join = "SELECT taskyard.join_session('\\x01', false, '\\x0b', 1)";
            overtake(&database, join, parting);
            let lives = sql(&url, "SELECT ends IS NULL FROM taskyard.session");
            assert_eq!(lives.as_deref(), Some("t"), "{parting}");
        }
    });
}

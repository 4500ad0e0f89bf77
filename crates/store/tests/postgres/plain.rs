//! What plain SQL can do.

use taskyard_core::{Kind, Span, TubeOptions};
use taskyard_store::postgres::Clock;
use taskyard_store::postgres::PostgresStore;

use crate::database::{Database, cluster, make_tube, run, sql, take};

/// JSON and the MessagePack it becomes.
const VALUES: &[(&str, &str)] = &[
    ("null", "c0"),
    ("true", "c3"),
    ("false", "c2"),
    ("0", "00"),
    ("127", "7f"),
    ("128", "cc80"),
    ("255", "ccff"),
    ("256", "cd0100"),
    ("65535", "cdffff"),
    ("65536", "ce00010000"),
    ("4294967295", "ceffffffff"),
    ("4294967296", "cf0000000100000000"),
    ("18446744073709551615", "cfffffffffffffffff"),
    ("-1", "ff"),
    ("-32", "e0"),
    ("-33", "d0df"),
    ("-128", "d080"),
    ("-129", "d1ff7f"),
    ("-32769", "d2ffff7fff"),
    ("-2147483649", "d3ffffffff7fffffff"),
    ("1.5", "cb3ff8000000000000"),
    (r#""hé""#, "a368c3a9"),
    ("[]", "90"),
    (r#"[1, "a", null]"#, "9301a161c0"),
    ("{}", "80"),
    (r#"{"a": {"b": [true]}}"#, "81a16181a16291c3"),
];

#[test]
fn json_becomes_message_pack() {
    run(async {
        let database = Database::new();
        for (json, bytes) in VALUES {
            let text = format!("SELECT encode(taskyard.msgpack('{json}'), 'hex')");
            assert_eq!(sql(&database.url(), &text).as_deref(), Some(*bytes), "{json}");
        }
        let text = "SELECT left(encode(taskyard.msgpack(to_jsonb(repeat('x', 70000))), 'hex'), 10)";
        assert_eq!(sql(&database.url(), text).as_deref(), Some("db00011170"));
    });
}

#[test]
fn a_task_is_put_with_everything() {
    run(async {
        let database = Database::new();
        let store = PostgresStore::open(&database.url(), Clock::Database).expect("it opens");
        let tube = make_tube(&store, TubeOptions::new(Kind::UtubeTtl));
        let text = r#"SELECT taskyard.put('mail', '{"to": 1}', pri => 3, ttl => '1 day',
            ttr => '5 minutes', subqueue => 'ann')"#;
        assert_eq!(sql(&database.url(), text).as_deref(), Some("0"));
        sql(&database.url(), "SELECT taskyard.put('mail', '1', delay => '1 hour')");
        let tasks = take(&store, &tube, 9);
        assert_eq!(tasks.len(), 1);
        let task = &tasks[0];
        assert_eq!((task.pri, task.subqueue.as_deref()), (3, Some("ann")));
        assert_eq!(task.ttr, Span::from_secs(300));
        assert_eq!(task.expires, task.created + Span::from_secs(24 * 3600));
        assert_eq!(task.body.as_ref().map(|body| body.payload()), Some(&b"\x81\xa2to\x01"[..]));
    });
}

#[test]
fn a_put_that_cannot_be_says_why() {
    run(async {
        let database = Database::new();
        let store = database.open();
        make_tube(&store, TubeOptions { capacity: Some(1), ..TubeOptions::new(Kind::Fifo) });
        let refusals = [
            ("SELECT taskyard.put('nowhere', '1')", "undefined_object"),
            ("SELECT taskyard.put('mail', '1', pri => -1)", "check_violation"),
            ("SELECT taskyard.put('mail', NULL)", "check_violation"),
            ("SELECT taskyard.put_raw('mail', NULL)", "check_violation"),
            (
                "SELECT taskyard.put('mail', to_jsonb(repeat('x', 67108864)))",
                "program_limit_exceeded",
            ),
            (
                "SELECT taskyard.put('mail', '1'); SELECT taskyard.put('mail', '2')",
                "program_limit_exceeded",
            ),
        ];
        for (put, refusal) in refusals {
            let text = put.replace("SELECT", "PERFORM");
            let text = format!("DO $$ BEGIN {text}; EXCEPTION WHEN {refusal} THEN RETURN; END $$");
            let missed = text.replace("; EXCEPTION", "; RAISE 'not refused'; EXCEPTION");
            sql(&database.url(), &missed);
        }
        assert_eq!(
            sql(&database.url(), "SELECT count(*) FROM taskyard.task").as_deref(),
            Some("0")
        );
    });
}

// A transaction that sees the world as it was when it began counted the tasks of that time: three fitted
// into a tube of three that was full.
#[test]
fn a_transaction_that_cannot_count_does_not_put_where_tasks_are_counted() {
    run(async {
        let database = Database::new();
        let store = database.open();
        make_tube(&store, TubeOptions { capacity: Some(1), ..TubeOptions::new(Kind::Fifo) });
        let put = "DO $$ BEGIN PERFORM taskyard.put('mail', '1'); RAISE 'not refused';
            EXCEPTION WHEN feature_not_supported THEN RETURN; END $$";
        for level in ["REPEATABLE READ", "SERIALIZABLE"] {
            sql(&database.url(), &format!("BEGIN ISOLATION LEVEL {level}; {put}; COMMIT"));
        }
        let put = "BEGIN; SELECT taskyard.put('mail', '1'); COMMIT";
        assert_eq!(sql(&database.url(), put).as_deref(), Some("0"));
    });
}

// To put a task one needed every right to every table, and nothing said which.
#[test]
fn who_was_granted_to_put_can_put_and_nothing_else() {
    run(async {
        let database = Database::on(cluster());
        let store = database.open();
        make_tube(&store, TubeOptions { capacity: Some(9), ..TubeOptions::new(Kind::Utube) });
        let url = database.url();
        sql(&url, "CREATE ROLE clerk; GRANT USAGE ON SCHEMA taskyard TO clerk");
        let refused = |text: &str| {
            let text = format!(
                "SET ROLE clerk; DO $$ BEGIN PERFORM {text}; RAISE 'not refused';
                EXCEPTION WHEN insufficient_privilege THEN RETURN; END $$"
            );
            sql(&url, &text);
        };
        refused("taskyard.put('mail', '1')");
        sql(&url, "GRANT EXECUTE ON FUNCTION taskyard.put, taskyard.put_raw TO clerk");
        let put = "SET ROLE clerk; SELECT taskyard.put('mail', '1')";
        assert_eq!(sql(&url, put).as_deref(), Some("0"));
        refused("1 FROM taskyard.task");
        sql(&url, "DROP OWNED BY clerk; DROP ROLE clerk");
    });
}

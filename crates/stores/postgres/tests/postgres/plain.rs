//! Puts by plain SQL.

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, NewTask, Priority, Reply, SemaphoreChange,
    SemaphoreCommand, SemaphoreKey, Span, Take, TaskId, TubeName, TubeOptions,
};
use taskyard_store::{MemoryStore, Store};
use taskyard_store_postgres::{Clock, PostgresStore};

use taskyard_testkit::calls::{NOW, make_tube, take};
use taskyard_testkit::postgres::{Database, cluster, run, sql};

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
fn a_task_is_put_with_all_options() {
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
fn a_refused_put_names_the_reason() {
    run(async {
        let database = Database::new();
        let store = database.open();
        make_tube(&store, TubeOptions { capacity: Some(1), ..TubeOptions::new(Kind::Fifo) });
        let (tube, options) =
            (TubeName::new("orders").expect("a name"), TubeOptions::new(Kind::Utube));
        let create = Command::CreateTube { tube, options, if_not_exists: false };
        block_on(store.execute(NOW, vec![create])).replies.remove(0).expect("it is made");
        let refusals = [
            ("SELECT taskyard.put('nowhere', '1')", "undefined_object"),
            ("SELECT taskyard.put('mail', '1', pri => -1)", "check_violation"),
            ("SELECT taskyard.put('mail', '1', semaphore_priority => 1)", "check_violation"),
            ("SELECT taskyard.put('mail', '1', semaphore_priority => 'NaN')", "check_violation"),
            (
                "SELECT taskyard.put('mail', '1', semaphore_priority => '-infinity')",
                "check_violation",
            ),
            // The delay was ignored silently.
            (
                "SELECT taskyard.put('mail', '1', delay => '1 hour', at => '2100-01-01')",
                "check_violation",
            ),
            // The sub-queue was ignored silently.
            ("SELECT taskyard.put('mail', '1', subqueue => 'x')", "check_violation"),
            ("SELECT taskyard.put_raw('mail', '\\x01', subqueue => 'x')", "check_violation"),
            ("SELECT taskyard.put('orders', '1', subqueue => U&'nna\\202e')", "check_violation"),
            ("SELECT taskyard.put('nowhere', '1', subqueue => 'x')", "undefined_object"),
            ("SELECT taskyard.put('mail', NULL)", "check_violation"),
            ("SELECT taskyard.put_raw('mail', NULL)", "check_violation"),
            (
                "SELECT taskyard.put_raw('mail', convert_to(repeat('x', 67108865), 'UTF8'))",
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

// A transaction with a snapshot of its beginning counted the tasks of that time: three were accepted by a full tube of
// three.
#[test]
fn a_repeatable_read_transaction_cannot_put_into_a_tube_with_a_capacity() {
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

/// A semaphore with two places, and a tube with it.
fn gated(store: &dyn Store) -> TubeName {
    let key = SemaphoreKey::new("yang").expect("a key");
    let change = Box::new(SemaphoreChange::limits(2, 2));
    let configure = SemaphoreCommand::Configure { key: key.clone(), change, only_new: false };
    let options = TubeOptions { semaphore: Some(key), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = TubeName::new("checks").expect("a name");
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    let made = block_on(store.execute(NOW, vec![Command::Semaphore(configure), create])).replies;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    tube
}

/// Takes the tasks one by one: the id, the priority in the semaphore and whether it was ready at once.
fn in_order(store: &dyn Store, tube: &TubeName) -> Vec<(TaskId, Option<Priority>)> {
    let mut order = Vec::new();
    loop {
        let (count, tube) = (1, tube.clone());
        let take = Take {
            tube: tube.clone(),
            count,
            session: None,
            lease: None,
            worker: None,
            wait: Span::ZERO,
        };
        let reply = block_on(store.execute(NOW, vec![Command::Take(take)])).replies.remove(0);
        let Ok(Reply::Taken(tasks)) = reply else { panic!("{reply:?}") };
        let Some(task) = tasks.first() else { return order };
        order.push((task.id, task.semaphore_priority));
        let items = vec![FinishItem { id: task.id, holder: Holder::Any, finish: Finish::Ack }];
        let ack = Command::Finish { tube, items, show: false };
        block_on(store.execute(NOW, vec![ack])).replies.remove(0).expect("it is acked");
    }
}

/// A put by SQL can name the priority of a task in its semaphore; the order is compared with the core's.
#[test]
fn a_task_is_put_with_a_priority_for_its_semaphore() {
    run(async {
        let puts = [
            (None, None),
            (Some(3), None),
            (None, Some(2.5)),
            (Some(1), Some(-7.0)),
            (Some(9), Some(1e300)),
            (Some(2), Some(2.5)),
            (None, Some(-0.5)),
        ];
        let database = Database::new();
        let store = PostgresStore::open(&database.url(), Clock::Database).expect("it opens");
        let rules = MemoryStore::default();
        let tube = gated(&store);
        assert_eq!(gated(&rules), tube);
        for (id, (pri, semaphore_priority)) in puts.into_iter().enumerate() {
            let number = |number: Option<f64>| number.map_or("NULL".into(), |n| format!("'{n:e}'"));
            let text = format!(
                "SELECT taskyard.put('checks', '1', pri => {}, semaphore_priority => {})",
                pri.map_or("NULL".into(), |pri: u64| pri.to_string()),
                number(semaphore_priority)
            );
            assert_eq!(sql(&database.url(), &text), Some(id.to_string()), "{text}");
            let priority = semaphore_priority.map(|value| Priority::new(value).expect("a number"));
            let new = NewTask::new(Body::new(&[1]));
            let task = NewTask { pri, semaphore_priority: priority, ..new };
            let put = Command::Put { tube: tube.clone(), tasks: vec![task], wait: Span::ZERO };
            block_on(rules.execute(NOW, vec![put])).replies.remove(0).expect("it is put");
        }
        let order = in_order(&rules, &tube);
        assert_eq!(order.len(), puts.len());
        assert_eq!(in_order(&store, &tube), order);
        for view in ["semaphore_audit", "gate_audit"] {
            assert_eq!(sql(&database.url(), &format!("SELECT * FROM taskyard.{view}")), None);
        }
    });
}

/// The functions before tasks had priorities for semaphores.
const OLDER: &str = "
DROP FUNCTION taskyard.put; DROP FUNCTION taskyard.put_raw;
CREATE FUNCTION taskyard.put_raw(tube text, payload bytea, pri bigint DEFAULT NULL, ttl interval DEFAULT NULL,
    ttr interval DEFAULT NULL, delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    subqueue text DEFAULT NULL, meta bytea DEFAULT NULL)
RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint';
CREATE FUNCTION taskyard.put(tube text, data jsonb, pri bigint DEFAULT NULL, ttl interval DEFAULT NULL,
    ttr interval DEFAULT NULL, delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    subqueue text DEFAULT NULL)
RETURNS bigint LANGUAGE sql AS 'SELECT taskyard.put_raw(tube, taskyard.msgpack(data), pri, ttl, ttr, delay, at, subqueue)';
REVOKE EXECUTE ON FUNCTION taskyard.put, taskyard.put_raw FROM PUBLIC;
UPDATE taskyard.version SET functions = 13;";

/// A function with one more argument is another function: an upgrade must not make calls ambiguous, nor revoke the privilege
/// to call it.
#[test]
fn an_upgrade_keeps_privileges_and_dependent_objects() {
    run(async {
        let database = Database::on(cluster());
        let tube = make_tube(&database.open(), TubeOptions::new(Kind::FifoTtl));
        let url = database.url();
        sql(&url, OLDER);
        sql(
            &url,
            "CREATE ROLE \"the porter\"; GRANT USAGE ON SCHEMA taskyard TO \"the porter\";
            GRANT EXECUTE ON FUNCTION taskyard.put TO \"the porter\";
            CREATE VIEW public.post AS SELECT taskyard.put('mail', '1') AS id",
        );
        let store = database.open();
        let put = "SET ROLE \"the porter\"; SELECT taskyard.put('mail', '1', pri => 3)";
        assert_eq!(sql(&url, put).as_deref(), Some("0"));
        assert_eq!(sql(&url, "SELECT id FROM public.post").as_deref(), Some("1"));
        assert_eq!(take(&store, &tube, 9).len(), 2);
        let raw = "SELECT has_function_privilege('the porter', p.oid, 'EXECUTE') FROM pg_proc p \
                   WHERE p.proname = 'put_raw'";
        assert_eq!(sql(&url, raw).as_deref(), Some("f"), "it could not call that before");
        sql(&url, "DROP OWNED BY \"the porter\"; DROP ROLE \"the porter\"");
    });
}

// A put by SQL needed all privileges on all tables, which was not documented.
#[test]
fn a_user_with_the_privilege_to_put_can_only_put() {
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

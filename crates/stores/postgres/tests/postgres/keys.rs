//! Unique keys with several servers, with transactions of plain SQL, and after the upgrade of an earlier format.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::Barrier;
use std::thread;

use taskyard_conformance::block_on;
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    Body, Command, Error, Key, KeyRequest, Kind, NewTask, OnConflict, Placed, Reply, Span, State,
    TaskId, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_postgres::PostgresStore;
use tokio::sync::mpsc::unbounded_channel;
use tokio_postgres::{AsyncMessage, NoTls};

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, take};
use taskyard_testkit::postgres::{Database, check_counts, cluster, connect, run, runtime, sql};

const SERVERS: usize = 3;

fn keyed(key: &str) -> NewTask {
    let request = KeyRequest::new(Key::new(key).expect("a good key"));
    NewTask { key: Some(Box::new(request)), ..NewTask::new(Body::new(&[0xc0])) }
}

fn unique_for(seconds: u64, key: &str) -> NewTask {
    let mut task = keyed(key);
    task.key.as_mut().expect("a key").held.unique_for = Span::from_secs(seconds);
    task
}

fn replacing(key: &str) -> NewTask {
    let mut task = keyed(key);
    task.key.as_mut().expect("a key").on_conflict = OnConflict::Replace;
    task
}

fn put(tube: &TubeName, tasks: Vec<NewTask>) -> Command {
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

fn place(store: &PostgresStore, tube: &TubeName, task: NewTask) -> Placed {
    match ask(store, put(tube, vec![task])) {
        Ok(Reply::Put(placed)) => placed[0],
        other => panic!("a put answered {other:?}"),
    }
}

/// Panics if keys and tasks contradict each other, or the count of ended keys is wrong.
fn check_keys(url: &str) {
    let wrong = sql(
        url,
        "SELECT string_agg(coalesce(t.key, k.key), ', ') FROM taskyard.task t \
         FULL JOIN (SELECT * FROM taskyard.key WHERE until IS NULL) k ON (k.tube, k.key, k.id) = (t.tube, t.key, t.id) \
         WHERE (t.key IS NOT NULL OR k.key IS NOT NULL) AND (t.id IS NULL OR k.id IS NULL)",
    );
    assert_eq!(wrong, None, "keys without a task, or tasks without their key");
    let ended = sql(
        url,
        "SELECT (SELECT coalesce(sum(ended), 0) FROM taskyard.count) - count(*) FROM taskyard.key \
         WHERE until IS NOT NULL",
    );
    assert_eq!(ended.as_deref(), Some("0"), "ended keys are counted");
    let forgotten = sql(
        url,
        "SELECT string_agg(k.key, ', ') FROM taskyard.key k WHERE k.until IS NOT NULL AND NOT EXISTS ( \
            SELECT 1 FROM taskyard.ended_keys e WHERE (e.tube, e.until) = (k.tube, k.until) AND k.key = ANY (e.keys))",
    );
    assert_eq!(forgotten, None, "ended keys that no tick will find");
    check_counts(url);
}

/// Panics if transactions in this database waited for each other in a circle.
fn check_deadlocks(url: &str) {
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(sql(url, deadlocks).as_deref(), Some("0"));
}

/// Numbers below `count` in an order that depends on the seed.
fn shuffled(count: usize, mut seed: u64) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.swap(last, (seed >> 33) as usize % (last + 1));
    }
    all
}

/// Servers that put the same keys in different orders, alone and in batches, add each once, and never
/// wait for each other in a circle.
#[test]
fn the_same_keys_of_several_servers_are_added_once() {
    run(async {
        let database = Database::on(cluster());
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let barrier = Barrier::new(SERVERS);
        let puts = |server: u64| {
            let store = database.open();
            barrier.wait();
            let mut placed = Vec::new();
            for round in 0..4 {
                let keys = shuffled(60, server * 10 + round);
                for chunk in keys.chunks(20) {
                    // Two puts of one batch name the same key, so that it has several calls.
                    let task = |key: &usize| keyed(&format!("key {key}"));
                    let first = put(&tube, chunk.iter().map(task).collect());
                    let again = put(&tube, chunk[..5].iter().rev().map(task).collect());
                    let single = put(&tube, vec![task(&keys[0])]);
                    let replies = block_on(store.execute(NOW, vec![first, again, single])).replies;
                    for reply in replies {
                        let Ok(Reply::Put(all)) = reply else { panic!("{reply:?}") };
                        placed.extend(all);
                    }
                }
            }
            placed
        };
        let placed: Vec<Placed> = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..SERVERS as u64).map(|server| scope.spawn(move || puts(server))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("it puts")).collect()
        });
        let ids: HashSet<TaskId> = placed.iter().map(|placed| placed.id).collect();
        let added = placed.iter().filter(|placed| !placed.existing).count();
        assert_eq!((ids.len(), added), (60, 60));
        let tasks = sql(&database.url(), "SELECT count(*) FROM taskyard.task");
        assert_eq!(tasks.as_deref(), Some("60"));
        check_keys(&database.url());
        check_deadlocks(&database.url());
    });
}

/// A put of many tasks with one key took minutes, because each of them was looked for among all.
#[test]
fn one_key_can_be_repeated_in_a_large_put() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let puts = [(keyed("a"), BATCH_TASKS_MAX / 2, false), (replacing("a"), 100, true)];
        for (task, count, first) in puts {
            let reply = ask(&store, put(&tube, vec![task; count])).expect("a put");
            let Reply::Put(placed) = reply else { panic!("{reply:?}") };
            assert_eq!(placed.len(), count);
            let id = placed[0].id;
            assert!(placed.iter().skip(1).all(|placed| placed.existing && placed.id == id));
            assert_eq!(placed[0].existing, first);
        }
        check_keys(&database.url());
    });
}

/// What servers set on their connections, and that every plan is sent to the client with the rows that it handled.
const SHOW_PLANS: &str = "
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_analyze = on;
SET auto_explain.log_timing = off;
SET auto_explain.log_nested_statements = on;
SET client_min_messages = log;
";

/// Runs SQL as a server does. Returns the largest number of rows that a node of a plan returned or compared in vain.
async fn most_rows_of_a_node(url: &str, text: &str) -> u64 {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
    let (sender, mut messages) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notice(notice) = message {
                _ = sender.send(notice.message().to_owned());
            }
        }
    });
    client.batch_execute(SHOW_PLANS).await.expect("it can show plans");
    client.batch_execute(text).await.unwrap_or_else(|error| panic!("{text}: {error}"));
    drop(client);
    let number = |line: &str, name: &str| -> u64 {
        let digits = line.split_once(name).map_or("0", |(_, rest)| rest);
        let digits = digits.split(|char: char| !char.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    };
    let (mut most, mut plans) = (0, 0);
    while let Some(message) = messages.recv().await {
        plans += 1;
        for line in message.lines() {
            let handled = number(line, "(actual rows=") * number(line, " loops=");
            most = most.max(handled).max(number(line, "Rows Removed by Join Filter: "));
        }
    }
    assert!(plans > 10, "{plans} plans were shown");
    most
}

/// A put of one key ten thousand times that replaced with some took 25 s: results were joined with each other row by row, because
/// servers switch off the kinds of joins that the functions need there.
#[test]
fn a_repeated_key_is_not_compared_with_all_tasks_of_its_put() {
    run(async {
        let database = Database::new();
        let store = database.open();
        make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let put = "SELECT p.status FROM (SELECT array_agg('\\xc0'::bytea) AS payloads, array_agg('k'::text) AS keys, \
                array_agg(0::bigint) AS spans, array_agg(n % 3 <> 0) AS replaces, \
                array_agg(CASE WHEN n % 5 = 0 THEN 9000000 END::bigint) AS delays FROM generate_series(0, 1999) n) n \
            CROSS JOIN LATERAL taskyard.put_keyed('mail', 0, ARRAY[2000], payloads, NULL, NULL, NULL, NULL, delays, NULL, NULL, \
                NULL, keys, spans, replaces, NULL, ARRAY[1999, 1]) p";
        let most = runtime().block_on(most_rows_of_a_node(&database.url(), put));
        assert!((2000..=20_000).contains(&most), "a plan handled {most} rows");
        check_keys(&database.url());
    });
}

/// Servers that replace, take and ack tasks with a few keys at the same time leave keys and tasks that agree.
#[test]
fn replaced_and_ended_tasks_agree_with_their_keys() {
    run(async {
        let database = Database::on(cluster());
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let work = |server: u64| {
            let store = database.open();
            for key in shuffled(200, server) {
                let key = format!("key {}", key % 7);
                let task = if server == 0 { unique_for(0, &key) } else { replacing(&key) };
                place(&store, &tube, task);
                for task in take(&store, &tube, 2) {
                    ack(&store, &tube, &task);
                }
            }
        };
        thread::scope(|scope| {
            for server in 0..SERVERS as u64 {
                scope.spawn(move || work(server));
            }
        });
        check_keys(&database.url());
        check_deadlocks(&database.url());
        for task in take(&store, &tube, 100) {
            ack(&store, &tube, &task);
        }
        let left = sql(&database.url(), "SELECT count(*) FROM taskyard.key");
        assert_eq!(left.as_deref(), Some("0"));
    });
}

/// A put of a server whose key an open transaction has put is refused after a short time, the others of its batch are done; after the
/// commit the key is held, after a rollback it is free.
#[test]
fn a_key_of_an_open_transaction_is_waited_for() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let client = runtime().block_on(connect(&database.url()));
        let execute =
            |text: &str| runtime().block_on(client.batch_execute(text)).expect("it is done");
        for (end, round) in [("ROLLBACK", 0), ("COMMIT", 1)] {
            execute("BEGIN; SELECT taskyard.put('mail', '1', key => 'k')");
            // Puts that share a call with a locked one were refused with it.
            let names = [format!("first {round}"), "k".into(), format!("last {round}")];
            let mut batch: Vec<Command> =
                names.iter().map(|name| put(&tube, vec![keyed(name)])).collect();
            batch.push(Command::Tubes { tube: None });
            let mut replies = block_on(store.execute(NOW, batch)).replies;
            for reply in [replies.remove(0), replies.remove(1)] {
                assert!(
                    matches!(&reply, Ok(Reply::Put(placed)) if !placed[0].existing),
                    "{reply:?}"
                );
            }
            let Err(Error::StoreUnavailable(why)) = &replies[0] else { panic!("{replies:?}") };
            assert!(why.contains("locked by an open transaction"), "{why}");
            assert!(replies[1].is_ok(), "{replies:?}");
            let other = place(&store, &tube, keyed(&format!("other {round}")));
            assert!(!other.existing, "another key is free");
            execute(end);
            let placed = place(&store, &tube, keyed("k"));
            assert_eq!((placed.existing, placed.state), (round == 1, State::Ready), "{end}");
            let delete = Command::Delete { tube: tube.clone(), ids: vec![placed.id], show: false };
            ask(&store, delete).expect("it is deleted");
        }
        check_keys(&database.url());
    });
}

/// Plain SQL waits for the transaction that has put the key, and then sees whether it has committed.
#[test]
fn plain_sql_waits_for_a_key() {
    run(async {
        let database = Database::new();
        let store = database.open();
        make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let url = database.url();
        runtime().block_on(async {
            let (first, second) = (connect(&url).await, connect(&url).await);
            let put = "SELECT taskyard.put('mail', '1', key => 'k', unique_for => '1 hour')";
            for end in ["ROLLBACK", "COMMIT"] {
                first.batch_execute(&format!("BEGIN; {put}")).await.expect("it is put");
                let wait = "SET lock_timeout = 50";
                second.batch_execute(wait).await.expect("it is set");
                let refusal = second.batch_execute(put).await.expect_err("the key is locked");
                let code = refusal.code().map(tokio_postgres::error::SqlState::code);
                assert_eq!(code, Some("55P03"), "lock_not_available");
                second.batch_execute("SET lock_timeout = 0").await.expect("it is set");
                let waiting = second.query_typed(put, &[]);
                let ended = first.batch_execute(end);
                let (row, ended) = tokio::join!(waiting, ended);
                ended.expect("it ends");
                let id: i64 = row.expect("it is put")[0].get(0);
                let tasks = "SELECT count(*) FROM taskyard.task WHERE id = $1";
                let count = tokio_postgres::types::Type::INT8;
                let found: i64 =
                    second.query_typed(tasks, &[(&id, count)]).await.expect("it is read")[0].get(0);
                assert_eq!(found, 1, "{end}");
                if end == "ROLLBACK" {
                    let clear = "DELETE FROM taskyard.task; DELETE FROM taskyard.key; \
                        DELETE FROM taskyard.count";
                    second.batch_execute(clear).await.expect("it is empty");
                }
            }
        });
        assert_eq!(sql(&url, "SELECT count(*) FROM taskyard.task").as_deref(), Some("1"));
        check_keys(&url);
    });
}

#[test]
fn plain_sql_refuses_bad_keys() {
    run(async {
        let database = Database::new();
        let store = database.open();
        make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let client = runtime().block_on(connect(&database.url()));
        let long = "x".repeat(129);
        for (options, reason) in [
            ("key => ''".to_owned(), "1 to 128 bytes"),
            (format!("key => '{long}'"), "1 to 128 bytes"),
            ("key => E'a\\nb'".to_owned(), "control character"),
            ("key => 'k', unique_for => '8 days'".to_owned(), "604800 seconds at most"),
            ("key => 'k', on_conflict => 'skip'".to_owned(), "keep or replace"),
            ("unique_for => '1 hour'".to_owned(), "need a key"),
            ("attempts_max => 0".to_owned(), "at least 1"),
        ] {
            let text = format!("SELECT taskyard.put('mail', '1', {options})");
            let refusal = runtime().block_on(client.batch_execute(&text)).expect_err("refused");
            let message = refusal.as_db_error().map_or("", |error| error.message());
            assert!(message.contains(reason), "{options}: {message}");
        }
        let replaced = "SELECT taskyard.put('mail', '2', key => 'k', on_conflict => 'replace')";
        let url = database.url();
        assert_eq!(sql(&url, "SELECT taskyard.put('mail', '1', key => 'k')").as_deref(), Some("0"));
        assert_eq!(sql(&url, replaced).as_deref(), Some("0"));
        let payload = sql(&url, "SELECT encode(payload, 'hex') FROM taskyard.task");
        assert_eq!(payload.as_deref(), Some("02"));
    });
}

/// A tick forgets keys that are free, and those that would be free first if there are too many.
#[test]
fn free_keys_are_forgotten() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        for (key, seconds) in [("a", 10), ("b", 20), ("c", 30)] {
            let placed = place(&store, &tube, unique_for(seconds, key));
            let delete = Command::Delete { tube: tube.clone(), ids: vec![placed.id], show: false };
            ask(&store, delete).expect("it is deleted");
        }
        let url = database.url();
        let keys = || sql(&url, "SELECT string_agg(key, '' ORDER BY key) FROM taskyard.key");
        // How many keys a tick forgets, and how many of them before their time.
        let tick = |later: u64| {
            let now = NOW + Span::from_secs(later);
            let mut ticked =
                block_on(store.execute(now, vec![Command::Tick { limit: 100, seed: 0 }]));
            let reply = ticked.replies.remove(0).expect("it ticks");
            (reply, ticked.effects.keys_freed_early)
        };
        assert_eq!(tick(9), (Reply::Ticked(0), 0));
        assert_eq!(keys().as_deref(), Some("abc"));
        assert_eq!(tick(10), (Reply::Ticked(1), 0));
        assert_eq!(keys().as_deref(), Some("bc"));
        check_keys(&url);
        // As if there were one more than a tube remembers.
        sql(
            &url,
            "INSERT INTO taskyard.count (tube, ended) SELECT number, 1000001 - (SELECT sum(ended) FROM taskyard.count) \
            FROM taskyard.tube",
        );
        assert_eq!(tick(11), (Reply::Ticked(1), 1));
        assert_eq!(keys().as_deref(), Some("c"), "the one that would be free first");
        assert_eq!(tick(11), (Reply::Ticked(0), 0));
    });
}

/// The keys of one call are in one row of the table that says when they are free. It stays as long as one of them has to be
/// forgotten: also one that an open transaction has locked, which may be taken back.
#[test]
fn keys_that_ended_together_are_forgotten_one_by_one() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let tasks = ["a", "b", "c", "d"].map(|key| unique_for(10, key)).into();
        ask(&store, put(&tube, tasks)).expect("they are put");
        let ids = take(&store, &tube, 4).iter().map(|task| task.id).collect();
        let delete = Command::Delete { tube: tube.clone(), ids, show: false };
        ask(&store, delete).expect("they are deleted");
        let url = database.url();
        let keys = || sql(&url, "SELECT string_agg(key, '' ORDER BY key) FROM taskyard.key");
        let rows = || sql(&url, "SELECT count(*) FROM taskyard.ended_keys").expect("a number");
        let tick = |limit: usize| {
            let tick = vec![Command::Tick { limit, seed: 0 }];
            let now = NOW + Span::from_secs(10);
            block_on(store.execute(now, tick)).replies.remove(0).expect("it ticks")
        };
        assert_eq!(rows(), "1");
        assert_eq!(tick(2), Reply::Ticked(2));
        // Any two of them.
        let rest = keys().expect("two are left");
        assert_eq!((rest.len(), rows().as_str()), (2, "1"), "{rest}");
        check_keys(&url);
        let locked = &rest[..1];
        let client = runtime().block_on(connect(&url));
        let execute =
            |text: &str| runtime().block_on(client.batch_execute(text)).expect("it is done");
        execute(&format!("BEGIN; SELECT 1 FROM taskyard.key WHERE key = '{locked}' FOR UPDATE"));
        assert_eq!(tick(9), Reply::Ticked(1));
        assert_eq!((keys().as_deref(), rows().as_str()), (Some(locked), "1"));
        execute("ROLLBACK");
        assert_eq!(tick(9), Reply::Ticked(1));
        assert_eq!((keys(), rows().as_str()), (None, "0"));
        check_keys(&url);
    });
}

/// Tasks that are deleted together may have ended at different moments, and some of their keys may be free at once.
#[test]
fn keys_that_end_together_are_held_for_different_times() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let times = [("a", 0), ("b", 10), ("c", 20), ("d", 10), ("e", 0)];
        let tasks = times.map(|(key, seconds)| unique_for(seconds, key)).into();
        ask(&store, put(&tube, tasks)).expect("they are put");
        let ids = take(&store, &tube, 5).iter().map(|task| task.id).collect();
        let delete = Command::Delete { tube: tube.clone(), ids, show: false };
        ask(&store, delete).expect("they are deleted");
        let url = database.url();
        let ended = "SELECT string_agg(keys::text, ' ' ORDER BY until) FROM taskyard.ended_keys";
        assert_eq!(sql(&url, ended).as_deref(), Some("{b,d} {c}"));
        check_keys(&url);
        let existing = times.map(|(key, _)| place(&store, &tube, keyed(key)).existing);
        assert_eq!(existing, [false, true, true, true, false]);
        check_keys(&url);
    });
}

/// A large put is tried as if all its keys were new after a search for three of them, a put of up to 16 after a search for all. A known
/// key anywhere in it must be found, and nothing of the attempt may stay.
#[test]
fn one_known_key_is_found_at_every_place_of_a_put() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let large = [0, 1, 34, 35, 36, 68, 69].map(|known| (70, known));
        let puts: Vec<(usize, usize)> = [&large[..], &[(16, 5), (16, 15), (17, 5)]].concat();
        for &(count, known) in &puts {
            let first = place(&store, &tube, keyed(&format!("known {count} {known}")));
            let tasks = (0..count).map(|place| match place == known {
                true => keyed(&format!("known {count} {known}")),
                false => keyed(&format!("new {count} {known} {place}")),
            });
            let Ok(Reply::Put(placed)) = ask(&store, put(&tube, tasks.collect())) else {
                panic!("a put was refused");
            };
            let existing: Vec<usize> = (0..count).filter(|place| placed[*place].existing).collect();
            assert_eq!(existing, [known]);
            assert_eq!(placed[known].id, first.id);
            let new = placed.iter().filter(|placed| !placed.existing);
            assert!(new.map(|placed| placed.id).is_sorted(), "ids are in the order of the put");
        }
        check_keys(&database.url());
        let tasks = sql(&database.url(), "SELECT count(*) FROM taskyard.task");
        assert_eq!(tasks, Some(puts.iter().map(|put| put.0).sum::<usize>().to_string()));
    });
}

/// Keys that were held when the database was upgraded are forgotten by the ticks after that.
#[test]
fn ended_keys_of_the_format_before_are_upgraded() {
    run(async {
        let database = Database::on(cluster());
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        for (key, seconds) in [("a", 10), ("b", 10), ("c", 20)] {
            let placed = place(&store, &tube, unique_for(seconds, key));
            let delete = Command::Delete { tube: tube.clone(), ids: vec![placed.id], show: false };
            ask(&store, delete).expect("it is deleted");
        }
        block_on(store.close()).expect("it closes");
        drop(store);
        let url = database.url();
        sql(
            &url,
            "DROP TABLE taskyard.ended_keys;
             CREATE INDEX key_until ON taskyard.key (tube, until) WHERE until IS NOT NULL;
             UPDATE taskyard.version SET tables = 16, functions = 23",
        );
        let store = database.open();
        check_keys(&url);
        let ended = "SELECT string_agg(keys::text, ' ' ORDER BY until) FROM taskyard.ended_keys";
        assert_eq!(sql(&url, ended).as_deref(), Some("{a,b} {c}"));
        let tick = vec![Command::Tick { limit: 100, seed: 0 }];
        let ticked = block_on(store.execute(NOW + Span::from_secs(10), tick)).replies.remove(0);
        assert_eq!(ticked, Ok(Reply::Ticked(2)));
        check_keys(&url);
    });
}

/// The keys of a database of the format before are used after the upgrade: none. An earlier program refuses the new format.
#[test]
fn the_format_before_is_upgraded() {
    run(async {
        let database = Database::on(cluster());
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        place(&store, &tube, NewTask::new(Body::new(&[0xc0])));
        block_on(store.close()).expect("it closes");
        drop(store);
        let url = database.url();
        sql(
            &url,
            "DROP TABLE taskyard.key, taskyard.ended_keys, taskyard.bucket, taskyard.schedule CASCADE;
             DROP TYPE taskyard.held_key CASCADE;
             DROP INDEX taskyard.done_key;
             ALTER TABLE taskyard.task DROP COLUMN key, DROP COLUMN unique_for, DROP COLUMN attempts_max;
             ALTER TABLE taskyard.done DROP COLUMN key, DROP COLUMN unique_for, DROP COLUMN attempts_max;
             ALTER TABLE taskyard.count DROP COLUMN ended;
             ALTER TYPE taskyard.shown DROP ATTRIBUTE key, DROP ATTRIBUTE attempts_max;
             ALTER TABLE taskyard.tube DROP COLUMN retry_delay, DROP COLUMN retry_factor, DROP COLUMN retry_delay_max,
                DROP COLUMN retry_jitter, DROP COLUMN retry_lost, DROP COLUMN rate_count, DROP COLUMN rate_per,
                DROP COLUMN rate_burst;
             ALTER TYPE taskyard.tube_info DROP ATTRIBUTE retry_delay, DROP ATTRIBUTE retry_factor,
                DROP ATTRIBUTE retry_delay_max, DROP ATTRIBUTE retry_jitter, DROP ATTRIBUTE retry_lost,
                DROP ATTRIBUTE rate_count, DROP ATTRIBUTE rate_per, DROP ATTRIBUTE rate_burst;
             UPDATE taskyard.version SET tables = 15, functions = 20",
        );
        let store = database.open();
        let placed = place(&store, &tube, keyed("k"));
        assert_eq!((placed.id, placed.existing), (TaskId(1), false));
        assert!(place(&store, &tube, keyed("k")).existing);
        assert_eq!(take(&store, &tube, 9).len(), 2);
        block_on(store.close()).expect("it closes");
        sql(&url, "UPDATE taskyard.version SET tables = tables + 1");
        let Err(refusal) = PostgresStore::open(&url, taskyard_store_postgres::Clock::Caller) else {
            panic!("a program of this version must not open a later format");
        };
        assert!(refusal.to_string().contains("18"), "{refusal}");
    });
}

//! Limits on running tasks and connections, retries and timeouts of remotes.

use std::time::Duration;

use crate::fixture::{Client, Fixture, run};
use taskyard_core::service::Service;
use taskyard_sql::table::TableName;
use taskyard_sql::{Config, Conninfo, Source, SqlTasks, TaskAdmin};
use taskyard_testkit::postgres::{Cluster, programs};

#[test]
fn a_scheduler_leaves_connections_for_others() {
    // It ran up to a thousand tasks and used every connection of a server with a hundred: not even a superuser could
    // log in while its tasks ran.
    run(async {
        let small = "max_connections = 30\nsuperuser_reserved_connections = 5\n";
        let cluster = Cluster::with(programs().expect("there is one"), 5432, |_| small.into());
        let conninfo = Conninfo::parse(&cluster.url("postgres")).expect("a URL");
        let source = Source::Inline(Config::single(&conninfo));
        let tasks = SqlTasks::start(conninfo.clone(), source, Duration::from_secs(40));
        let tasks = tasks.expect("it starts");
        let client = Client::new(&conninfo).await;
        client.until("to_regclass('task') IS NOT NULL").await;
        client.run("SELECT pg_advisory_lock(1)").await;
        client.run("INSERT INTO task (input, \"group\") SELECT 'select pg_advisory_lock_shared(1)', i::text FROM generate_series(1, 60) AS i").await;
        // Of 25 connections that are not reserved, 20 may be in use: the client, the scheduler and its sessions.
        let work = "(SELECT count(*) FROM task WHERE state = 'WORK')";
        client.until(&format!("{work} = 18")).await;
        let names = TableName { schema: "public".into(), table: "task".into() };
        let mut admin = TaskAdmin::open(&conninfo, names).await.expect("there is room for it");
        let waiting = async |admin: &mut TaskAdmin| {
            let tasks = admin.list(Some("PLAN"), 1).await.expect("a list");
            tasks.first().map(|task| task.why.name())
        };
        while waiting(&mut admin).await != Some("run_limit") {}
        let words = tasks.status()[0].status.clone();
        assert!(words.ends_with("limit reached (18 running)"), "{words}");
        // Another task waits too, and one on a remote does not.
        client.run("INSERT INTO task (input, \"group\") VALUES ('select 1', 'more')").await;
        let remote = crate::fixture::cluster().url("postgres");
        client
            .run(&format!("INSERT INTO task (input, remote) VALUES ('select 7', '{remote}')"))
            .await;
        client.until("EXISTS (SELECT FROM task WHERE output = '7')").await;
        let busy = "SELECT count(*) FROM task WHERE state IN ('TAKE', 'WORK')";
        assert_eq!(client.get(busy).await.as_deref(), Some("18"));
        client.run("SELECT pg_advisory_unlock_all()").await;
        client
            .until("62 = (SELECT count(*) FROM task WHERE state = 'DONE' AND error IS NULL)")
            .await;
        tasks.stop().await;
    });
}

#[test]
fn the_end_of_a_task_does_not_scan_all_waiting_groups() {
    // Each end read every waiting group and locked a row of each: with eight thousand groups tasks ran at a third of
    // the rate.
    run(async {
        let fixture = Fixture::with("\"run\": 2").await;
        fixture.run("SELECT pg_advisory_lock(9903)").await;
        fixture.run(
            "INSERT INTO task (input, \"group\") SELECT 'select pg_advisory_lock_shared(9903)', i::text FROM generate_series(1, 400) AS i",
        )
        .await;
        fixture.until("2 = (SELECT count(*) FROM task WHERE state = 'WORK')").await;
        let read = "SELECT pg_stat_clear_snapshot(), coalesce((SELECT sum(idx_scan) FROM pg_stat_user_indexes \
                    WHERE relid = 'task'::regclass), 0) AS scans";
        let scans = async || {
            let scans = fixture.get(&format!("SELECT scans FROM ({read}) x")).await;
            scans.and_then(|scans| scans.parse::<u64>().ok()).expect("a number")
        };
        let before = scans().await;
        fixture.run("SELECT pg_advisory_unlock_all()").await;
        fixture.idle().await;
        // The counts of a session are published when it is idle, at the latest when it ends.
        fixture.stop().await;
        let gone = format!(
            "NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'pg_work {} %')",
            fixture.schema
        );
        fixture.until(&gone).await;
        let scanned = scans().await - before;
        assert!(scanned < 40_000, "{scanned} scans of indexes for 400 tasks");
    });
}

#[test]
fn a_locked_row_does_not_block_waiting_groups() {
    // Waiting groups are claimed in order: a row that a user's transaction holds must not block the others.
    run(async {
        let fixture = Fixture::with("\"run\": 1").await;
        fixture.run("SELECT pg_advisory_lock(9904)").await;
        fixture.run("INSERT INTO task (input, \"group\") SELECT 'select pg_advisory_lock_shared(9904)', i::text FROM generate_series(1, 6) AS i").await;
        fixture.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        let other = Fixture::client(&fixture.schema).await;
        other.run("BEGIN; SELECT FROM task WHERE id IN (2, 3) FOR UPDATE").await;
        fixture.run("SELECT pg_advisory_unlock_all()").await;
        fixture.until("4 = (SELECT count(*) FROM task WHERE state = 'DONE')").await;
        other.run("COMMIT").await;
        fixture.idle().await;
        fixture.stop().await;
    });
}

#[test]
fn an_unreachable_remote_is_tried_up_to_attempts_max() {
    // attempts_max applied only to tasks that had started.
    run(async {
        let fixture = Fixture::new().await;
        let remote = "host=127.0.0.1 port=1";
        fixture.run(&format!("INSERT INTO task (input, remote, attempts_max, backoff) VALUES ('select 1', '{remote}', 3, '5 ms')")).await;
        fixture.idle().await;
        let row = fixture.get("SELECT concat_ws(' ', state, attempts, error LIKE '%could not connect%') FROM task").await;
        assert_eq!(row.as_deref(), Some("DONE 2 t"));
        fixture.stop().await;
    });
}

#[test]
fn a_timeout_covers_connecting() {
    // A remote that accepts the connection and sends nothing was waited for regardless of the timeout.
    run(async {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("it has one").port();
        let fixture = Fixture::new().await;
        let remote = format!("host=127.0.0.1 port={port} connect_timeout=3600");
        let values = format!(", '{remote}', 'select 1', '300 ms'");
        let (output, error) = fixture.output(", remote, input, timeout", &values).await;
        let expected = "ERROR:  could not connect to the remote\nDETAIL:  timeout expired";
        assert_eq!((output, error.as_deref()), (None, Some(expected)));
        fixture.stop().await;
    });
}

//! Crashes of the database while tasks run, with loss of what was not on disk.

use std::time::Duration;

use crate::fixture::{Client, Fixture, run};
use taskyard_core::service::Service;
use taskyard_sql::{Config, Conninfo, Source, SqlTasks};
use taskyard_testkit::postgres::{Cluster, programs};

/// A server that writes asynchronous commits only after ten seconds, with a scheduler.
struct Crashing {
    cluster: Cluster,
    conninfo: Conninfo,
    client: Client,
    tasks: SqlTasks,
}

impl Crashing {
    async fn new() -> Self {
        let programs = programs().expect("the test has looked for it");
        let cluster = Cluster::with(programs, 5432, |_| "wal_writer_delay = 10s\n".into());
        let conninfo = Conninfo::parse(&cluster.url("postgres")).expect("a URL");
        let source = Source::Inline(Config::single(&conninfo));
        let tasks = SqlTasks::start(conninfo.clone(), source, Duration::from_secs(40));
        let client = Client::new(&conninfo).await;
        client.until("to_regclass('task') IS NOT NULL").await;
        Crashing { cluster, conninfo, client, tasks: tasks.expect("it starts") }
    }

    /// Inserts a task, and writes its claim to disk with another commit, but not its start.
    async fn insert(&self, input: &str) {
        let client = &self.client;
        client.run("CREATE TABLE other (one integer)").await;
        // Sessions open slowly from here on, so that the task stays TAKE for a while.
        client.run("ALTER SYSTEM SET post_auth_delay = 2").await;
        client.run("SELECT pg_reload_conf()").await;
        let slow = async || {
            let session = Client::new(&self.conninfo).await;
            session.get("SHOW post_auth_delay").await
        };
        while slow().await.as_deref() != Some("2s") {}
        client.run(&format!("INSERT INTO task (input) VALUES ('{input}')")).await;
        client.until("EXISTS (SELECT FROM task WHERE state = 'TAKE')").await;
        client.run("INSERT INTO other VALUES (1)").await;
        client.run("ALTER SYSTEM RESET post_auth_delay").await;
    }

    async fn crash(&mut self) {
        self.cluster.kill();
        self.cluster.start();
        self.client = Client::new(&self.conninfo).await;
    }
}

/// Runs a case, unless there is no PostgreSQL.
fn crashing(case: impl AsyncFnOnce(Crashing)) {
    run(async {
        case(Crashing::new().await).await;
    });
}

#[test]
fn a_task_whose_start_was_lost_in_a_crash_runs_again_at_once() {
    // Its row was TAKE again, without a process. The scheduler returned the task with the process it knew, no row showed
    // that one, and the row waited an hour for the next reset, when the task had expired.
    crashing(async |mut crashing: Crashing| {
        let since = crashing.client.get("SELECT pg_postmaster_start_time()").await;
        let since = since.expect("it has started");
        crashing
            .insert(&format!(
                "select pg_sleep(CASE WHEN pg_postmaster_start_time() = ''{since}'' THEN 600 ELSE 0 END)"
            ))
            .await;
        crashing.client.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        crashing.crash().await;
        crashing.client.until("EXISTS (SELECT FROM task WHERE state = 'DONE')").await;
        let row = crashing.client.get("SELECT concat_ws(' ', error, attempts) FROM task").await;
        assert_eq!(row.as_deref(), Some("1"));
        crashing.tasks.stop().await;
    });
}

#[test]
fn an_outcome_is_written_although_the_start_was_lost_in_a_crash() {
    // The task had ended and its outcome was being written when the database crashed and lost the start: the outcome named a
    // process that the row did not show, and was discarded.
    crashing(async |mut crashing: Crashing| {
        let client = &crashing.client;
        client
            .run(
                "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.state = ''DONE'' \
                 THEN PERFORM pg_advisory_xact_lock(7); END IF; RETURN NEW; END'; \
                 CREATE TRIGGER slow BEFORE UPDATE ON task FOR EACH ROW EXECUTE PROCEDURE slow()",
            )
            .await;
        client.run("SELECT pg_advisory_lock(7)").await;
        crashing.insert("select pg_postmaster_start_time()").await;
        let client = &crashing.client;
        client
            .until("EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted)")
            .await;
        let since = client.get("SELECT pg_postmaster_start_time()").await;
        crashing.crash().await;
        crashing.client.until("EXISTS (SELECT FROM task WHERE state = 'DONE')").await;
        let row = crashing.client.get("SELECT output FROM task WHERE attempts = 0").await;
        assert_eq!(row, since, "it ran once, before the crash");
        crashing.tasks.stop().await;
    });
}

#[test]
fn a_task_on_a_remote_survives_a_crash_and_runs_once() {
    // Its claim was not on disk: after the crash the row was PLAN, and the task started a second time while it ran.
    crashing(async |mut crashing: Crashing| {
        let remote = Fixture::client("public").await;
        let url = crate::fixture::cluster().url("postgres");
        remote.run("SELECT pg_advisory_lock(9901)").await;
        let input = "select pg_advisory_lock_shared(9901)";
        crashing
            .client
            .run(&format!("INSERT INTO task (input, remote) VALUES ('{input}', '{url}')"))
            .await;
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 9901 AND NOT granted";
        remote.until(&format!("({waiting}) = 1")).await;
        let pid = crashing.client.get("SELECT pid FROM task").await;
        crashing.crash().await;
        let client = &crashing.client;
        client.run("INSERT INTO task (input, \"group\") VALUES ('select 5', 'other')").await;
        client.until("EXISTS (SELECT FROM task WHERE output = '5')").await;
        let row = client.get("SELECT pid FROM task WHERE state = 'WORK' AND id = 1").await;
        assert_eq!(row, pid);
        assert_eq!(remote.get(waiting).await.as_deref(), Some("1"));
        remote.run("SELECT pg_advisory_unlock_all()").await;
        client
            .until("EXISTS (SELECT FROM task WHERE id = 1 AND state = 'DONE' AND error IS NULL)")
            .await;
        crashing.tasks.stop().await;
    });
}

#[test]
fn the_claim_and_the_start_of_a_task_on_a_remote_are_on_disk() {
    // Both were answered before they were on disk: when scheduler and database crashed together, the task ran twice.
    run(async {
        let fixture = Fixture::new().await;
        let (schema, url) = (&fixture.schema, crate::fixture::cluster().url("postgres"));
        // A deferred trigger sees what the commit sees.
        fixture.run(&format!(
            "CREATE TABLE seen (state text, is_remote boolean, sync text); \
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO {schema}.seen \
             VALUES (NEW.state, NEW.remote IS NOT NULL, current_setting('synchronous_commit')); RETURN NULL; END $f$; \
             CREATE CONSTRAINT TRIGGER note AFTER UPDATE ON task DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE PROCEDURE note()"
        ))
        .await;
        for remote in ["NULL".to_owned(), format!("'{url}'")] {
            fixture.run(&format!(
                "INSERT INTO task (input, remote, count) SELECT 'select 1', {remote}, 2 FROM generate_series(1, 4)"
            ))
            .await;
            fixture.idle().await;
        }
        let remote =
            "SELECT string_agg(DISTINCT state || ' ' || sync, '|') FROM seen WHERE is_remote";
        assert_eq!(fixture.get(remote).await.as_deref(), Some("DONE on|TAKE on|WORK on"));
        let quick =
            "SELECT count(*) > 0 FROM seen WHERE NOT is_remote AND state = 'TAKE' AND sync = 'off'";
        assert_eq!(fixture.get(quick).await.as_deref(), Some("t"));
        fixture.stop().await;
    });
}

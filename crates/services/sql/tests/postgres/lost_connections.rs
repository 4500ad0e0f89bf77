//! Lost sessions, schedulers and connections.

use crate::fixture::{Client, Fixture, database, run, start};
use taskyard_core::service::Service;

const TERMINATE: &str = "SELECT pg_terminate_backend(pid) FROM task WHERE state = 'WORK'";

#[test]
fn a_task_whose_session_is_killed_runs_again_at_once() {
    // pg_task noticed after up to an hour.
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("CREATE SEQUENCE runs").await;
        let schema = fixture.schema.clone();
        fixture.run(&format!(
            "INSERT INTO task (input) VALUES ('select nextval(''{schema}.runs''); select pg_sleep(CASE WHEN (SELECT last_value FROM {schema}.runs) > 1 THEN 0 ELSE 600 END)')"
        ))
        .await;
        fixture
            .until(
                "EXISTS (SELECT FROM task WHERE state = 'WORK') AND (SELECT is_called FROM runs)",
            )
            .await;
        fixture.run(TERMINATE).await;
        fixture.idle().await;
        let row = fixture.get("SELECT concat_ws(' ', state, error, attempts, (SELECT last_value FROM runs)) FROM task").await;
        assert_eq!(row.as_deref(), Some("DONE 1 2"));
        fixture.stop().await;
    });
}

#[test]
fn a_task_that_kills_its_session_fails_after_three_runs() {
    // pg_task ran such a task for ever.
    run(async {
        let fixture = Fixture::new().await;
        fixture
            .run(
                "INSERT INTO task (input) VALUES ('select pg_terminate_backend(pg_backend_pid())')",
            )
            .await;
        fixture.idle().await;
        let error = fixture.get("SELECT error FROM task").await.unwrap_or_default();
        assert!(
            error.starts_with("ERROR:  task lost its session 3 times\nDETAIL:  terminating"),
            "{error}"
        );
        // Other tasks continue.
        fixture.sync().await;
        fixture.stop().await;
    });
}

#[test]
fn a_remote_that_drops_the_connection_fails_that_task_only() {
    // In pg_task it crashed the whole cluster, repeatedly.
    run(async {
        let fixture = Fixture::new().await;
        let url = crate::fixture::cluster().url("postgres");
        fixture.run(&format!(
            "INSERT INTO task (input, remote) VALUES ('select pg_terminate_backend(pg_backend_pid())', '{url}')"
        ))
        .await;
        fixture.run("INSERT INTO task (input) VALUES ('select 1')").await;
        fixture.idle().await;
        let errors = fixture.get("SELECT string_agg(coalesce(split_part(error, chr(10), 1), output), '|' ORDER BY id) FROM task").await;
        let expected = "FATAL:  terminating connection due to administrator command|1";
        assert_eq!(errors.as_deref(), Some(expected));
        fixture.stop().await;
    });
}

#[test]
fn running_tasks_survive_a_lost_scheduler_connection() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("SELECT pg_advisory_lock(91)").await;
        fixture.run("INSERT INTO task (input) VALUES ('select pg_advisory_lock_shared(91)')").await;
        fixture.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        let kill = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pg_work {} task%'",
            fixture.schema
        );
        fixture.run(&kill).await;
        // A running task continues, and its outcome is written once, with the session that started it.
        let pid = fixture.get("SELECT pid FROM task").await;
        fixture.run("INSERT INTO task (input, \"group\") VALUES ('select 2', 'other')").await;
        fixture.until("EXISTS (SELECT FROM task WHERE output = '2')").await;
        fixture.run("SELECT pg_advisory_unlock_all()").await;
        fixture.idle().await;
        assert_eq!(fixture.get("SELECT pid FROM task WHERE id = 1").await, pid);
        assert_eq!(
            fixture.get("SELECT attempts FROM task WHERE id = 1").await.as_deref(),
            Some("0")
        );
        fixture.stop().await;
    });
}

#[test]
fn abandoned_rows_are_returned() {
    run(async {
        let fixture = Fixture::with("\"reset\": \"200 ms\"").await;
        fixture.run("INSERT INTO task (input, state, pid, start) VALUES ('select 5', 'WORK', 1, now()), ('select 6', 'TAKE', NULL, NULL)").await;
        fixture
            .until("2 = (SELECT count(*) FROM task WHERE state = 'DONE' AND output IN ('5', '6'))")
            .await;
        fixture.stop().await;
    });
}

#[test]
fn no_task_fails_for_lack_of_connections() {
    // pg_task ended tasks with an error when the server had no room for their sessions.
    run(async {
        let (schema, admin) =
            (Fixture::name(), Client::new(&database("postgres", "postgres")).await);
        admin.run(&format!("CREATE ROLE {schema} LOGIN CONNECTION LIMIT 3; CREATE SCHEMA {schema} AUTHORIZATION {schema}")).await;
        let row = format!("\"user\": \"{schema}\"");
        let tasks = start(&schema, &row);
        admin.until(&format!("to_regclass('{schema}.task') IS NOT NULL")).await;
        admin.run(&format!("INSERT INTO {schema}.task (max, input) SELECT 9, 'select 1' FROM generate_series(1, 40)")).await;
        admin
            .until(&format!("40 = (SELECT count(*) FROM {schema}.task WHERE state = 'DONE')"))
            .await;
        let good = admin
            .get(&format!(
                "SELECT count(*) FROM {schema}.task WHERE output = '1' AND error IS NULL"
            ))
            .await;
        assert_eq!(good.as_deref(), Some("40"));
        tasks.stop().await;
    });
}

#[test]
fn an_outcome_is_on_disk_before_it_is_confirmed() {
    // A claim or a start may be lost when the server crashes; the outcome of a task may not.
    run(async {
        let fixture = Fixture::new().await;
        let schema = &fixture.schema;
        fixture.run(&format!(
            "CREATE TABLE seen (state text, sync text); \
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO {schema}.seen \
             VALUES (NEW.state, current_setting('synchronous_commit')); RETURN NEW; END $f$; \
             CREATE TRIGGER note BEFORE UPDATE ON task FOR EACH ROW EXECUTE PROCEDURE note()"
        ))
        .await;
        fixture.run(
            "INSERT INTO task (input, max, count) SELECT 'select 1', 3, 100 FROM generate_series(1, 40); \
             INSERT INTO task (input, plan) VALUES ('late', now() - '1 day'::interval), ('select 1/0', now())",
        )
        .await;
        fixture.idle().await;
        let unsafe_ends = "SELECT count(*) FROM seen WHERE state = 'DONE' AND sync <> 'on'";
        assert_eq!(fixture.get(unsafe_ends).await.as_deref(), Some("0"));
        assert_eq!(
            fixture.get("SELECT count(*) FROM seen WHERE state = 'DONE'").await.as_deref(),
            Some("42")
        );
        let quick =
            "SELECT count(*) > 0 FROM seen WHERE state IN ('TAKE', 'WORK') AND sync = 'off'";
        assert_eq!(fixture.get(quick).await.as_deref(), Some("t"));
        fixture.stop().await;
    });
}

#[test]
fn a_task_starts_after_its_session() {
    // The start was the time of the claim, which may take long: it was before that of the session, and the sessions
    // of a scheduler that was gone were not recognized. Their tasks ran twice at the same time.
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.state = ''TAKE'' THEN PERFORM pg_sleep(1); END IF; \
             RETURN NEW; END'; CREATE TRIGGER slow BEFORE UPDATE ON task FOR EACH ROW EXECUTE PROCEDURE slow()",
        )
        .await;
        fixture.run("INSERT INTO task (input) VALUES ('select pg_sleep(600)')").await;
        fixture.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        let later =
            "SELECT t.start > a.backend_start FROM task t JOIN pg_stat_activity a ON a.pid = t.pid";
        assert_eq!(fixture.get(later).await.as_deref(), Some("t"));
        fixture.run("UPDATE task SET state = 'STOP'").await;
        fixture.until("EXISTS (SELECT FROM task WHERE stop >= start)").await;
        fixture.stop().await;
    });
}

#[test]
fn an_abandoned_task_on_a_remote_is_not_run_again() {
    // It continued there, and was started a second time.
    run(async {
        let fixture = Fixture::with("\"reset\": \"200 ms\"").await;
        let (url, schema) = (crate::fixture::cluster().url("postgres"), fixture.schema.clone());
        fixture.run("CREATE SEQUENCE runs").await;
        fixture.run(&format!(
            "INSERT INTO task (input, remote, state, pid, plan, start, repeat) \
             VALUES ('select nextval(''{schema}.runs'')', '{url}', 'WORK', 1, now(), now(), '1 hour')"
        ))
        .await;
        fixture.until("EXISTS (SELECT FROM task WHERE stop >= start)").await;
        let row = "SELECT concat_ws(' ', t.state, split_part(t.error, chr(10), 2), n.state, n.plan - t.plan, r.is_called) \
                   FROM task t JOIN task n ON n.parent = t.id, runs r";
        let expected = "DONE DETAIL:  the scheduler that ran the task is gone PLAN 01:00:00 f";
        assert_eq!(fixture.get(row).await.as_deref(), Some(expected));
        // A server that supports it detects that the client is gone.
        let input = "select current_setting(''client_connection_check_interval'')";
        let (output, error) =
            fixture.output(", remote, input", &format!(", '{url}', '{input}'")).await;
        assert_eq!((output.as_deref(), error), (Some("2s"), None));
        fixture.stop().await;
    });
}

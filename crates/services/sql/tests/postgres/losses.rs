//! Sessions, schedulers and servers that are gone.

use crate::rig::{Client, Rig, database, run, start};
use taskyard_core::service::Service;

const TERMINATE: &str = "SELECT pg_terminate_backend(pid) FROM task WHERE state = 'WORK'";

#[test]
fn a_task_whose_session_is_killed_runs_again_at_once() {
    // pg_task noticed after up to an hour.
    run(async {
        let rig = Rig::new().await;
        rig.run("CREATE SEQUENCE runs").await;
        let schema = rig.schema.clone();
        rig.run(&format!(
            "INSERT INTO task (input) VALUES ('select nextval(''{schema}.runs''); select pg_sleep(CASE WHEN (SELECT last_value FROM {schema}.runs) > 1 THEN 0 ELSE 600 END)')"
        ))
        .await;
        rig.until(
            "EXISTS (SELECT FROM task WHERE state = 'WORK') AND (SELECT is_called FROM runs)",
        )
        .await;
        rig.run(TERMINATE).await;
        rig.idle().await;
        let row = rig.get("SELECT concat_ws(' ', state, error, attempts, (SELECT last_value FROM runs)) FROM task").await;
        assert_eq!(row.as_deref(), Some("DONE 1 2"));
        rig.stop().await;
    });
}

#[test]
fn a_task_that_kills_its_session_is_given_up() {
    // pg_task ran such a task for ever.
    run(async {
        let rig = Rig::new().await;
        rig.run(
            "INSERT INTO task (input) VALUES ('select pg_terminate_backend(pg_backend_pid())')",
        )
        .await;
        rig.idle().await;
        let error = rig.get("SELECT error FROM task").await.unwrap_or_default();
        assert!(
            error.starts_with("ERROR:  task lost its session 3 times\nDETAIL:  terminating"),
            "{error}"
        );
        // The others go on.
        rig.settle().await;
        rig.stop().await;
    });
}

#[test]
fn a_remote_that_drops_the_connection_fails_that_task_only() {
    // In pg_task it took the whole cluster down, again and again.
    run(async {
        let rig = Rig::new().await;
        let url = crate::rig::cluster().url("postgres");
        rig.run(&format!(
            "INSERT INTO task (input, remote) VALUES ('select pg_terminate_backend(pg_backend_pid())', '{url}')"
        ))
        .await;
        rig.run("INSERT INTO task (input) VALUES ('select 1')").await;
        rig.idle().await;
        let errors = rig.get("SELECT string_agg(coalesce(split_part(error, chr(10), 1), output), '|' ORDER BY id) FROM task").await;
        let expected = "FATAL:  terminating connection due to administrator command|1";
        assert_eq!(errors.as_deref(), Some(expected));
        rig.stop().await;
    });
}

#[test]
fn the_schedulers_own_connection_may_be_lost() {
    run(async {
        let rig = Rig::new().await;
        rig.run("SELECT pg_advisory_lock(91)").await;
        rig.run("INSERT INTO task (input) VALUES ('select pg_advisory_lock_shared(91)')").await;
        rig.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        let kill = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pg_work {} task%'",
            rig.schema
        );
        rig.run(&kill).await;
        // What runs goes on and is written down once, by the session that began it.
        let pid = rig.get("SELECT pid FROM task").await;
        rig.run("INSERT INTO task (input, \"group\") VALUES ('select 2', 'other')").await;
        rig.until("EXISTS (SELECT FROM task WHERE output = '2')").await;
        rig.run("SELECT pg_advisory_unlock_all()").await;
        rig.idle().await;
        assert_eq!(rig.get("SELECT pid FROM task WHERE id = 1").await, pid);
        assert_eq!(rig.get("SELECT attempts FROM task WHERE id = 1").await.as_deref(), Some("0"));
        rig.stop().await;
    });
}

#[test]
fn rows_that_nobody_runs_are_given_back() {
    run(async {
        let rig = Rig::with("\"reset\": \"200 ms\"").await;
        rig.run("INSERT INTO task (input, state, pid, start) VALUES ('select 5', 'WORK', 1, now()), ('select 6', 'TAKE', NULL, NULL)").await;
        rig.until("2 = (SELECT count(*) FROM task WHERE state = 'DONE' AND output IN ('5', '6'))")
            .await;
        rig.stop().await;
    });
}

#[test]
fn no_task_fails_for_lack_of_connections() {
    // pg_task ended tasks with an error when the server had no room for their sessions.
    run(async {
        let (schema, admin) = (Rig::name(), Client::new(&database("postgres", "postgres")).await);
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
fn an_end_is_on_disk_before_it_is_told() {
    // What is taken or runs falls with the server and may be lost; how a task ended may not.
    run(async {
        let rig = Rig::new().await;
        let schema = &rig.schema;
        rig.run(&format!(
            "CREATE TABLE seen (state text, sync text); \
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO {schema}.seen \
             VALUES (NEW.state, current_setting('synchronous_commit')); RETURN NEW; END $f$; \
             CREATE TRIGGER note BEFORE UPDATE ON task FOR EACH ROW EXECUTE PROCEDURE note()"
        ))
        .await;
        rig.run(
            "INSERT INTO task (input, max, count) SELECT 'select 1', 3, 100 FROM generate_series(1, 40); \
             INSERT INTO task (input, plan) VALUES ('late', now() - '1 day'::interval), ('select 1/0', now())",
        )
        .await;
        rig.idle().await;
        let unsafe_ends = "SELECT count(*) FROM seen WHERE state = 'DONE' AND sync <> 'on'";
        assert_eq!(rig.get(unsafe_ends).await.as_deref(), Some("0"));
        assert_eq!(
            rig.get("SELECT count(*) FROM seen WHERE state = 'DONE'").await.as_deref(),
            Some("42")
        );
        let quick =
            "SELECT count(*) > 0 FROM seen WHERE state IN ('TAKE', 'WORK') AND sync = 'off'";
        assert_eq!(rig.get(quick).await.as_deref(), Some("t"));
        rig.stop().await;
    });
}

#[test]
fn a_task_begins_after_its_session() {
    // The beginning was taken from the claim, which may take long: it was before that of the session, and the sessions
    // of a scheduler that was gone were not known as such. Their tasks ran twice at the same time.
    run(async {
        let rig = Rig::new().await;
        rig.run(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.state = ''TAKE'' THEN PERFORM pg_sleep(1); END IF; \
             RETURN NEW; END'; CREATE TRIGGER slow BEFORE UPDATE ON task FOR EACH ROW EXECUTE PROCEDURE slow()",
        )
        .await;
        rig.run("INSERT INTO task (input) VALUES ('select pg_sleep(600)')").await;
        rig.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        let later =
            "SELECT t.start > a.backend_start FROM task t JOIN pg_stat_activity a ON a.pid = t.pid";
        assert_eq!(rig.get(later).await.as_deref(), Some("t"));
        rig.run("UPDATE task SET state = 'STOP'").await;
        rig.until("EXISTS (SELECT FROM task WHERE stop >= start)").await;
        rig.stop().await;
    });
}

#[test]
fn what_ran_on_a_remote_for_a_scheduler_that_is_gone_is_not_done_again() {
    // It went on there, and was begun again beside itself.
    run(async {
        let rig = Rig::with("\"reset\": \"200 ms\"").await;
        let (url, schema) = (crate::rig::cluster().url("postgres"), rig.schema.clone());
        rig.run("CREATE SEQUENCE runs").await;
        rig.run(&format!(
            "INSERT INTO task (input, remote, state, pid, plan, start, repeat) \
             VALUES ('select nextval(''{schema}.runs'')', '{url}', 'WORK', 1, now(), now(), '1 hour')"
        ))
        .await;
        rig.until("EXISTS (SELECT FROM task WHERE stop >= start)").await;
        let row = "SELECT concat_ws(' ', t.state, split_part(t.error, chr(10), 2), n.state, n.plan - t.plan, r.is_called) \
                   FROM task t JOIN task n ON n.parent = t.id, runs r";
        let expected = "DONE DETAIL:  the scheduler that ran the task is gone PLAN 01:00:00 f";
        assert_eq!(rig.get(row).await.as_deref(), Some(expected));
        // A server that can sees for itself that nobody waits any more.
        let input = "select current_setting(''client_connection_check_interval'')";
        let (output, error) = rig.output(", remote, input", &format!(", '{url}', '{input}'")).await;
        assert_eq!((output.as_deref(), error), (Some("2s"), None));
        rig.stop().await;
    });
}

//! Writes that the database refuses, temporarily or always.

use crate::fixture::{Client, Fixture, database, run};
use taskyard_core::service::{Health, Service};
use taskyard_sql::connection::{Query, SessionOptions, connect};
use taskyard_sql::{Source, SqlTasks};

/// Waits until the scheduler says that it is troubled by this, or well where it is nothing.
async fn health(fixture: &Fixture, wanted: Option<&str>) {
    for _ in 0..5000 {
        let health = fixture.tasks.health();
        match (&health, wanted) {
            (Health::Healthy, None) => return,
            (Health::Unhealthy(said), Some(wanted)) if said.contains(wanted) => return,
            _ => fixture.until("true").await,
        }
    }
    panic!("never {wanted:?}, but {:?}", fixture.tasks.health());
}

/// Lets writing this state fail with this code, as long as there is a row in `refusing`.
async fn refuse(fixture: &Fixture, state: &str, code: &str) {
    let schema = &fixture.schema;
    fixture
        .run(&format!(
            "CREATE TABLE refusing AS SELECT 1 AS one; \
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN \
         IF NEW.state = '{state}' AND EXISTS (SELECT FROM {schema}.refusing) THEN \
         RAISE 'not now' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $f$; \
         CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW EXECUTE PROCEDURE refuse()"
        ))
        .await;
}

#[test]
fn a_very_long_active_interval_does_not_block_others() {
    // Its plan plus its `active` exceeded the range of timestamps: every claim failed, for all tasks.
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("INSERT INTO task (input, active, live, count) SELECT 'select 1', '300000 years', '300000 years', 9 FROM generate_series(1, 3)").await;
        fixture.run("INSERT INTO task (input, \"group\") VALUES ('select 2', 'other')").await;
        fixture.idle().await;
        let rows = fixture.get("SELECT string_agg(output, '' ORDER BY id) FROM task").await;
        assert_eq!(rows.as_deref(), Some("1112"));
        fixture.stop().await;
    });
}

#[test]
fn a_repeated_failure_is_reported() {
    // It was treated as a change of the table, which was prepared again for ever, and the scheduler reported no problem.
    run(async {
        let fixture = Fixture::new().await;
        refuse(&fixture, "TAKE", "P0001").await;
        fixture.run("INSERT INTO task (input) VALUES ('select 1')").await;
        health(&fixture, Some("not now")).await;
        fixture.run("DELETE FROM refusing").await;
        fixture.idle().await;
        health(&fixture, None).await;
        fixture.stop().await;
    });
}

#[test]
fn a_task_that_ends_while_the_database_cannot_write_runs_once() {
    // While the disk was full or the server read-only, the second error discarded the outcome of a task, and an hour
    // later it ran again.
    run(async {
        for code in ["25006", "53100", "40001", "57014"] {
            let fixture = Fixture::with("\"reset\": \"300 ms\"").await;
            refuse(&fixture, "DONE", code).await;
            fixture.run("CREATE SEQUENCE runs").await;
            let schema = fixture.schema.clone();
            fixture.run(&format!("INSERT INTO task (input, max) SELECT 'select ''x'' || (nextval(''{schema}.runs'') > 0)', 9 FROM generate_series(1, 3)")).await;
            health(&fixture, Some("not now")).await;
            // The scheduler searches for abandoned tasks, and does not treat these as such.
            fixture.run("INSERT INTO task (input, state, pid, \"group\") VALUES ('select 5', 'WORK', 1, 'foreign')").await;
            fixture.until(
                "EXISTS (SELECT FROM task WHERE \"group\" = 'foreign' AND pid IS DISTINCT FROM 1)",
            )
            .await;
            fixture.run("DELETE FROM refusing").await;
            fixture.idle().await;
            let rows = fixture.get("SELECT string_agg(output, ' ' ORDER BY id) || (SELECT last_value FROM runs) FROM task").await;
            assert_eq!(rows.as_deref(), Some("xtrue xtrue xtrue 53"), "{code}");
            health(&fixture, None).await;
            fixture.stop().await;
        }
    });
}

#[test]
fn tasks_that_end_while_the_table_is_locked_run_once() {
    // Each outcome was tried alone until its own timeout; a minute later the rest was forgotten and ran again.
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("CREATE SEQUENCE runs").await;
        let schema = fixture.schema.clone();
        fixture.run("SELECT pg_advisory_lock(92)").await;
        fixture.run(&format!("INSERT INTO task (input, max) SELECT 'select nextval(''{schema}.runs''); select pg_advisory_lock_shared(92)', 9 FROM generate_series(1, 5)")).await;
        fixture.until("5 = (SELECT count(*) FROM task WHERE state = 'WORK') AND 5 = (SELECT last_value FROM runs)").await;
        let other = Fixture::client(&fixture.schema).await;
        other.run("BEGIN; LOCK TABLE task IN ACCESS EXCLUSIVE MODE").await;
        fixture.run("SELECT pg_advisory_unlock_all()").await;
        health(&fixture, Some("lock timeout")).await;
        other.run("COMMIT").await;
        fixture.idle().await;
        let done = "SELECT concat_ws(' ', count(*), (SELECT last_value FROM runs)) FROM task WHERE state = 'DONE'";
        assert_eq!(fixture.get(done).await.as_deref(), Some("5 5"));
        fixture.stop().await;
    });
}

#[test]
fn a_task_whose_outcome_is_always_refused_is_not_run_again() {
    // It stayed in WORK without a session, so it was returned and ran again, every hour.
    run(async {
        let fixture = Fixture::with("\"reset\": \"200 ms\"").await;
        fixture.run("CREATE SEQUENCE runs").await;
        let schema = fixture.schema.clone();
        fixture.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.\"group\" = ''bad'' AND NEW.state = ''DONE'' \
             THEN RAISE ''not this''; END IF; RETURN NEW; END'; \
             CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW EXECUTE PROCEDURE refuse()",
        )
        .await;
        fixture.run(&format!("INSERT INTO task (input, \"group\") VALUES ('select nextval(''{schema}.runs'')', 'bad')")).await;
        fixture.until("(SELECT is_called FROM runs)").await;
        for _ in 0..3 {
            fixture.run("INSERT INTO task (input, state, pid, \"group\") VALUES ('select 5', 'WORK', 1, 'foreign')").await;
            fixture
                .until(
                    "NOT EXISTS (SELECT FROM task WHERE \"group\" = 'foreign' AND state <> 'DONE')",
                )
                .await;
        }
        assert_eq!(fixture.get("SELECT last_value FROM runs").await.as_deref(), Some("1"));
        fixture.stop().await;
    });
}

#[test]
fn new_states_are_added_before_they_are_written() {
    // After a change of the profile in the file, the state FAIL was written before it existed: refused, the task stayed in
    // WORK and was run again and again.
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, schema) = (folder.path().join("tasks.json"), Fixture::name());
        let write = |more: &str| {
            let text = format!("[{{\"data\": \"postgres\", \"schema\": \"{schema}\"{more}}}]");
            std::fs::write(&file, text).expect("it can be written");
        };
        write("");
        let admin = database("postgres", "postgres");
        let tasks =
            SqlTasks::start(admin, Source::File(file.clone()), std::time::Duration::from_secs(60));
        let tasks = tasks.expect("it starts");
        let client = Fixture::client(&schema).await;
        client.until(&format!("to_regclass('{schema}.task') IS NOT NULL")).await;
        client.run("INSERT INTO task (input) VALUES ('select 1/0')").await;
        client.until("EXISTS (SELECT FROM task WHERE state = 'DONE')").await;
        write(", \"profile\": \"extended\"");
        tasks.reload();
        client.run("INSERT INTO task (input) VALUES ('select 1/0')").await;
        client.until("EXISTS (SELECT FROM task WHERE state::text = 'FAIL')").await;
        tasks.stop().await;
    });
}

#[test]
fn a_failed_query_is_completed_before_the_next_one() {
    // The message after an error was read while waiting for a notification, and then waited for once more:
    // the scheduler stood still for a minute.
    run(async {
        let admin = database("postgres", "postgres");
        let Ok(mut connection) = connect(&admin, &SessionOptions::default()).await else {
            panic!("no connection")
        };
        connection.run("LISTEN after_refusal").await.expect("it listens");
        assert!(connection.query(Query::new("SELECT 1 / 0", [])).await.is_err());
        let (pid, other) = (connection.pid, Client::new(&admin).await);
        let notify = async {
            other.until(&format!("EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND query = 'DEALLOCATE ALL' AND state = 'idle')")).await;
            other.run("NOTIFY after_refusal").await;
        };
        let (noticed, ()) = tokio::join!(connection.notification(), notify);
        noticed.expect("it is notified");
        let answer = tokio::time::timeout(
            std::time::Duration::from_secs(20),
            connection.query(Query::new("SELECT 7", [])),
        );
        let rows = answer.await.expect("an answer comes").expect("it is not refused");
        assert_eq!(rows[0].text(0), Some("7"));
    });
}

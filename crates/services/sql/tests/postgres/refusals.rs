//! What the database refuses, now or for good, and what is not lost by it.

use crate::rig::{Client, Rig, database, run};
use taskyard_core::service::{Health, Service};
use taskyard_sql::wire::{Ask, Opening, connect};
use taskyard_sql::{Source, SqlTasks};

/// Waits until the scheduler says that it is troubled by this, or well where it is nothing.
async fn health(rig: &Rig, wanted: Option<&str>) {
    for _ in 0..5000 {
        let health = rig.tasks.health();
        match (&health, wanted) {
            (Health::Well, None) => return,
            (Health::Troubled(said), Some(wanted)) if said.contains(wanted) => return,
            _ => rig.until("true").await,
        }
    }
    panic!("never {wanted:?}, but {:?}", rig.tasks.health());
}

/// Lets writing this state fail with this code, as long as there is a row in `refusing`.
async fn refuse(rig: &Rig, state: &str, code: &str) {
    let schema = &rig.schema;
    rig.run(&format!(
        "CREATE TABLE refusing AS SELECT 1 AS one; \
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN \
         IF NEW.state = '{state}' AND EXISTS (SELECT FROM {schema}.refusing) THEN \
         RAISE 'not now' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $f$; \
         CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW EXECUTE PROCEDURE refuse()"
    ))
    .await;
}

#[test]
fn a_task_that_is_active_for_ever_stops_nobody() {
    // Its plan and its `active` together were no moment that the database knows: every claim failed, for all tasks.
    run(async {
        let rig = Rig::new().await;
        rig.run("INSERT INTO task (input, active, live, count) SELECT 'select 1', '300000 years', '300000 years', 9 FROM generate_series(1, 3)").await;
        rig.run("INSERT INTO task (input, \"group\") VALUES ('select 2', 'other')").await;
        rig.idle().await;
        let rows = rig.get("SELECT string_agg(output, '' ORDER BY id) FROM task").await;
        assert_eq!(rows.as_deref(), Some("1112"));
        rig.stop().await;
    });
}

#[test]
fn what_fails_round_after_round_is_told() {
    // It was taken for a change of the table, looked at anew for ever, and the scheduler was said to be well.
    run(async {
        let rig = Rig::new().await;
        refuse(&rig, "TAKE", "P0001").await;
        rig.run("INSERT INTO task (input) VALUES ('select 1')").await;
        health(&rig, Some("not now")).await;
        rig.run("DELETE FROM refusing").await;
        rig.idle().await;
        health(&rig, None).await;
        rig.stop().await;
    });
}

#[test]
fn a_task_that_ends_while_nothing_can_be_written_runs_once() {
    // While the disk was full or the server read-only, the second refusal threw the end of a task away, and an hour
    // later it ran again.
    run(async {
        for code in ["25006", "53100", "40001", "57014"] {
            let rig = Rig::with("\"reset\": \"300 ms\"").await;
            refuse(&rig, "DONE", code).await;
            rig.run("CREATE SEQUENCE runs").await;
            let schema = rig.schema.clone();
            rig.run(&format!("INSERT INTO task (input, max) SELECT 'select ''x'' || (nextval(''{schema}.runs'') > 0)', 9 FROM generate_series(1, 3)")).await;
            health(&rig, Some("not now")).await;
            // The scheduler looks for tasks that nobody runs, and does not take these for such.
            rig.run("INSERT INTO task (input, state, pid, \"group\") VALUES ('select 5', 'WORK', 1, 'foreign')").await;
            rig.until(
                "EXISTS (SELECT FROM task WHERE \"group\" = 'foreign' AND pid IS DISTINCT FROM 1)",
            )
            .await;
            rig.run("DELETE FROM refusing").await;
            rig.idle().await;
            let rows = rig.get("SELECT string_agg(output, ' ' ORDER BY id) || (SELECT last_value FROM runs) FROM task").await;
            assert_eq!(rows.as_deref(), Some("xtrue xtrue xtrue 53"), "{code}");
            health(&rig, None).await;
            rig.stop().await;
        }
    });
}

#[test]
fn tasks_that_end_while_the_table_is_locked_run_once() {
    // Each end was tried by itself until its own time was over; a minute later the rest was forgotten and ran again.
    run(async {
        let rig = Rig::new().await;
        rig.run("CREATE SEQUENCE runs").await;
        let schema = rig.schema.clone();
        rig.run("SELECT pg_advisory_lock(92)").await;
        rig.run(&format!("INSERT INTO task (input, max) SELECT 'select nextval(''{schema}.runs''); select pg_advisory_lock_shared(92)', 9 FROM generate_series(1, 5)")).await;
        rig.until("5 = (SELECT count(*) FROM task WHERE state = 'WORK') AND 5 = (SELECT last_value FROM runs)").await;
        let other = Rig::client(&rig.schema).await;
        other.run("BEGIN; LOCK TABLE task IN ACCESS EXCLUSIVE MODE").await;
        rig.run("SELECT pg_advisory_unlock_all()").await;
        health(&rig, Some("lock timeout")).await;
        other.run("COMMIT").await;
        rig.idle().await;
        let done = "SELECT concat_ws(' ', count(*), (SELECT last_value FROM runs)) FROM task WHERE state = 'DONE'";
        assert_eq!(rig.get(done).await.as_deref(), Some("5 5"));
        rig.stop().await;
    });
}

#[test]
fn a_task_whose_end_is_refused_for_good_is_not_run_again() {
    // It stayed at work with nobody who ran it, so it was given back and ran again, every hour.
    run(async {
        let rig = Rig::with("\"reset\": \"200 ms\"").await;
        rig.run("CREATE SEQUENCE runs").await;
        let schema = rig.schema.clone();
        rig.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.\"group\" = ''bad'' AND NEW.state = ''DONE'' \
             THEN RAISE ''not this''; END IF; RETURN NEW; END'; \
             CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW EXECUTE PROCEDURE refuse()",
        )
        .await;
        rig.run(&format!("INSERT INTO task (input, \"group\") VALUES ('select nextval(''{schema}.runs'')', 'bad')")).await;
        rig.until("(SELECT is_called FROM runs)").await;
        for _ in 0..3 {
            rig.run("INSERT INTO task (input, state, pid, \"group\") VALUES ('select 5', 'WORK', 1, 'foreign')").await;
            rig.until(
                "NOT EXISTS (SELECT FROM task WHERE \"group\" = 'foreign' AND state <> 'DONE')",
            )
            .await;
        }
        assert_eq!(rig.get("SELECT last_value FROM runs").await.as_deref(), Some("1"));
        rig.stop().await;
    });
}

#[test]
fn states_that_are_new_are_made_before_they_are_written() {
    // With another profile in the file, the state FAIL was written before there was one: refused, the task stayed at
    // work and was run again and again.
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, schema) = (folder.path().join("tasks.json"), Rig::name());
        let write = |more: &str| {
            let text = format!("[{{\"data\": \"postgres\", \"schema\": \"{schema}\"{more}}}]");
            std::fs::write(&file, text).expect("it can be written");
        };
        write("");
        let admin = database("postgres", "postgres");
        let tasks =
            SqlTasks::start(admin, Source::File(file.clone()), std::time::Duration::from_secs(60));
        let tasks = tasks.expect("it starts");
        let client = Rig::client(&schema).await;
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
fn a_refusal_is_through_before_the_next_answer() {
    // What follows a refusal on the wire was read while waiting for a notification, and then waited for once more:
    // the scheduler stood still for a minute.
    run(async {
        let admin = database("postgres", "postgres");
        let Ok(mut wire) = connect(&admin, &Opening::default()).await else { panic!("no wire") };
        wire.run("LISTEN after_refusal").await.expect("it listens");
        assert!(wire.ask(Ask::new("SELECT 1 / 0", [])).await.is_err());
        let (pid, other) = (wire.pid, Client::new(&admin).await);
        let notify = async {
            other.until(&format!("EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND query = 'DEALLOCATE ALL' AND state = 'idle')")).await;
            other.run("NOTIFY after_refusal").await;
        };
        let (noticed, ()) = tokio::join!(wire.notification(), notify);
        noticed.expect("it is notified");
        let answer = tokio::time::timeout(
            std::time::Duration::from_secs(20),
            wire.ask(Ask::new("SELECT 7", [])),
        );
        let rows = answer.await.expect("an answer comes").expect("it is not refused");
        assert_eq!(rows[0].text(0), Some("7"));
    });
}

//! Stopping tasks and schedulers.

use std::time::Duration;

use crate::fixture::{Fixture, database, run, start};
use taskyard_core::service::Service;
use taskyard_sql::{Config, Source, SqlTasks};

#[test]
fn stop_cancels_a_running_task_and_ends_its_repetitions() {
    // pg_task overwrote STOP with DONE and repeated the task.
    run(async {
        let fixture = Fixture::new().await;
        fixture
            .run("INSERT INTO task (input, repeat) VALUES ('select pg_sleep(600)', '1 sec')")
            .await;
        fixture.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        fixture.run("UPDATE task SET state = 'STOP'").await;
        fixture.until("EXISTS (SELECT FROM task WHERE stop IS NOT NULL)").await;
        let rows = fixture.get("SELECT string_agg(concat_ws(' ', state, split_part(error, chr(10), 1)), '|') FROM task").await;
        assert_eq!(rows.as_deref(), Some("STOP ERROR:  canceling statement due to user request"));
        fixture.stop().await;
    });
}

#[test]
fn deleting_a_running_task_cancels_it() {
    run(async {
        let fixture = Fixture::new().await;
        fixture
            .run("INSERT INTO task (input, repeat) VALUES ('select pg_sleep(601)', '1 sec')")
            .await;
        fixture.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        let pid = fixture.get("DELETE FROM task RETURNING pid").await.expect("it runs");
        fixture
            .until(&format!("NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})"))
            .await;
        fixture.sync().await;
        assert_eq!(fixture.get("SELECT count(*) FROM task").await.as_deref(), Some("0"));
        fixture.stop().await;
    });
}

#[test]
fn a_stopped_task_does_not_start() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("INSERT INTO task (input, state) VALUES ('select 1', 'STOP')").await;
        fixture.sync().await;
        assert_eq!(
            fixture.get("SELECT concat_ws(' ', state, start) FROM task").await.as_deref(),
            Some("STOP")
        );
        fixture.run("UPDATE task SET state = 'PLAN'").await;
        fixture.idle().await;
        fixture.stop().await;
    });
}

#[test]
fn a_locked_row_does_not_block_other_tasks() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("INSERT INTO task (input, \"group\", plan) VALUES ('select 1', 'a', now() + '1 hour'::interval)").await;
        let other = Fixture::client(&fixture.schema).await;
        other.run("BEGIN; UPDATE task SET data = 'mine', plan = now() WHERE id = 1").await;
        fixture.run("INSERT INTO task (input, \"group\") VALUES ('select 2', 'a')").await;
        fixture.until("EXISTS (SELECT FROM task WHERE output = '2')").await;
        other.run("COMMIT").await;
        fixture.idle().await;
        // The outcome of a task that locks its own row is written as soon as it releases the lock.
        let schema = fixture.schema.clone();
        fixture.run(&format!(
            "INSERT INTO task (input) VALUES ('begin; update {schema}.task set data = ''own'' where id = current_setting(''pg_task.id'')::bigint; select pg_sleep(0.1); commit')"
        ))
        .await;
        fixture.idle().await;
        assert_eq!(
            fixture
                .get("SELECT concat_ws(' ', state, data) FROM task WHERE id = 3")
                .await
                .as_deref(),
            Some("DONE own")
        );
        fixture.stop().await;
    });
}

#[test]
fn a_stopping_scheduler_waits_for_its_tasks() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("INSERT INTO task (input) VALUES ('select pg_sleep(0.3)'), ('select 2')").await;
        fixture.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        fixture.stop().await;
        assert_eq!(
            fixture
                .get("SELECT string_agg(state::text, ' ' ORDER BY id) FROM task")
                .await
                .as_deref(),
            Some("DONE PLAN")
        );
        let tasks = start(&fixture.schema, "");
        fixture.idle().await;
        tasks.stop().await;
    });
}

#[test]
fn a_scheduler_without_patience_returns_its_tasks() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.stop().await;
        let config = format!("[{{\"data\": \"postgres\", \"schema\": \"{}\"}}]", fixture.schema);
        let config = Config::parse(&config).expect("a configuration");
        let tasks = SqlTasks::start(
            database("postgres", "postgres"),
            Source::Inline(config),
            Duration::ZERO,
        );
        let tasks = tasks.expect("it starts");
        fixture.run("INSERT INTO task (input) VALUES ('select pg_sleep(602)')").await;
        fixture.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        tasks.stop().await;
        let row = fixture
            .get("SELECT concat_ws(' ', state, start, pid, error, attempts) FROM task")
            .await;
        assert_eq!(row.as_deref(), Some("PLAN 0"));
    });
}

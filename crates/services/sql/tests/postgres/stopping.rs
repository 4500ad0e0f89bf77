//! Tasks that are stopped, and schedulers that are.

use std::time::Duration;

use crate::rig::{Rig, database, run, start};
use taskyard_core::service::Service;
use taskyard_sql::{Config, Source, SqlTasks};

#[test]
fn stop_cancels_a_running_task_and_ends_its_repetitions() {
    // pg_task overwrote STOP with DONE and repeated the task.
    run(async {
        let rig = Rig::new().await;
        rig.run("INSERT INTO task (input, repeat) VALUES ('select pg_sleep(600)', '1 sec')").await;
        rig.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        rig.run("UPDATE task SET state = 'STOP'").await;
        rig.until("EXISTS (SELECT FROM task WHERE stop IS NOT NULL)").await;
        let rows = rig.get("SELECT string_agg(concat_ws(' ', state, split_part(error, chr(10), 1)), '|') FROM task").await;
        assert_eq!(rows.as_deref(), Some("STOP ERROR:  canceling statement due to user request"));
        rig.stop().await;
    });
}

#[test]
fn deleting_a_running_task_cancels_it() {
    run(async {
        let rig = Rig::new().await;
        rig.run("INSERT INTO task (input, repeat) VALUES ('select pg_sleep(601)', '1 sec')").await;
        rig.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        let pid = rig.get("DELETE FROM task RETURNING pid").await.expect("it runs");
        rig.until(&format!("NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})")).await;
        rig.settle().await;
        assert_eq!(rig.get("SELECT count(*) FROM task").await.as_deref(), Some("0"));
        rig.stop().await;
    });
}

#[test]
fn a_stopped_task_never_begins() {
    run(async {
        let rig = Rig::new().await;
        rig.run("INSERT INTO task (input, state) VALUES ('select 1', 'STOP')").await;
        rig.settle().await;
        assert_eq!(
            rig.get("SELECT concat_ws(' ', state, start) FROM task").await.as_deref(),
            Some("STOP")
        );
        rig.run("UPDATE task SET state = 'PLAN'").await;
        rig.idle().await;
        rig.stop().await;
    });
}

#[test]
fn a_locked_row_holds_up_nobody_else() {
    run(async {
        let rig = Rig::new().await;
        rig.run("INSERT INTO task (input, \"group\", plan) VALUES ('select 1', 'a', now() + '1 hour'::interval)").await;
        let other = Rig::client(&rig.schema).await;
        other.run("BEGIN; UPDATE task SET data = 'mine', plan = now() WHERE id = 1").await;
        rig.run("INSERT INTO task (input, \"group\") VALUES ('select 2', 'a')").await;
        rig.until("EXISTS (SELECT FROM task WHERE output = '2')").await;
        other.run("COMMIT").await;
        rig.idle().await;
        // A task that holds its own row locked is written down as soon as it lets go.
        let schema = rig.schema.clone();
        rig.run(&format!(
            "INSERT INTO task (input) VALUES ('begin; update {schema}.task set data = ''own'' where id = current_setting(''pg_task.id'')::bigint; select pg_sleep(0.1); commit')"
        ))
        .await;
        rig.idle().await;
        assert_eq!(
            rig.get("SELECT concat_ws(' ', state, data) FROM task WHERE id = 3").await.as_deref(),
            Some("DONE own")
        );
        rig.stop().await;
    });
}

#[test]
fn a_scheduler_that_stops_lets_its_tasks_end() {
    run(async {
        let rig = Rig::new().await;
        rig.run("INSERT INTO task (input) VALUES ('select pg_sleep(0.3)'), ('select 2')").await;
        rig.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        rig.stop().await;
        assert_eq!(
            rig.get("SELECT string_agg(state::text, ' ' ORDER BY id) FROM task").await.as_deref(),
            Some("DONE PLAN")
        );
        let tasks = start(&rig.schema, "");
        rig.idle().await;
        tasks.stop().await;
    });
}

#[test]
fn an_impatient_scheduler_gives_its_tasks_back() {
    run(async {
        let rig = Rig::new().await;
        rig.stop().await;
        let config = format!("[{{\"data\": \"postgres\", \"schema\": \"{}\"}}]", rig.schema);
        let config = Config::parse(&config).expect("a configuration");
        let tasks = SqlTasks::start(
            database("postgres", "postgres"),
            Source::Given(config),
            Duration::ZERO,
        );
        let tasks = tasks.expect("it starts");
        rig.run("INSERT INTO task (input) VALUES ('select pg_sleep(602)')").await;
        rig.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        tasks.stop().await;
        let row =
            rig.get("SELECT concat_ws(' ', state, start, pid, error, attempts) FROM task").await;
        assert_eq!(row.as_deref(), Some("PLAN 0"));
    });
}

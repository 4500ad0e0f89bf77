//! Several schedulers for one table.

use crate::rig::{Rig, run, start};
use taskyard_core::service::Service;

#[test]
fn no_task_runs_twice() {
    run(async {
        let rig = Rig::new().await;
        let others = [start(&rig.schema, ""), start(&rig.schema, "")];
        rig.run("CREATE TABLE ran (id bigint)").await;
        let schema = &rig.schema;
        rig.run(&format!(
            "INSERT INTO task (max, count, input) SELECT 5, 10, 'insert into {schema}.ran values (current_setting(''pg_task.id'')::bigint)' \
             FROM generate_series(1, 200)"
        ))
        .await;
        // The one that leads ends in the middle, and another goes on.
        rig.until("(SELECT count(*) FROM ran) > 20").await;
        rig.stop().await;
        rig.idle().await;
        let counts = rig.get("SELECT concat_ws(' ', count(*), count(DISTINCT id)) FROM ran").await;
        assert_eq!(counts.as_deref(), Some("200 200"));
        for tasks in others {
            tasks.stop().await;
        }
    });
}

#[test]
fn sessions_of_one_that_is_gone_are_ended_before_their_tasks_run_again() {
    run(async {
        let rig = Rig::new().await;
        rig.run("SELECT pg_advisory_lock(92)").await;
        rig.run("INSERT INTO task (input) VALUES ('select pg_advisory_lock_shared(92)')").await;
        rig.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        let old = rig.get("SELECT pid FROM task").await.expect("it runs");
        // As if the process were killed: its tasks do not even close their sockets, so the session goes on.
        std::mem::forget(rig.tasks.clone());
        rig.run(&format!(
            "UPDATE task SET pid = pid; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pg_work {} task%'",
            rig.schema
        ))
        .await;
        let other = start(&rig.schema, "");
        rig.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        rig.run("SELECT pg_advisory_unlock_all()").await;
        rig.idle().await;
        // Whoever leads now, the task was written down by exactly one session that is gone by now.
        rig.until(&format!(
            "NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {old} AND state = 'active')"
        ))
        .await;
        assert_eq!(
            rig.get("SELECT count(*) FROM task WHERE state = 'DONE' AND error IS NULL")
                .await
                .as_deref(),
            Some("1")
        );
        rig.stop().await;
        other.stop().await;
    });
}

//! Every example of the specification of pg_task.

use crate::fixture::{Fixture, cluster, run};

#[test]
fn a_task_runs_as_soon_as_possible() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("INSERT INTO task (input) VALUES ('SELECT now()')").await;
        fixture.idle().await;
        let row = fixture
            .get(
                "SELECT concat_ws(' ', state, output::timestamptz = start OR \
                 output::timestamptz - start < '1 min', error, start >= plan, stop >= start, pid > 0) \
                 FROM task",
            )
            .await;
        assert_eq!(row.as_deref(), Some("DONE t t t t"));
        fixture.stop().await;
    });
}

#[test]
fn a_task_runs_on_a_remote() {
    run(async {
        let fixture = Fixture::new().await;
        let url = cluster().url("postgres");
        fixture
            .run(&format!("INSERT INTO task (input, remote) VALUES ('SELECT now()', '{url}')"))
            .await;
        fixture
            .run(&format!("INSERT INTO task (input, remote) VALUES ('SELECT 1/0', '{url}')"))
            .await;
        fixture
            .run("INSERT INTO task (input, remote) VALUES ('SELECT 1/0', 'user=user host=host')")
            .await;
        fixture.idle().await;
        let good = fixture
            .get("SELECT output::timestamptz <= now() AND pid > 0 FROM task WHERE id = 1")
            .await;
        assert_eq!(good.as_deref(), Some("t"));
        let failed = fixture.get("SELECT error FROM task WHERE id = 2").await;
        assert_eq!(failed.as_deref(), Some("ERROR:  division by zero\nSTATEMENT:  SELECT 1/0"));
        let unreachable = fixture
            .get(
                "SELECT concat_ws(' ', state, start, pid, stop >= plan, output, \
                 error LIKE 'ERROR:  could not connect to the remote%DETAIL:  %') FROM task WHERE id = 3",
            )
            .await;
        assert_eq!(unreachable.as_deref(), Some("DONE t t"));
        // In pg_task the scheduler had the name of a task after one on a remote.
        let name = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_work {} task 1000'",
            fixture.schema
        );
        assert_eq!(fixture.get(&name).await.as_deref(), Some("1"));
        fixture.stop().await;
    });
}

#[test]
fn an_error_is_stored() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("INSERT INTO task (input) VALUES ('SELECT 1/0')").await;
        fixture.idle().await;
        let row = fixture.get("SELECT concat_ws('|', state, output, error) FROM task").await;
        let expected = "DONE|ERROR:  division by zero\nSTATEMENT:  SELECT 1/0";
        assert_eq!(row.as_deref(), Some(expected));
        fixture.stop().await;
    });
}

#[test]
fn a_task_runs_at_its_plan() {
    run(async {
        let fixture = Fixture::new().await;
        fixture
            .run(
                "INSERT INTO task (plan, input) VALUES (now() + '5 min'::INTERVAL, 'SELECT now()')",
            )
            .await;
        fixture
            .run("INSERT INTO task (plan, input) VALUES ('2029-07-01 12:51:00', 'SELECT now()')")
            .await;
        fixture.run(
            "INSERT INTO task (plan, input) VALUES (now() + '300 ms'::INTERVAL, 'SELECT now()')",
        )
        .await;
        fixture.until("EXISTS (SELECT FROM task WHERE id = 3 AND state = 'DONE')").await;
        let early = fixture
            .get("SELECT output::timestamptz < plan OR start < plan FROM task WHERE id = 3")
            .await;
        assert_eq!(early.as_deref(), Some("f"));
        fixture.sync().await;
        let waiting =
            fixture.get("SELECT count(*) FROM task WHERE state = 'PLAN' AND start IS NULL").await;
        assert_eq!(waiting.as_deref(), Some("2"));
        fixture.stop().await;
    });
}

#[test]
fn a_task_repeats() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("ALTER TABLE task ADD COLUMN mine text").await;
        fixture
            .run(
                "INSERT INTO task (repeat, input, \"group\", data, mine, max) \
             VALUES ('5 min', 'SELECT now()', 'minutes', 'd', 'm', 3)",
            )
            .await;
        fixture.until("EXISTS (SELECT FROM task WHERE id = 2)").await;
        let again = fixture
            .get(
                "SELECT concat_ws(' ', b.state, b.plan = a.plan + '5 min'::interval, b.parent = a.id, \
                 b.input, b.repeat, b.\"group\", b.data, b.mine, b.max, b.start, b.output) \
                 FROM task a, task b WHERE a.id = 1 AND b.id = 2",
            )
            .await;
        assert_eq!(again.as_deref(), Some("PLAN t t SELECT now() 00:05:00 minutes d m 3"));
        fixture.stop().await;
    });
}

/// A statement that waits for a lock, where the specification has `pg_sleep(10)`.
async fn gate(fixture: &Fixture) -> String {
    let number = fixture.get("SELECT abs(hashtext(current_schema())) ").await.expect("a number");
    fixture.run(&format!("SELECT pg_advisory_lock({number})")).await;
    format!("SELECT pg_advisory_lock_shared({number})")
}

async fn open_gate(fixture: &Fixture) {
    fixture.run("SELECT pg_advisory_unlock_all()").await;
}

#[test]
fn two_at_a_time_and_a_third_with_a_higher_max() {
    run(async {
        let fixture = Fixture::new().await;
        let wait = gate(&fixture).await;
        fixture
            .run(&format!(
                "INSERT INTO task (max, input) SELECT 1, '{wait}' FROM generate_series(1, 10)"
            ))
            .await;
        fixture.until("2 = (SELECT count(*) FROM task WHERE state = 'WORK')").await;
        fixture.run("INSERT INTO task (max, input) VALUES (2, 'SELECT now()')").await;
        fixture.until("EXISTS (SELECT FROM task WHERE max = 2 AND state = 'DONE')").await;
        fixture.sync().await;
        let running = fixture
            .get("SELECT string_agg(id::text, ' ' ORDER BY id) FROM task WHERE state <> 'PLAN' AND max = 1")
            .await;
        assert_eq!(running.as_deref(), Some("1 2"));
        open_gate(&fixture).await;
        fixture.idle().await;
        let most = fixture
            .get(
                "SELECT max(n) FROM (SELECT (SELECT count(*) FROM task b WHERE b.max = 1 AND b.start <= a.start \
                 AND b.stop > a.start) AS n FROM task a WHERE a.max = 1) x",
            )
            .await;
        assert_eq!(most.as_deref(), Some("2"));
        fixture.stop().await;
    });
}

#[test]
fn groups_run_beside_each_other() {
    run(async {
        let fixture = Fixture::new().await;
        let wait = gate(&fixture).await;
        for group in ["one", "two"] {
            fixture.run(&format!(
                "INSERT INTO task (\"group\", max, input) SELECT '{group}', 1, '{wait}' FROM generate_series(1, 10)"
            ))
            .await;
        }
        fixture.until("4 = (SELECT count(*) FROM task WHERE state = 'WORK')").await;
        fixture.sync().await;
        let each = "SELECT string_agg(n::text, ' ') FROM (SELECT count(*) AS n FROM task \
                    WHERE state = 'WORK' GROUP BY \"group\") x";
        assert_eq!(fixture.get(each).await.as_deref(), Some("2 2"));
        open_gate(&fixture).await;
        fixture.idle().await;
        fixture.stop().await;
    });
}

#[test]
fn tasks_with_negative_max_run_in_sequence_with_pauses() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(
            "INSERT INTO task (max, input, drift, \"group\") SELECT -150, 'SELECT pg_sleep(0.02)', drift, drift::text \
             FROM generate_series(1, 4), unnest(ARRAY[false, true]) AS drift",
        )
        .await;
        fixture.idle().await;
        // With drift each starts one pause after the end of the last one; without it on a grid of pauses.
        let gaps = "SELECT count(*) FILTER (WHERE drift AND start >= before + '150 ms'::interval)
                || ' ' || count(*) FILTER (WHERE NOT drift AND start > before AND
                    extract(epoch FROM plan - first)::numeric % 0.15 = 0 AND start >= plan)
            FROM (SELECT *, lag(stop) OVER w AS before, first_value(plan) OVER w AS first
                FROM task WINDOW w AS (PARTITION BY drift ORDER BY id)) x";
        assert_eq!(fixture.get(gaps).await.as_deref(), Some("3 3"));
        fixture.stop().await;
    });
}

#[test]
fn a_task_is_cancelled_after_its_timeout() {
    run(async {
        let fixture = Fixture::new().await;
        fixture
            .run("INSERT INTO task (timeout, input) VALUES ('0.2 sec', 'SELECT pg_sleep(100)')")
            .await;
        fixture.idle().await;
        let error = fixture.get("SELECT error FROM task").await;
        let expected = "ERROR:  canceling statement due to statement timeout\nSTATEMENT:  SELECT pg_sleep(100)";
        assert_eq!(error.as_deref(), Some(expected));
        fixture.stop().await;
    });
}

//! Every example of the text that SQL tasks were first described with.

use crate::rig::{Rig, cluster, run};

#[test]
fn as_soon_as_possible() {
    run(async {
        let rig = Rig::new().await;
        rig.run("INSERT INTO task (input) VALUES ('SELECT now()')").await;
        rig.idle().await;
        let row = rig
            .get(
                "SELECT concat_ws(' ', state, output::timestamptz = start OR \
                 output::timestamptz - start < '1 min', error, start >= plan, stop >= start, pid > 0) \
                 FROM task",
            )
            .await;
        assert_eq!(row.as_deref(), Some("DONE t t t t"));
        rig.stop().await;
    });
}

#[test]
fn on_a_remote() {
    run(async {
        let rig = Rig::new().await;
        let url = cluster().url("postgres");
        rig.run(&format!("INSERT INTO task (input, remote) VALUES ('SELECT now()', '{url}')"))
            .await;
        rig.run(&format!("INSERT INTO task (input, remote) VALUES ('SELECT 1/0', '{url}')")).await;
        rig.run("INSERT INTO task (input, remote) VALUES ('SELECT 1/0', 'user=user host=host')")
            .await;
        rig.idle().await;
        let good =
            rig.get("SELECT output::timestamptz <= now() AND pid > 0 FROM task WHERE id = 1").await;
        assert_eq!(good.as_deref(), Some("t"));
        let failed = rig.get("SELECT error FROM task WHERE id = 2").await;
        assert_eq!(failed.as_deref(), Some("ERROR:  division by zero\nSTATEMENT:  SELECT 1/0"));
        let unreachable = rig
            .get(
                "SELECT concat_ws(' ', state, start, pid, stop >= plan, output, \
                 error LIKE 'ERROR:  could not connect to the remote%DETAIL:  %') FROM task WHERE id = 3",
            )
            .await;
        assert_eq!(unreachable.as_deref(), Some("DONE t t"));
        // In pg_task the scheduler itself had the name of a task after a remote one.
        let name = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_work {} task 1000'",
            rig.schema
        );
        assert_eq!(rig.get(&name).await.as_deref(), Some("1"));
        rig.stop().await;
    });
}

#[test]
fn an_error_is_written_down() {
    run(async {
        let rig = Rig::new().await;
        rig.run("INSERT INTO task (input) VALUES ('SELECT 1/0')").await;
        rig.idle().await;
        let row = rig.get("SELECT concat_ws('|', state, output, error) FROM task").await;
        let expected = "DONE|ERROR:  division by zero\nSTATEMENT:  SELECT 1/0";
        assert_eq!(row.as_deref(), Some(expected));
        rig.stop().await;
    });
}

#[test]
fn at_a_given_time() {
    run(async {
        let rig = Rig::new().await;
        rig.run(
            "INSERT INTO task (plan, input) VALUES (now() + '5 min'::INTERVAL, 'SELECT now()')",
        )
        .await;
        rig.run("INSERT INTO task (plan, input) VALUES ('2029-07-01 12:51:00', 'SELECT now()')")
            .await;
        rig.run(
            "INSERT INTO task (plan, input) VALUES (now() + '300 ms'::INTERVAL, 'SELECT now()')",
        )
        .await;
        rig.until("EXISTS (SELECT FROM task WHERE id = 3 AND state = 'DONE')").await;
        let early = rig
            .get("SELECT output::timestamptz < plan OR start < plan FROM task WHERE id = 3")
            .await;
        assert_eq!(early.as_deref(), Some("f"));
        rig.settle().await;
        let waiting =
            rig.get("SELECT count(*) FROM task WHERE state = 'PLAN' AND start IS NULL").await;
        assert_eq!(waiting.as_deref(), Some("2"));
        rig.stop().await;
    });
}

#[test]
fn again_and_again() {
    run(async {
        let rig = Rig::new().await;
        rig.run("ALTER TABLE task ADD COLUMN mine text").await;
        rig.run(
            "INSERT INTO task (repeat, input, \"group\", data, mine, max) \
             VALUES ('5 min', 'SELECT now()', 'minutes', 'd', 'm', 3)",
        )
        .await;
        rig.until("EXISTS (SELECT FROM task WHERE id = 2)").await;
        let again = rig
            .get(
                "SELECT concat_ws(' ', b.state, b.plan = a.plan + '5 min'::interval, b.parent = a.id, \
                 b.input, b.repeat, b.\"group\", b.data, b.mine, b.max, b.start, b.output) \
                 FROM task a, task b WHERE a.id = 1 AND b.id = 2",
            )
            .await;
        assert_eq!(again.as_deref(), Some("PLAN t t SELECT now() 00:05:00 minutes d m 3"));
        rig.stop().await;
    });
}

/// Tasks of the tests wait at a gate instead of sleeping: `pg_sleep(10)` in the text.
async fn gate(rig: &Rig) -> String {
    let number = rig.get("SELECT abs(hashtext(current_schema())) ").await.expect("a number");
    rig.run(&format!("SELECT pg_advisory_lock({number})")).await;
    format!("SELECT pg_advisory_lock_shared({number})")
}

async fn open_gate(rig: &Rig) {
    rig.run("SELECT pg_advisory_unlock_all()").await;
}

#[test]
fn two_at_a_time_and_a_third_with_a_higher_max() {
    run(async {
        let rig = Rig::new().await;
        let wait = gate(&rig).await;
        rig.run(&format!(
            "INSERT INTO task (max, input) SELECT 1, '{wait}' FROM generate_series(1, 10)"
        ))
        .await;
        rig.until("2 = (SELECT count(*) FROM task WHERE state = 'WORK')").await;
        rig.run("INSERT INTO task (max, input) VALUES (2, 'SELECT now()')").await;
        rig.until("EXISTS (SELECT FROM task WHERE max = 2 AND state = 'DONE')").await;
        rig.settle().await;
        let running = rig
            .get("SELECT string_agg(id::text, ' ' ORDER BY id) FROM task WHERE state <> 'PLAN' AND max = 1")
            .await;
        assert_eq!(running.as_deref(), Some("1 2"));
        open_gate(&rig).await;
        rig.idle().await;
        let most = rig
            .get(
                "SELECT max(n) FROM (SELECT (SELECT count(*) FROM task b WHERE b.max = 1 AND b.start <= a.start \
                 AND b.stop > a.start) AS n FROM task a WHERE a.max = 1) x",
            )
            .await;
        assert_eq!(most.as_deref(), Some("2"));
        rig.stop().await;
    });
}

#[test]
fn groups_run_beside_each_other() {
    run(async {
        let rig = Rig::new().await;
        let wait = gate(&rig).await;
        for group in ["one", "two"] {
            rig.run(&format!(
                "INSERT INTO task (\"group\", max, input) SELECT '{group}', 1, '{wait}' FROM generate_series(1, 10)"
            ))
            .await;
        }
        rig.until("4 = (SELECT count(*) FROM task WHERE state = 'WORK')").await;
        rig.settle().await;
        let each = "SELECT string_agg(n::text, ' ') FROM (SELECT count(*) AS n FROM task \
                    WHERE state = 'WORK' GROUP BY \"group\") x";
        assert_eq!(rig.get(each).await.as_deref(), Some("2 2"));
        open_gate(&rig).await;
        rig.idle().await;
        rig.stop().await;
    });
}

#[test]
fn one_after_the_other_with_pauses() {
    run(async {
        let rig = Rig::new().await;
        rig.run(
            "INSERT INTO task (max, input, drift, \"group\") SELECT -150, 'SELECT pg_sleep(0.02)', drift, drift::text \
             FROM generate_series(1, 4), unnest(ARRAY[false, true]) AS drift",
        )
        .await;
        rig.idle().await;
        // With drift each begins a pause after the end of the one before; without it on a grid of pauses.
        let gaps = "SELECT count(*) FILTER (WHERE drift AND start >= before + '150 ms'::interval)
                || ' ' || count(*) FILTER (WHERE NOT drift AND start > before AND
                    extract(epoch FROM plan - first)::numeric % 0.15 = 0 AND start >= plan)
            FROM (SELECT *, lag(stop) OVER w AS before, first_value(plan) OVER w AS first
                FROM task WINDOW w AS (PARTITION BY drift ORDER BY id)) x";
        assert_eq!(rig.get(gaps).await.as_deref(), Some("3 3"));
        rig.stop().await;
    });
}

#[test]
fn no_longer_than_the_timeout() {
    run(async {
        let rig = Rig::new().await;
        rig.run("INSERT INTO task (timeout, input) VALUES ('0.2 sec', 'SELECT pg_sleep(100)')")
            .await;
        rig.idle().await;
        let error = rig.get("SELECT error FROM task").await;
        let expected = "ERROR:  canceling statement due to statement timeout\nSTATEMENT:  SELECT pg_sleep(100)";
        assert_eq!(error.as_deref(), Some(expected));
        rig.stop().await;
    });
}

//! Plans, repetitions, cron, attempts and expired tasks.

use crate::fixture::{Fixture, run};

#[test]
fn repetitions_stay_on_their_grid_or_drift() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(
            "INSERT INTO task (plan, active, repeat, drift, \"group\", input) VALUES
             (now() - '5 min 10 sec'::interval, '1 day', '1 min', false, 'grid', 'select pg_sleep(0.05)'),
             (now() - '5 min 10 sec'::interval, '1 day', '1 min', true, 'drift', 'select pg_sleep(0.05)'),
             (now() - '100 days'::interval, '1000 days', '10 ms', false, 'dense', 'select pg_sleep(0.05)'),
             ('2020-01-31 12:00+00', '100 years', '1 mon', false, 'month', 'select 1/0')",
        )
        .await;
        fixture.until("4 <= (SELECT count(DISTINCT parent) FROM task WHERE parent < 5)").await;
        fixture.run("UPDATE task SET state = 'STOP' WHERE state = 'PLAN'").await;
        let next = async |group: &str, rule: &str| {
            let sql = format!(
                "SELECT {rule} FROM task a JOIN task b ON b.parent = a.id WHERE a.\"group\" = '{group}' AND a.id < 5"
            );
            assert_eq!(fixture.get(&sql).await.as_deref(), Some("t"), "{group}");
        };
        next("grid", "b.plan = a.plan + '6 min'::interval AND b.plan > a.stop").await;
        next("drift", "b.plan = a.stop + '1 min'::interval").await;
        next(
            "dense",
            "b.plan > a.stop AND b.plan <= a.stop + '10 ms'::interval AND (extract(epoch FROM b.plan - a.plan) * 100)::numeric % 1 = 0",
        )
        .await;
        // Month by month, so that February moves the following runs to the 29th.
        next(
            "month",
            "b.plan > a.stop AND extract(day FROM b.plan) IN (28, 29) AND a.error IS NOT NULL",
        )
        .await;
        fixture.stop().await;
    });
}

#[test]
fn an_expired_task_does_not_run_and_repeats() {
    run(async {
        let fixture = Fixture::new().await;
        fixture
            .run(
                "INSERT INTO task (plan, active, repeat, input, max) VALUES
             (now() - '2 hours'::interval, '1 hour', '0 sec', 'select 1', 0),
             (now() - '2 hours'::interval, '1 hour', '7 hours', 'select 1', 0),
             (now() - '2 hours'::interval, '1 hour', '0 sec', 'select 1', -5)",
            )
            .await;
        fixture.until("3 = (SELECT count(*) FROM task WHERE stop IS NOT NULL)").await;
        let rows = "SELECT string_agg(concat_ws('|', state, start = stop, pid, output, error), ' ') FROM task WHERE id < 4";
        let one = "DONE|t|ERROR:  task not active";
        assert_eq!(fixture.get(rows).await, Some(format!("{one} {one} {one}")));
        let again = "SELECT b.plan = a.plan + '7 hours'::interval FROM task a JOIN task b ON b.parent = a.id";
        assert_eq!(fixture.get(again).await.as_deref(), Some("t"));
        fixture.stop().await;
    });
}

#[test]
fn thousands_of_expired_tasks_end_at_once() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(
            "INSERT INTO task (plan, input) SELECT now() - '1 day'::interval, 'select 1' FROM generate_series(1, 3000)",
        )
        .await;
        fixture.idle().await;
        let count = "SELECT count(*) FROM task WHERE error = 'ERROR:  task not active'";
        assert_eq!(fixture.get(count).await.as_deref(), Some("3000"));
        fixture.stop().await;
    });
}

#[test]
fn expired_tasks_are_written_at_once() {
    // The outcomes of tasks that did not start, and the rest of a full claim, waited for the next poll.
    run(async {
        let fixture = Fixture::with("\"sleep\": 3600000, \"run\": 3").await;
        fixture.sync().await;
        fixture.run(
            "INSERT INTO task (plan, input) SELECT now() - '1 day'::interval, 'select 1' FROM generate_series(1, 2500)",
        )
        .await;
        fixture.idle().await;
        fixture.run("INSERT INTO task (input, delimiter) VALUES ('select 1', '→')").await;
        fixture.run("INSERT INTO task (input, \"group\") SELECT 'select 1', n::text FROM generate_series(1, 20) AS n").await;
        fixture.idle().await;
        fixture.stop().await;
    });
}

#[test]
fn the_extended_profile_distinguishes_failed_and_expired() {
    run(async {
        let fixture = Fixture::with("\"profile\": \"extended\"").await;
        fixture.run(
            "INSERT INTO task (plan, input) VALUES (now(), 'select 1'), (now(), 'select 1/0'), (now() - '1 day'::interval, 'x')",
        )
        .await;
        fixture.idle().await;
        let states = fixture.get("SELECT string_agg(state::text, ' ' ORDER BY id) FROM task").await;
        assert_eq!(states.as_deref(), Some("DONE FAIL GONE"));
        fixture.stop().await;
    });
}

#[test]
fn a_timeout_covers_the_whole_task_in_milliseconds() {
    // pg_task rounded to seconds, so that 400 ms was no limit at all, and counted each statement by itself.
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(
            "INSERT INTO task (timeout, input, count) VALUES ('400 ms', 'select pg_sleep(60)', 5),
             ('500 ms', 'select pg_sleep(0.3); select pg_sleep(60)', 5), ('10 sec', 'select ''fine''', 5)",
        )
        .await;
        fixture.idle().await;
        let texts = "SELECT string_agg(coalesce(split_part(error, chr(10), 1), output), '|' ORDER BY id) FROM task";
        let late = "ERROR:  canceling statement due to statement timeout";
        assert_eq!(fixture.get(texts).await, Some(format!("{late}|{late}|fine")));
        fixture.stop().await;
    });
}

#[test]
fn cron_uses_its_time_zone() {
    run(async {
        let fixture = Fixture::new().await;
        // With a plan the first run is at that time, the next one by cron.
        fixture
            .run(
                "INSERT INTO task (cron, zone, input, plan) \
             VALUES ('0 3 * * *', 'America/New_York', 'select 1', now() - '1 sec'::interval)",
            )
            .await;
        fixture.until("EXISTS (SELECT FROM task WHERE stop IS NOT NULL)").await;
        let next = "SELECT b.plan > a.stop AND b.plan <= a.stop + '25 hours'::interval AND b.cron = a.cron AND \
                    (b.plan AT TIME ZONE 'America/New_York')::time = '03:00' FROM task a JOIN task b ON b.parent = a.id \
                    WHERE a.id = 1";
        assert_eq!(fixture.get(next).await.as_deref(), Some("t"));
        fixture.stop().await;
    });
}

#[test]
fn cron_without_a_plan_starts_at_its_next_time() {
    // It ran when it was inserted: a report for every Monday ran on the Thursday of its INSERT.
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("SET TimeZone = 'Asia/Tokyo'").await;
        fixture.run(
            "INSERT INTO task (cron, zone, input) VALUES ('0 3 1 1 *', 'America/New_York', 'select 1'), \
             ('0 3 1 1 *', NULL, 'select 2')",
        )
        .await;
        fixture.sync().await;
        let rows = "SELECT string_agg(concat_ws(' ', state, to_char(plan AT TIME ZONE coalesce(zone, 'UTC'), \
                    'MM-DD HH24:MI')), '|' ORDER BY id) FROM task WHERE plan > now()";
        // Without a zone the time zone of the database counts, not that of the inserting session.
        assert_eq!(fixture.get(rows).await.as_deref(), Some("PLAN 01-01 03:00|PLAN 01-01 03:00"));
        fixture.stop().await;
    });
}

#[test]
fn cron_and_zone_are_checked_by_the_insert() {
    // They were checked when the task was claimed: an error in a row that was inserted long before.
    run(async {
        let fixture = Fixture::new().await;
        for (cron, zone, said) in [
            ("61 * * * *", "UTC", "'61' is no minute of a cron expression (0-59)"),
            ("* * * *", "UTC", "five fields (minute hour day month weekday) or six, not 4"),
            ("0 0 30 2 *", "UTC", "'0 0 30 2 *' names no day that comes"),
            ("@never", "UTC", "'@never' is none of @yearly"),
            ("* * * * *", "Nowhere", "time zone \"Nowhere\" not recognized"),
        ] {
            let insert =
                format!("INSERT INTO task (input, cron, zone) VALUES ('x', '{cron}', '{zone}')");
            let refused = fixture.client.try_run(&insert).await;
            let error = refused.expect_err(cron).to_string();
            assert!(error.contains(said), "{cron}: {error}");
        }
        fixture.run("INSERT INTO task (input, cron) VALUES ('x', '@daily')").await;
        let refused = fixture.client.try_run("UPDATE task SET cron = 'often'").await;
        assert!(refused.is_err());
        fixture.stop().await;
    });
}

#[test]
fn a_failed_task_is_tried_again_up_to_attempts_max() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("CREATE SEQUENCE tries").await;
        let schema = fixture.schema.clone();
        fixture.run(&format!(
            "INSERT INTO task (attempts_max, backoff, input) VALUES (3, '10 ms', 'select 1/(nextval(''{schema}.tries'') - 3)'), \
             (5, '10 ms', 'select 1/(nextval(''{schema}.tries'') / 100)')"
        ))
        .await;
        fixture.idle().await;
        // The third number divides by zero, the others do not: the first task succeeds at once.
        let first = fixture
            .get("SELECT concat_ws(' ', attempts, error IS NULL) FROM task WHERE id = 1")
            .await;
        assert_eq!(first.as_deref(), Some("0 t"));
        let second = fixture.get("SELECT concat_ws(' ', attempts, state, error LIKE 'ERROR:  division%') FROM task WHERE id = 2").await;
        assert_eq!(second.as_deref(), Some("4 DONE t"));
        assert_eq!(fixture.get("SELECT last_value FROM tries").await.as_deref(), Some("6"));
        fixture.stop().await;
    });
}

#[test]
fn finished_tasks_are_deleted_after_keep() {
    run(async {
        let fixture = Fixture::with("\"keep\": \"1 hour\"").await;
        fixture.stop().await;
        fixture.run(
            "INSERT INTO task (input, state, stop) VALUES ('old', 'DONE', now() - '2 hours'::interval), \
             ('new', 'DONE', now()), ('stopped', 'STOP', now() - '2 hours'::interval)",
        )
        .await;
        let tasks = crate::fixture::start(&fixture.schema, "\"keep\": \"1 hour\"");
        fixture.until("2 = (SELECT count(*) FROM task)").await;
        assert_eq!(
            fixture.get("SELECT string_agg(input, ' ' ORDER BY id) FROM task").await.as_deref(),
            Some("new stopped")
        );
        taskyard_core::service::Service::stop(&tasks).await;
    });
}

#[test]
fn no_plan_is_missed_after_an_idle_period() {
    // pg_task slept for whole seconds when idle, woke too early, and then never again.
    run(async {
        let fixture = Fixture::with("\"sleep\": 3600000").await;
        fixture.sync().await;
        fixture.run(
            "INSERT INTO task (plan, input, \"group\") SELECT now() + n * '37 ms'::interval, 'select 1', n::text FROM generate_series(1, 20) AS n",
        )
        .await;
        fixture.idle().await;
        assert_eq!(
            fixture.get("SELECT bool_and(start >= plan) FROM task").await.as_deref(),
            Some("t")
        );
        fixture.stop().await;
    });
}

#[test]
fn any_number_of_old_tasks_is_deleted() {
    // A thousand were deleted every ten seconds, so with more tasks than that the table grew without limit.
    run(async {
        let fixture = Fixture::with("\"keep\": \"1 hour\"").await;
        fixture.run("INSERT INTO task (input, state, stop) SELECT 'select 1', 'DONE', now() - interval '2 hours' FROM generate_series(1, 7000)").await;
        fixture.until("NOT EXISTS (SELECT FROM task)").await;
        fixture.stop().await;
    });
}

#[test]
fn a_long_pause_survives_a_restart() {
    // The next leader read only the pauses after tasks that had ended within the last hour.
    run(async {
        let fixture = Fixture::new().await;
        fixture.stop().await;
        let insert =
            "INSERT INTO task (input, \"group\", max, drift, state, plan, start, stop) VALUES";
        let ended = "now() - interval '20 hours'";
        for (group, max) in [("long", -86_400_000), ("short", -36_000_000)] {
            fixture.run(&format!(
                "{insert} ('select 1', '{group}', {max}, true, 'DONE', {ended}, {ended}, {ended})"
            ))
            .await;
            fixture
                .run(&format!(
                    "{insert} ('select 2', '{group}', {max}, true, 'PLAN', now(), NULL, NULL)"
                ))
                .await;
        }
        let tasks = crate::fixture::start(&fixture.schema, "");
        fixture.until("EXISTS (SELECT FROM task WHERE \"group\" = 'short' AND output = '2')").await;
        fixture.sync().await;
        let state = fixture
            .get("SELECT state FROM task WHERE \"group\" = 'long' AND input = 'select 2'")
            .await;
        assert_eq!(state.as_deref(), Some("PLAN"));
        taskyard_core::service::Service::stop(&tasks).await;
    });
}

#[test]
fn a_retry_does_not_move_the_grid_of_repetitions() {
    // The grid was counted from the last try, so after one failure it never returned to the full hour.
    run(async {
        let fixture = Fixture::new().await;
        let schema = fixture.schema.clone();
        fixture.run("CREATE SEQUENCE runs").await;
        let input = format!("select 1 / (nextval(''{schema}.runs'') - 1)");
        fixture.run(&format!("INSERT INTO task (input, repeat, attempts_max, backoff, active, plan) VALUES ('{input}', '1 hour', 3, '10 ms', '2 hours', date_trunc('hour', now()))")).await;
        fixture.until("EXISTS (SELECT FROM task WHERE state = 'DONE')").await;
        let rows = fixture.get("SELECT string_agg(coalesce(output, to_char(plan, 'MI:SS')), ' ' ORDER BY id) FROM task WHERE state = 'DONE' OR plan = date_trunc('hour', plan)").await;
        assert_eq!(rows.as_deref(), Some("1 00:00"));
        fixture.stop().await;
    });
}

//! Plans, repetitions, cron, attempts, and what is too late.

use crate::rig::{Rig, run};

#[test]
fn repetitions_stay_on_their_grid_or_drift() {
    run(async {
        let rig = Rig::new().await;
        rig.run(
            "INSERT INTO task (plan, active, repeat, drift, \"group\", input) VALUES
             (now() - '5 min 10 sec'::interval, '1 day', '1 min', false, 'grid', 'select pg_sleep(0.05)'),
             (now() - '5 min 10 sec'::interval, '1 day', '1 min', true, 'drift', 'select pg_sleep(0.05)'),
             (now() - '100 days'::interval, '1000 days', '10 ms', false, 'dense', 'select pg_sleep(0.05)'),
             ('2020-01-31 12:00+00', '100 years', '1 mon', false, 'month', 'select 1/0')",
        )
        .await;
        rig.until("4 <= (SELECT count(DISTINCT parent) FROM task WHERE parent < 5)").await;
        rig.run("UPDATE task SET state = 'STOP' WHERE state = 'PLAN'").await;
        let next = async |group: &str, rule: &str| {
            let sql = format!(
                "SELECT {rule} FROM task a JOIN task b ON b.parent = a.id WHERE a.\"group\" = '{group}' AND a.id < 5"
            );
            assert_eq!(rig.get(&sql).await.as_deref(), Some("t"), "{group}");
        };
        next("grid", "b.plan = a.plan + '6 min'::interval AND b.plan > a.stop").await;
        next("drift", "b.plan = a.stop + '1 min'::interval").await;
        next(
            "dense",
            "b.plan > a.stop AND b.plan <= a.stop + '10 ms'::interval AND (extract(epoch FROM b.plan - a.plan) * 100)::numeric % 1 = 0",
        )
        .await;
        // Step by step, so that February moves what follows to the 29th.
        next(
            "month",
            "b.plan > a.stop AND extract(day FROM b.plan) IN (28, 29) AND a.error IS NOT NULL",
        )
        .await;
        rig.stop().await;
    });
}

#[test]
fn what_is_too_late_does_not_run_and_repeats() {
    run(async {
        let rig = Rig::new().await;
        rig.run(
            "INSERT INTO task (plan, active, repeat, input, max) VALUES
             (now() - '2 hours'::interval, '1 hour', '0 sec', 'select 1', 0),
             (now() - '2 hours'::interval, '1 hour', '7 hours', 'select 1', 0),
             (now() - '2 hours'::interval, '1 hour', '0 sec', 'select 1', -5)",
        )
        .await;
        rig.until("3 = (SELECT count(*) FROM task WHERE stop IS NOT NULL)").await;
        let rows = "SELECT string_agg(concat_ws('|', state, start = stop, pid, output, error), ' ') FROM task WHERE id < 4";
        let one = "DONE|t|ERROR:  task not active";
        assert_eq!(rig.get(rows).await, Some(format!("{one} {one} {one}")));
        let again = "SELECT b.plan = a.plan + '7 hours'::interval FROM task a JOIN task b ON b.parent = a.id";
        assert_eq!(rig.get(again).await.as_deref(), Some("t"));
        rig.stop().await;
    });
}

#[test]
fn thousands_that_are_too_late_are_through_at_once() {
    run(async {
        let rig = Rig::new().await;
        rig.run(
            "INSERT INTO task (plan, input) SELECT now() - '1 day'::interval, 'select 1' FROM generate_series(1, 3000)",
        )
        .await;
        rig.idle().await;
        let count = "SELECT count(*) FROM task WHERE error = 'ERROR:  task not active'";
        assert_eq!(rig.get(count).await.as_deref(), Some("3000"));
        rig.stop().await;
    });
}

#[test]
fn what_does_not_run_is_written_down_at_once() {
    // The ends of tasks that never began, and the rest of a claim that was full, used to wait for the next poll.
    run(async {
        let rig = Rig::with("\"sleep\": 3600000, \"run\": 3").await;
        rig.settle().await;
        rig.run(
            "INSERT INTO task (plan, input) SELECT now() - '1 day'::interval, 'select 1' FROM generate_series(1, 2500)",
        )
        .await;
        rig.idle().await;
        rig.run("INSERT INTO task (input, delimiter) VALUES ('select 1', '→')").await;
        rig.run("INSERT INTO task (input, \"group\") SELECT 'select 1', n::text FROM generate_series(1, 20) AS n").await;
        rig.idle().await;
        rig.stop().await;
    });
}

#[test]
fn the_extended_profile_tells_failed_and_late_apart() {
    run(async {
        let rig = Rig::with("\"profile\": \"extended\"").await;
        rig.run(
            "INSERT INTO task (plan, input) VALUES (now(), 'select 1'), (now(), 'select 1/0'), (now() - '1 day'::interval, 'x')",
        )
        .await;
        rig.idle().await;
        let states = rig.get("SELECT string_agg(state::text, ' ' ORDER BY id) FROM task").await;
        assert_eq!(states.as_deref(), Some("DONE FAIL GONE"));
        rig.stop().await;
    });
}

#[test]
fn a_timeout_counts_the_whole_task_in_milliseconds() {
    // pg_task rounded to seconds, so that 400 ms was no limit at all, and counted each statement by itself.
    run(async {
        let rig = Rig::new().await;
        rig.run(
            "INSERT INTO task (timeout, input, count) VALUES ('400 ms', 'select pg_sleep(60)', 5),
             ('500 ms', 'select pg_sleep(0.3); select pg_sleep(60)', 5), ('10 sec', 'select ''fine''', 5)",
        )
        .await;
        rig.idle().await;
        let texts = "SELECT string_agg(coalesce(split_part(error, chr(10), 1), output), '|' ORDER BY id) FROM task";
        let late = "ERROR:  canceling statement due to statement timeout";
        assert_eq!(rig.get(texts).await, Some(format!("{late}|{late}|fine")));
        rig.stop().await;
    });
}

#[test]
fn cron_with_a_time_zone() {
    run(async {
        let rig = Rig::new().await;
        // With a plan the first run is then, the next one by cron.
        rig.run(
            "INSERT INTO task (cron, zone, input, plan) \
             VALUES ('0 3 * * *', 'America/New_York', 'select 1', now() - '1 sec'::interval)",
        )
        .await;
        rig.until("EXISTS (SELECT FROM task WHERE stop IS NOT NULL)").await;
        let next = "SELECT b.plan > a.stop AND b.plan <= a.stop + '25 hours'::interval AND b.cron = a.cron AND \
                    (b.plan AT TIME ZONE 'America/New_York')::time = '03:00' FROM task a JOIN task b ON b.parent = a.id \
                    WHERE a.id = 1";
        assert_eq!(rig.get(next).await.as_deref(), Some("t"));
        rig.stop().await;
    });
}

#[test]
fn cron_without_a_plan_begins_at_its_next_time() {
    // It ran when it was inserted: a report of every Monday came on the Thursday it was written.
    run(async {
        let rig = Rig::new().await;
        rig.run("SET TimeZone = 'Asia/Tokyo'").await;
        rig.run(
            "INSERT INTO task (cron, zone, input) VALUES ('0 3 1 1 *', 'America/New_York', 'select 1'), \
             ('0 3 1 1 *', NULL, 'select 2')",
        )
        .await;
        rig.settle().await;
        let rows = "SELECT string_agg(concat_ws(' ', state, to_char(plan AT TIME ZONE coalesce(zone, 'UTC'), \
                    'MM-DD HH24:MI')), '|' ORDER BY id) FROM task WHERE plan > now()";
        // Without a zone the clocks of the database count, not those of the inserting session.
        assert_eq!(rig.get(rows).await.as_deref(), Some("PLAN 01-01 03:00|PLAN 01-01 03:00"));
        rig.stop().await;
    });
}

#[test]
fn cron_and_zone_are_checked_when_they_are_inserted() {
    // They were read when the task was to begin: an error in a row that was written long before.
    run(async {
        let rig = Rig::new().await;
        for (cron, zone, said) in [
            ("61 * * * *", "UTC", "'61' is no minute of a cron expression (0-59)"),
            ("* * * *", "UTC", "five fields (minute hour day month weekday) or six, not 4"),
            ("0 0 30 2 *", "UTC", "'0 0 30 2 *' names no day that comes"),
            ("@never", "UTC", "'@never' is none of @yearly"),
            ("* * * * *", "Nowhere", "time zone \"Nowhere\" not recognized"),
        ] {
            let insert =
                format!("INSERT INTO task (input, cron, zone) VALUES ('x', '{cron}', '{zone}')");
            let refused = rig.client.try_run(&insert).await;
            let error = refused.expect_err(cron).to_string();
            assert!(error.contains(said), "{cron}: {error}");
        }
        rig.run("INSERT INTO task (input, cron) VALUES ('x', '@daily')").await;
        let refused = rig.client.try_run("UPDATE task SET cron = 'often'").await;
        assert!(refused.is_err());
        rig.stop().await;
    });
}

#[test]
fn a_failed_task_is_tried_again_only_where_asked() {
    run(async {
        let rig = Rig::new().await;
        rig.run("CREATE SEQUENCE tries").await;
        let schema = rig.schema.clone();
        rig.run(&format!(
            "INSERT INTO task (attempts_max, backoff, input) VALUES (3, '10 ms', 'select 1/(nextval(''{schema}.tries'') - 3)'), \
             (5, '10 ms', 'select 1/(nextval(''{schema}.tries'') / 100)')"
        ))
        .await;
        rig.idle().await;
        // The third number divides by zero, the others do not: the first task is through at once.
        let first =
            rig.get("SELECT concat_ws(' ', attempts, error IS NULL) FROM task WHERE id = 1").await;
        assert_eq!(first.as_deref(), Some("0 t"));
        let second = rig.get("SELECT concat_ws(' ', attempts, state, error LIKE 'ERROR:  division%') FROM task WHERE id = 2").await;
        assert_eq!(second.as_deref(), Some("4 DONE t"));
        assert_eq!(rig.get("SELECT last_value FROM tries").await.as_deref(), Some("6"));
        rig.stop().await;
    });
}

#[test]
fn finished_tasks_are_kept_as_long_as_asked() {
    run(async {
        let rig = Rig::with("\"keep\": \"1 hour\"").await;
        rig.stop().await;
        rig.run(
            "INSERT INTO task (input, state, stop) VALUES ('old', 'DONE', now() - '2 hours'::interval), \
             ('new', 'DONE', now()), ('stopped', 'STOP', now() - '2 hours'::interval)",
        )
        .await;
        let tasks = crate::rig::start(&rig.schema, "\"keep\": \"1 hour\"");
        rig.until("2 = (SELECT count(*) FROM task)").await;
        assert_eq!(
            rig.get("SELECT string_agg(input, ' ' ORDER BY id) FROM task").await.as_deref(),
            Some("new stopped")
        );
        taskyard_core::service::Service::stop(&tasks).await;
    });
}

#[test]
fn no_plan_is_missed_after_a_quiet_time() {
    // pg_task slept for whole seconds once it was idle, woke too early, and then never again.
    run(async {
        let rig = Rig::with("\"sleep\": 3600000").await;
        rig.settle().await;
        rig.run(
            "INSERT INTO task (plan, input, \"group\") SELECT now() + n * '37 ms'::interval, 'select 1', n::text FROM generate_series(1, 20) AS n",
        )
        .await;
        rig.idle().await;
        assert_eq!(rig.get("SELECT bool_and(start >= plan) FROM task").await.as_deref(), Some("t"));
        rig.stop().await;
    });
}

#[test]
fn however_many_are_old_enough_they_are_deleted() {
    // A thousand went every ten seconds, so with more tasks than that the table grew without end.
    run(async {
        let rig = Rig::with("\"keep\": \"1 hour\"").await;
        rig.run("INSERT INTO task (input, state, stop) SELECT 'select 1', 'DONE', now() - interval '2 hours' FROM generate_series(1, 7000)").await;
        rig.until("NOT EXISTS (SELECT FROM task)").await;
        rig.stop().await;
    });
}

#[test]
fn a_long_pause_outlasts_a_restart() {
    // Whoever took over knew only the pauses after tasks that had ended within the last hour.
    run(async {
        let rig = Rig::new().await;
        rig.stop().await;
        let insert =
            "INSERT INTO task (input, \"group\", max, drift, state, plan, start, stop) VALUES";
        let ended = "now() - interval '20 hours'";
        for (group, max) in [("long", -86_400_000), ("short", -36_000_000)] {
            rig.run(&format!(
                "{insert} ('select 1', '{group}', {max}, true, 'DONE', {ended}, {ended}, {ended})"
            ))
            .await;
            rig.run(&format!(
                "{insert} ('select 2', '{group}', {max}, true, 'PLAN', now(), NULL, NULL)"
            ))
            .await;
        }
        let tasks = crate::rig::start(&rig.schema, "");
        rig.until("EXISTS (SELECT FROM task WHERE \"group\" = 'short' AND output = '2')").await;
        rig.settle().await;
        let state =
            rig.get("SELECT state FROM task WHERE \"group\" = 'long' AND input = 'select 2'").await;
        assert_eq!(state.as_deref(), Some("PLAN"));
        taskyard_core::service::Service::stop(&tasks).await;
    });
}

#[test]
fn a_task_that_is_tried_again_repeats_when_it_did_before() {
    // The grid was counted from the last try, so after one failure it was beside the full hour for ever.
    run(async {
        let rig = Rig::new().await;
        let schema = rig.schema.clone();
        rig.run("CREATE SEQUENCE runs").await;
        let input = format!("select 1 / (nextval(''{schema}.runs'') - 1)");
        rig.run(&format!("INSERT INTO task (input, repeat, attempts_max, backoff, active, plan) VALUES ('{input}', '1 hour', 3, '10 ms', '2 hours', date_trunc('hour', now()))")).await;
        rig.until("EXISTS (SELECT FROM task WHERE state = 'DONE')").await;
        let rows = rig.get("SELECT string_agg(coalesce(output, to_char(plan, 'MI:SS')), ' ' ORDER BY id) FROM task WHERE state = 'DONE' OR plan = date_trunc('hour', plan)").await;
        assert_eq!(rows.as_deref(), Some("1 00:00"));
        rig.stop().await;
    });
}

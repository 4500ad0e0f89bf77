//! Groups, parallel tasks and the reuse of sessions.

use crate::fixture::{Fixture, cluster, database, run};
use taskyard_sql::connection::{Query, SessionOptions, connect};
use taskyard_sql::table::{Profile, TableName, prepare};

/// How many tasks each session ran, most first.
const PER_PID: &str = "SELECT string_agg(n::text, ' ' ORDER BY n DESC) FROM (SELECT count(*) AS n FROM task GROUP BY pid) x";

async fn per_session(columns: &str, values: &str, rows: usize) -> String {
    let fixture = Fixture::new().await;
    fixture.run(&format!(
        "INSERT INTO task (input{columns}) SELECT 'SELECT 1'{values} FROM generate_series(1, {rows})"
    ))
    .await;
    fixture.idle().await;
    let counts = fixture.get(PER_PID).await.unwrap_or_default();
    fixture.stop().await;
    counts
}

#[test]
fn sessions_are_reused_only_with_count_or_live() {
    run(async {
        assert_eq!(per_session("", "", 5).await, "1 1 1 1 1");
        assert_eq!(per_session(", count", ", 3", 7).await, "3 3 1");
        assert_eq!(per_session(", count, live", ", 2, '1 hour'", 6).await, "2 2 2");
        // When one of two sessions has run five tasks, a third may open and share the rest with the other one.
        let two = per_session(", count, max", ", 5, 1", 10).await;
        assert!(["5 5", "5 4 1", "5 3 2"].contains(&two.as_str()), "{two}");
        assert_eq!(per_session(", live", ", '1 hour'", 6).await, "6");
    });
}

#[test]
fn a_session_for_a_higher_max_runs_no_task_with_a_lower_max() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(
            "BEGIN; INSERT INTO task (input, count, max) SELECT 'SELECT 1', 6, 1 FROM generate_series(1, 10); \
             INSERT INTO task (input, count, max) VALUES ('SELECT 1', 6, 2); COMMIT",
        )
        .await;
        fixture.idle().await;
        let high = "SELECT count(*) FROM task WHERE pid = (SELECT pid FROM task WHERE max = 2)";
        assert_eq!(fixture.get(high).await.as_deref(), Some("1"));
        fixture.stop().await;
    });
}

#[test]
fn a_reused_session_is_reset() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(
            "INSERT INTO task (input, count) VALUES
             ('create temp table left_behind (i int); set work_mem = ''1MB''; prepare p as select 1', 9),
             ('select to_regclass(''left_behind''), current_setting(''work_mem'') = ''1MB'', current_setting(''pg_task.id''), \
              current_setting(''pg_task.group''), current_setting(''pg_task.table''), (select count(*) from pg_prepared_statements)', 9),
             ('select 1/0', 9), ('select 4', 9)",
        )
        .await;
        fixture.idle().await;
        assert_eq!(fixture.get(PER_PID).await.as_deref(), Some("4"));
        let second =
            fixture.get("SELECT split_part(output, chr(10), 2) FROM task WHERE id = 2").await;
        assert_eq!(second.as_deref(), Some("\\N\tf\t2\tgroup\ttask\t0"));
        fixture.stop().await;
    });
}

#[test]
fn save_keeps_the_state_of_a_session() {
    run(async {
        let fixture = Fixture::new().await;
        let schema = fixture.schema.clone();
        fixture.stop().await;
        fixture.run(&format!(
            "INSERT INTO task (count, delete, save, input) VALUES
             (9, false, true, 'create temp table kept as select 5 as n; set work_mem = ''7MB'''),
             (9, false, true, 'select n from kept; show work_mem; select current_setting(''pg_task.id'')'),
             (9, false, false, 'select n + 1 from kept'),
             (9, false, true, 'select n from kept'),
             (9, false, false, 'show work_mem; select count(*) from {schema}.task where pid <> pg_backend_pid()')"
        ))
        .await;
        let tasks = crate::fixture::start(&schema, "");
        fixture.idle().await;
        let texts = "SELECT string_agg(coalesce(split_part(error, chr(10), 1), output), '|' ORDER BY id) FROM task";
        let expected = "SELECT 1\nSET|5\n7MB\n2|6|ERROR:  relation \"kept\" does not exist at character 15|4MB\n0";
        assert_eq!(fixture.get(texts).await.as_deref(), Some(expected));
        taskyard_core::service::Service::stop(&tasks).await;
    });
}

#[test]
fn a_task_reads_its_id_and_is_the_parent_of_tasks_it_inserts() {
    run(async {
        let fixture = Fixture::new().await;
        let schema = fixture.schema.clone();
        fixture.run(&format!(
            "INSERT INTO task (\"group\", input) VALUES ('it''s a \\group', 'insert into {schema}.task (input) values (''select \
             current_setting(''''pg_task.group''''), current_setting(''''pg_task.schema''''), \
             current_setting(''''pg_task.oid'''')::oid = ''''{schema}.task''''::regclass'')')"
        ))
        .await;
        fixture.until("EXISTS (SELECT FROM task WHERE parent = 1 AND state = 'DONE')").await;
        let child =
            fixture.get("SELECT split_part(output, chr(10), 2) FROM task WHERE parent = 1").await;
        assert_eq!(child, Some(format!("it's a \\group\t{schema}\tt")));
        fixture.stop().await;
    });
}

#[test]
fn groups_with_the_same_hash_stay_separate() {
    // pg_task treated ('ab', 'c') and ('a', 'bc') as one group, because it hashed the concatenated texts.
    run(async {
        let fixture = Fixture::new().await;
        let url = cluster().url("postgres");
        fixture.run("SELECT pg_advisory_lock(77)").await;
        fixture.run(&format!(
            "INSERT INTO task (\"group\", remote, input) VALUES ('a', '{url}', 'select pg_advisory_lock_shared(77)'), \
             ('a{url}', NULL, 'select pg_advisory_lock_shared(77)')"
        ))
        .await;
        fixture.until("2 = (SELECT count(*) FROM task WHERE state = 'WORK')").await;
        assert_eq!(
            fixture.get("SELECT count(DISTINCT hash) FROM task").await.as_deref(),
            Some("1")
        );
        fixture.run("SELECT pg_advisory_unlock_all()").await;
        fixture.idle().await;
        fixture.stop().await;
    });
}

#[test]
fn a_higher_max_starts_first_at_the_run_limit() {
    run(async {
        let fixture = Fixture::with("\"run\": 1").await;
        fixture.run("SELECT pg_advisory_lock(78)").await;
        fixture.run("INSERT INTO task (\"group\", input) VALUES ('first', 'select pg_advisory_lock_shared(78)')").await;
        fixture.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        fixture.run(
            "INSERT INTO task (\"group\", max, input) SELECT 'g' || n, n % 3, 'select 1' FROM generate_series(1, 9) AS n",
        )
        .await;
        fixture.run("SELECT pg_advisory_unlock_all()").await;
        fixture.idle().await;
        let order =
            "SELECT string_agg(max::text, ' ' ORDER BY start) FROM task WHERE \"group\" <> 'first'";
        assert_eq!(fixture.get(order).await.as_deref(), Some("2 2 2 1 1 1 0 0 0"));
        fixture.stop().await;
    });
}

#[test]
fn a_pause_applies_to_a_task_inserted_later() {
    // pg_task ignored the pause when the next task was inserted after the end of the last.
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("INSERT INTO task (max, drift, input) VALUES (-400, true, 'select 1')").await;
        fixture.idle().await;
        fixture.run("INSERT INTO task (max, drift, input) VALUES (-400, true, 'select 2')").await;
        fixture.idle().await;
        let kept = "SELECT (SELECT start FROM task WHERE id = 2) >= (SELECT stop FROM task WHERE id = 1) + '400 ms'::interval";
        assert_eq!(fixture.get(kept).await.as_deref(), Some("t"));
        // The next scheduler observes it too.
        fixture.run("INSERT INTO task (max, drift, input) VALUES (-1500, true, 'select 3')").await;
        fixture.idle().await;
        fixture.stop().await;
        let tasks = crate::fixture::start(&fixture.schema, "");
        fixture.run("INSERT INTO task (max, drift, input) VALUES (-1, true, 'select 4')").await;
        fixture.idle().await;
        let kept = "SELECT (SELECT start FROM task WHERE id = 4) >= (SELECT stop FROM task WHERE id = 3) + '1500 ms'::interval";
        assert_eq!(fixture.get(kept).await.as_deref(), Some("t"));
        taskyard_core::service::Service::stop(&tasks).await;
    });
}

#[test]
fn expired_tasks_do_not_raise_the_run_limit() {
    // After an expired task a thousand more rows were read, and as many tasks started regardless of `run`.
    run(async {
        let fixture = Fixture::with("\"run\": 1").await;
        fixture.run("SELECT pg_advisory_lock(94)").await;
        fixture.run(
            "INSERT INTO task (input, plan, \"group\") SELECT 'select pg_advisory_lock_shared(94)', \
             CASE WHEN i = 0 THEN now() - interval '1 day' ELSE now() END, i::text FROM generate_series(0, 20) AS i",
        )
        .await;
        // Its outcome is written together with the claim of the others.
        fixture.until("EXISTS (SELECT FROM task WHERE error = 'ERROR:  task not active')").await;
        let busy = "SELECT count(*) FROM task WHERE state IN ('TAKE', 'WORK')";
        assert_eq!(fixture.get(busy).await.as_deref(), Some("1"));
        fixture.run("SELECT pg_advisory_unlock_all()").await;
        fixture.idle().await;
        fixture.stop().await;
    });
}

#[test]
fn a_claim_skips_groups_without_due_tasks() {
    // Every claim read all groups that had a planned task, even for tomorrow.
    run(async {
        let fixture = Fixture::new().await;
        fixture.stop().await;
        fixture.run(
            "INSERT INTO task (input, \"group\", plan) SELECT 'select 1', i::text, now() + CASE WHEN i > 3 THEN \
             interval '1 day' ELSE '0' END FROM generate_series(1, 3000) AS i; ANALYZE task",
        )
        .await;
        let Ok(mut connection) =
            connect(&database("postgres", "postgres"), &SessionOptions::default()).await
        else {
            panic!("no connection");
        };
        let names = TableName { schema: fixture.schema.clone(), table: "task".into() };
        let table = prepare(&mut connection, &names, Profile::PgTask).await.expect("it is there");
        connection
            .run("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off")
            .await
            .expect("it can be set");
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING off) {}", table.statements.claim);
        let given = ["{}", "[]", "100", "0"].into_iter().map(Some).chain([
            None,
            Some("1000000"),
            Some("100"),
        ]);
        let params = given.map(|param| param.map(str::to_owned)).collect();
        let lines =
            connection.query(Query { sql: &explain, params }).await.expect("it is explained");
        let buffers = lines.iter().filter_map(|line| line.text(0)?.trim().strip_prefix("Buffers:"));
        let pages: u32 = buffers
            .flat_map(|line| line.split(['=', ' ']).filter_map(|word| word.parse::<u32>().ok()))
            .max()
            .expect("the plan says it");
        assert!(pages > 0 && pages < 3000, "{pages} pages");
        let busy = "SELECT count(*) FROM task WHERE state = 'TAKE'";
        assert_eq!(fixture.get(busy).await.as_deref(), Some("3"));
    });
}

#[test]
fn a_busy_group_does_not_delay_the_plans_of_others() {
    // Each end claimed its own group only, and replaced the next plan of all others by the one after it: as long as one
    // group was busy without a break, planned tasks and pauses of the others waited for the poll.
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(
            "WITH many AS (INSERT INTO task (\"group\", max, count, input)
                SELECT 'many', 1, 100000, 'select 1' FROM generate_series(1, 4000))
             INSERT INTO task (\"group\", max, plan, input) VALUES
                ('planned', 0, now() + '300 ms'::interval, 'select 1'),
                ('planned', 0, now() + '400 ms'::interval, 'select 1'),
                ('slow', -50, now(), 'select 1'), ('slow', -50, now(), 'select 1'), ('slow', -50, now(), 'select 1')",
        )
        .await;
        fixture
            .until("5 = (SELECT count(*) FROM task WHERE state = 'DONE' AND \"group\" <> 'many')")
            .await;
        let busy = "SELECT count(*) > 0 FROM task WHERE state = 'PLAN' AND \"group\" = 'many'";
        assert_eq!(fixture.get(busy).await.as_deref(), Some("t"), "they had to wait for it");
        fixture.stop().await;
    });
}

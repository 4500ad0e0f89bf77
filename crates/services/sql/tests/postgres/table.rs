//! The table: created, upgraded, and used under unusual names.

use crate::fixture::{Fixture, run, start};
use taskyard_core::service::Service;
use taskyard_sql::TaskSelector;

#[test]
fn every_column_has_its_type_default_and_comment() {
    run(async {
        let fixture = Fixture::new().await;
        let columns = fixture
            .get(
                "SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum) \
                 FROM pg_attribute WHERE attrelid = 'task'::regclass AND attnum > 0",
            )
            .await;
        let time = "timestamp with time zone";
        let expected = format!(
            "id bigint, parent bigint, plan {time}, start {time}, stop {time}, active interval, live interval, repeat interval, \
             timeout interval, count integer, hash integer, max integer, pid integer, state state, delete boolean, \
             drift boolean, header boolean, string boolean, delimiter \"char\", escape \"char\", quote \"char\", data text, \
             error text, group text, input text, null text, output text, remote text, cron text, zone text, attempts integer, \
             attempts_max integer, backoff interval, save boolean, origin timestamp with time zone, chain bigint"
        );
        assert_eq!(columns, Some(expected));
        let silent = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'task'::regclass AND attnum > 0 \
                      AND col_description(attrelid, attnum) IS NULL";
        assert_eq!(fixture.get(silent).await.as_deref(), Some("0"));
        fixture.run("INSERT INTO task (input, state) VALUES ('x', 'STOP')").await;
        let row = fixture
            .get(
                "SELECT concat_ws('|', parent, plan <= now(), active, live, repeat, timeout, count, max, pid, delete, drift, header, \
                 string, ascii(delimiter::text), length(escape::text), length(quote::text), data, \"group\", \"null\", remote, \
                 hash = hashtext('group')) FROM task",
            )
            .await;
        let zero = "00:00:00";
        let expected = format!("t|01:00:00|{zero}|{zero}|{zero}|0|0|t|f|t|t|9|0|0|group|\\N|t");
        assert_eq!(row, Some(expected));
        fixture.stop().await;
    });
}

#[test]
fn violated_checks_name_their_constraint() {
    run(async {
        let fixture = Fixture::new().await;
        for (column, value, said) in [
            ("active", "'0 sec'", "violates check constraint \"task_active_check\""),
            ("live", "'-1 sec'", "violates check constraint \"task_live_check\""),
            ("repeat", "'-1 sec'", "violates check constraint \"task_repeat_check\""),
            ("timeout", "'-1 sec'", "violates check constraint \"task_timeout_check\""),
            ("count", "-1", "violates check constraint \"task_count_check\""),
            ("input", "NULL", "null value in column \"input\""),
            ("state", "'FOO'", "invalid input value for enum state: \"FOO\""),
            ("timeout", "'soon'", "invalid input syntax for type interval: \"soon\""),
        ] {
            let columns =
                if column == "input" { "input".into() } else { format!("input, {column}") };
            let values = if column == "input" { value.into() } else { format!("'x', {value}") };
            let refused = fixture
                .client
                .try_run(&format!("INSERT INTO task ({columns}) VALUES ({values})"))
                .await;
            let error = refused.expect_err(column).to_string();
            assert!(error.contains(said), "{column}: {error}");
        }
        fixture.stop().await;
    });
}

#[test]
fn settings_of_the_inserting_session_set_column_defaults() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(
            "BEGIN; SET LOCAL \"pg_task.group\" = 'mine'; SET LOCAL pg_task.max = 3; SET LOCAL pg_task.delimiter = ','; \
             SET LOCAL pg_task.delete = off; INSERT INTO task (input, state) VALUES ('x', 'STOP'); COMMIT; \
             INSERT INTO task (input, state) VALUES ('x', 'STOP')",
        )
        .await;
        let rows = fixture.get("SELECT string_agg(concat_ws(' ', \"group\", max, ascii(delimiter::text), delete), '|' ORDER BY id) FROM task").await;
        assert_eq!(rows.as_deref(), Some("mine 3 44 f|group 0 9 t"));
        fixture.stop().await;
    });
}

/// The relevant parts of a table of pg_task: defaults that need its settings, its trigger, no new columns.
const OLD: &str = "
CREATE TYPE state AS ENUM ('PLAN', 'TAKE', 'WORK', 'DONE', 'STOP');
SET pg_task.active = '1 hour'; SET pg_task.max = 0; SET \"pg_task.null\" = '\\N';
CREATE TABLE task (id bigserial PRIMARY KEY, parent bigint, plan timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP,
    start timestamptz, stop timestamptz, active interval NOT NULL DEFAULT current_setting('pg_task.active')::interval,
    max integer NOT NULL DEFAULT current_setting('pg_task.max')::integer, pid integer,
    state state NOT NULL DEFAULT 'PLAN', error text, \"group\" text NOT NULL DEFAULT 'group', input text NOT NULL,
    \"null\" text NOT NULL DEFAULT current_setting('pg_task.null'), output text, remote text, mine text DEFAULT 'kept');
CREATE FUNCTION wake_up() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''permission denied''; END';
INSERT INTO task (input, state) VALUES ('old', 'DONE');
CREATE TRIGGER wake_up AFTER INSERT ON task FOR EACH STATEMENT EXECUTE PROCEDURE wake_up();
CREATE INDEX ON task (input); CREATE INDEX mine ON task (mine);";

#[test]
fn a_table_of_pg_task_is_upgraded_in_place() {
    run(async {
        let schema = Fixture::name();
        let client = Fixture::client(&schema).await;
        client.run(&format!("CREATE SCHEMA {schema}; {OLD}")).await;
        let tasks = start(&schema, "");
        client.until(&format!("EXISTS (SELECT FROM pg_trigger WHERE tgname = 'taskyard_wake' AND tgrelid = '{schema}.task'::regclass)")).await;
        let fresh = Fixture::client(&schema).await;
        fresh.run("INSERT INTO task (input) VALUES ('select 7')").await;
        client.until("EXISTS (SELECT FROM task WHERE output = '7')").await;
        let old = client
            .get("SELECT concat_ws(' ', state, mine, count, delete) FROM task WHERE input = 'old'")
            .await;
        assert_eq!(old.as_deref(), Some("DONE kept 0 t"));
        // Its index on input refused long inputs that do not compress; other indexes stay.
        let long = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) AS i)";
        fresh
            .run(&format!("INSERT INTO task (input) SELECT 'select length(''' || {long} || ''')'"))
            .await;
        client.until("EXISTS (SELECT FROM task WHERE output = '32000')").await;
        let kept = client.get("SELECT count(*) FROM pg_indexes WHERE indexname = 'mine' AND schemaname = current_schema()").await;
        assert_eq!(kept.as_deref(), Some("1"));
        tasks.stop().await;
    });
}

#[test]
fn partitions_are_kept() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.stop().await;
        fixture.run(
            "ALTER TABLE task RENAME TO plain; CREATE TABLE task (LIKE plain INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING IDENTITY) \
             PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF task FOR VALUES FROM (0) TO (5); \
             CREATE TABLE high PARTITION OF task FOR VALUES FROM (5) TO (MAXVALUE); ALTER TABLE task ADD PRIMARY KEY (id)",
        )
        .await;
        let tasks = start(&fixture.schema, "");
        fixture.until("EXISTS (SELECT FROM pg_trigger WHERE tgname = 'taskyard_wake' AND tgrelid = 'task'::regclass)").await;
        fixture.run("INSERT INTO task (input, max, count) SELECT 'select ' || n, 3, 9 FROM generate_series(1, 12) AS n").await;
        fixture.idle().await;
        let sums = "SELECT (SELECT count(*) FROM low) || ' ' || (SELECT count(*) FROM high) || ' ' || (SELECT sum(output::int) FROM task)";
        assert_eq!(fixture.get(sums).await.as_deref(), Some("4 8 78"));
        tasks.stop().await;
    });
}

#[test]
fn table_names_with_quotes_and_spaces_work() {
    run(async {
        let schema = format!("a \"quoted\" schema, it's {{table}} %I 60 long {}", "x".repeat(10));
        let table = r#"the {key} "table" \ with $$ and 'quotes'"#;
        let json = serde_json::to_string(table).expect("a name is JSON");
        let tasks = start(&schema, &format!("\"table\": {json}"));
        let name =
            format!("\"{}\".\"{}\"", schema.replace('"', "\"\""), table.replace('"', "\"\""));
        let client = Fixture::client("public").await;
        client.until(&format!("to_regclass($n${name}$n$) IS NOT NULL")).await;
        client
            .run(&format!("INSERT INTO {name} (input, repeat) VALUES ('select 5', '1 hour')"))
            .await;
        client.until(&format!("EXISTS (SELECT FROM {name} WHERE output = '5')")).await;
        assert_eq!(client.get(&format!("SELECT count(*) FROM {name}")).await.as_deref(), Some("2"));
        tasks.stop().await;
    });
}

#[test]
fn functions_ignore_the_search_path_of_the_inserting_session() {
    // A function that resolved names by the search_path of the inserting session could be made to call other functions with
    // the rights of the next inserting role.
    run(async {
        let fixture = Fixture::new().await;
        let loose = "SELECT count(*) FROM pg_proc p WHERE pronamespace = to_regnamespace(current_schema()) AND NOT \
                     coalesce(p.proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp']";
        assert_eq!(fixture.get(loose).await.as_deref(), Some("0"));
        fixture
            .run(
                "CREATE SCHEMA trap_of_columns; CREATE TABLE trap_of_columns.sprung (n integer); \
             CREATE FUNCTION trap_of_columns.pg_notify(text, text) RETURNS void LANGUAGE sql \
             AS 'INSERT INTO trap_of_columns.sprung VALUES (1)'",
            )
            .await;
        let schema = &fixture.schema;
        fixture
            .run(&format!(
                "BEGIN; SET LOCAL search_path = trap_of_columns, pg_catalog; \
             INSERT INTO {schema}.task (input) VALUES ('select 1'); COMMIT"
            ))
            .await;
        fixture.idle().await;
        assert_eq!(
            fixture.get("SELECT count(*) FROM trap_of_columns.sprung").await.as_deref(),
            Some("0")
        );
        fixture.stop().await;
    });
}

#[test]
fn a_dropped_table_is_created_again() {
    // pg_task ended with its table and restarted a minute later.
    run(async {
        let fixture = Fixture::with("\"sleep\": 50").await;
        fixture.run("DROP TABLE task").await;
        fixture.until(&format!("to_regclass('{}.task') IS NOT NULL", fixture.schema)).await;
        fixture.run("INSERT INTO task (input) VALUES ('select 1')").await;
        fixture.idle().await;
        fixture.stop().await;
    });
}

#[test]
fn a_manual_run_starts_no_second_chain() {
    // The copy repeated too, beside the run that was planned when the task had ended: from then on there were two.
    run(async {
        let fixture = Fixture::new().await;
        fixture
            .run("INSERT INTO task (input, repeat, data) VALUES ('select 1', '1 day', 'mine')")
            .await;
        fixture.until("EXISTS (SELECT FROM task WHERE state = 'DONE')").await;
        let names =
            taskyard_sql::table::TableName { schema: fixture.schema.clone(), table: "task".into() };
        let admin =
            taskyard_sql::TaskAdmin::open(&crate::fixture::database("postgres", "postgres"), names)
                .await;
        let outcome = admin.expect("a connection").run(1).await.expect("a result");
        assert!(matches!(outcome, taskyard_sql::AdminOutcome::Copied(_)), "{outcome:?}");
        fixture
            .until("2 = (SELECT count(*) FROM task WHERE state = 'DONE' AND data = 'mine')")
            .await;
        let planned = "SELECT count(*) FROM task WHERE state = 'PLAN'";
        assert_eq!(fixture.get(planned).await.as_deref(), Some("1"));
        fixture.stop().await;
    });
}

#[test]
fn a_manual_run_clears_the_last_result() {
    // A stopped task that was run again still showed its last error and had no attempts left.
    run(async {
        let fixture = Fixture::new().await;
        fixture
            .run(
                "INSERT INTO task (input, state, error, output, attempts, plan) \
             VALUES ('select 1', 'STOP', 'ERROR:  old', 'old', 3, '2100-01-01')",
            )
            .await;
        let mut admin = admin(&fixture.schema).await;
        fixture.stop().await;
        assert_eq!(admin.run(1).await.expect("a result"), taskyard_sql::AdminOutcome::Done);
        let row =
            fixture.get("SELECT concat_ws(' ', state, error, output, attempts) FROM task").await;
        assert_eq!(row.as_deref(), Some("PLAN 0"));
    });
}

#[test]
fn a_repeating_task_is_found_by_its_first_id_and_by_its_group() {
    // After the first run a task could be stopped only by its newest id, which changes with every run.
    run(async {
        let fixture = Fixture::new().await;
        // Rows without output are deleted, so the rows do not link one run to the next.
        fixture.run(
            "INSERT INTO task (input, repeat, \"group\") VALUES ('select 1 where false', '10 ms', 'chain'), \
             ('select 2', '1 day', 'day')",
        )
        .await;
        fixture.until("EXISTS (SELECT FROM task WHERE \"group\" = 'chain' AND id > 6)").await;
        fixture.until("EXISTS (SELECT FROM task WHERE \"group\" = 'day' AND state = 'PLAN')").await;
        fixture.stop().await;
        let mut admin = admin(&fixture.schema).await;
        let newest = async |group: &str| {
            let id =
                fixture.get(&format!("SELECT max(id) FROM task WHERE \"group\" = '{group}'")).await;
            id.and_then(|id| id.parse::<i64>().ok())
        };
        for (first, group) in [(1, "chain"), (2, "day")] {
            let found = admin.find(&TaskSelector::Id(first)).await.expect("a result");
            assert_eq!(found, newest(group).await);
            assert_eq!(
                admin.find(&TaskSelector::Group(group.into())).await.expect("a result"),
                found
            );
        }
        assert_eq!(admin.find_exact(&TaskSelector::Id(2)).await.expect("a result"), Some(2));
        assert_eq!(admin.find(&TaskSelector::Id(99_999)).await.expect("a result"), None);
        assert_eq!(admin.find(&TaskSelector::Group("none".into())).await.expect("a result"), None);
        fixture
            .run("INSERT INTO task (input, repeat, \"group\") VALUES ('select 3', '1 day', 'day')")
            .await;
        let several = admin.find(&TaskSelector::Group("day".into())).await;
        let said = several.expect_err("there are two").to_string();
        assert!(said.contains("select one by its id"), "{said}");
    });
}

async fn admin(schema: &str) -> taskyard_sql::TaskAdmin {
    let names = taskyard_sql::table::TableName { schema: schema.into(), table: "task".into() };
    let admin =
        taskyard_sql::TaskAdmin::open(&crate::fixture::database("postgres", "postgres"), names)
            .await;
    admin.expect("a connection")
}

#[test]
fn a_manual_run_does_not_move_the_plan_of_a_repeating_task() {
    // A task planned for midnight that was run by hand in the afternoon ran in the afternoon from then on.
    run(async {
        let fixture = Fixture::new().await;
        fixture
            .run(
                "INSERT INTO task (input, repeat, plan) VALUES ('select 1', '1 day', '2100-01-01')",
            )
            .await;
        let names =
            taskyard_sql::table::TableName { schema: fixture.schema.clone(), table: "task".into() };
        let admin =
            taskyard_sql::TaskAdmin::open(&crate::fixture::database("postgres", "postgres"), names)
                .await;
        let outcome = admin.expect("a connection").run(1).await.expect("a result");
        assert!(matches!(outcome, taskyard_sql::AdminOutcome::Done), "{outcome:?}");
        fixture.until("EXISTS (SELECT FROM task WHERE state = 'DONE')").await;
        let same = "SELECT plan = '2100-01-01' FROM task WHERE state = 'PLAN' AND parent = 1";
        assert_eq!(fixture.get(same).await.as_deref(), Some("t"));
        fixture.stop().await;
    });
}

//! The column `output`.

use crate::fixture::{Fixture, run};

/// The input and the expected output; a newline is written as `/`.
const OUTPUTS: &[(&str, Option<&str>)] = &[
    ("SELECT 1 AS a", Some("1")),
    ("SELECT 1 AS a, 2 AS b", Some("a\tb/1\t2")),
    ("SELECT 1 AS a, 2 AS b;SELECT 3 AS c, 4 AS d", Some("a\tb/1\t2/c\td/3\t4")),
    ("SELECT 1 AS a;SELECT 2 AS b", Some("1/2")),
    ("select null", Some("\\N")),
    ("select ''''", Some("'")),
    ("select pg_sleep(0)", Some("")),
    ("select from generate_series(1,2)", Some("")),
    ("select 1 where false", None),
    ("", None),
    (";;", None),
    ("-- hi", None),
    ("create temp table x as select 1 as i", Some("SELECT 1")),
    (
        "create temp table x as select 1 as i; insert into x values (2), (3)",
        Some("SELECT 1/INSERT 0 2"),
    ),
    ("create temp table x (i int); delete from x", Some("CREATE TABLE/DELETE 0")),
    ("do 'begin end'", Some("DO")),
    ("set work_mem = '1MB'; show work_mem", Some("SET/1MB")),
    ("explain (costs off) select 1", Some("Result")),
    ("vacuum pg_am", Some("VACUUM")),
    (
        "create temp table x as select 1 as i; update x set i = 2; select * from x; insert into x values (3), (4) \
         returning *",
        Some("SELECT 1/UPDATE 1/2/3/4"),
    ),
    (
        "begin; create temp table x (i int); insert into x values (2)",
        Some("BEGIN/CREATE TABLE/INSERT 0 1/COMMIT"),
    ),
    ("select 1; begin; select 2; rollback; select 3", Some("1/BEGIN/2/ROLLBACK/3")),
    ("copy (select generate_series(1, 3)) to stdout", Some("1/2/3/")),
    ("select 2; copy (select 1) to stdout; select 3", Some("2/1/3")),
    ("do $$ begin raise notice 'not kept'; end $$; select 'kept'", Some("DO/kept")),
    ("select 'line' || chr(10) || 'break'", Some("line/break")),
    (
        "select true, 1::numeric, '1 day'::interval, array[1,2], '{}'::json",
        Some("?column?\tnumeric\tinterval\tarray\tjson/t\t1\t1 day\t{1,2}\t{}"),
    ),
];

#[test]
fn outputs_of_every_kind_of_statement() {
    run(async {
        let fixture = Fixture::new().await;
        for (place, (input, _)) in OUTPUTS.iter().enumerate() {
            fixture.run(&format!(
                "INSERT INTO task (id, input, delete, \"group\") VALUES ({place}, $i${input}$i$, false, '{place}')"
            ))
            .await;
        }
        fixture.idle().await;
        for (place, (input, expected)) in OUTPUTS.iter().enumerate() {
            let output = fixture.get(&format!("SELECT output FROM task WHERE id = {place}")).await;
            let error = fixture.get(&format!("SELECT error FROM task WHERE id = {place}")).await;
            assert_eq!(error, None, "{input}");
            assert_eq!(output, expected.map(|text| text.replace('/', "\n")), "{input}");
        }
        fixture.stop().await;
    });
}

#[test]
fn output_formats() {
    run(async {
        let fixture = Fixture::new().await;
        let names = ", delimiter, quote, escape, string, \"null\", input";
        let input = r#"$i$select 'x"y' as "h""1", 1 as n, null as z, true as b$i$"#;
        for (values, expected) in [
            (r#", ',', '"', '', true, 'NULL', "#, "\"h\"1\",\"n\",\"z\",\"b\"\n\"x\"y\",1,NULL,t"),
            (
                r#", ',', '"', '"', true, 'NULL', "#,
                "\"h\"\"1\",\"n\",\"z\",\"b\"\n\"x\"\"y\",1,NULL,t",
            ),
            (
                r#", ',', '"', '"', false, 'NULL', "#,
                "\"h\"\"1\",\"n\",\"z\",\"b\"\n\"x\"\"y\",\"1\",NULL,\"t\"",
            ),
            (r#", '', '', '"', false, '', "#, "h\"1nzb\nx\"y1t"),
        ] {
            let (output, error) = fixture.output(names, &format!("{values}{input}")).await;
            assert_eq!((output.as_deref(), error), (Some(expected), None), "{values}");
        }
        let types = "select 1::int2, 2::int4, 3::int8, 4::float4, 5::float8, 6::numeric, true, 7::oid, 1::bit, \
                     ''2020-01-01''::date, ''x''::name, ''1''::varbit, ''(0,1)''::tid, ''c''::\"char\"";
        let values = format!(", false, ',', '\"', '{types}'");
        let (output, _) = fixture.output(", header, delimiter, quote, input", &values).await;
        let expected = "1,2,3,4,5,6,t,7,1,\"2020-01-01\",\"x\",\"1\",(0,1),\"c\"";
        assert_eq!(output.as_deref(), Some(expected));
        fixture.stop().await;
    });
}

#[test]
fn errors_have_all_fields_regardless_of_log_settings() {
    run(async {
        let fixture = Fixture::new().await;
        for (input, expected) in [
            (
                "selec 1",
                "ERROR:  syntax error at or near \"selec\" at character 1\nSTATEMENT:  selec 1",
            ),
            (
                "select nope",
                "ERROR:  column \"nope\" does not exist at character 8\nSTATEMENT:  select nope",
            ),
            (
                "set log_error_verbosity = terse; do $$ begin raise exception E'multi\\nline' using detail = 'det', \
                 hint = 'hint'; end $$",
                "ERROR:  multi\n\tline\nDETAIL:  det\nHINT:  hint\nCONTEXT:  PL/pgSQL function inline_code_block line 1 \
                 at RAISE\nSTATEMENT:  ",
            ),
            (
                "vacuum pg_am; select 1",
                "ERROR:  VACUUM cannot run inside a transaction block\nSTATEMENT:  ",
            ),
            (
                "create temp table x (i int); copy x from stdin",
                "ERROR:  COPY from stdin failed: COPY FROM STDIN is not supported\nCONTEXT:  COPY x, line 1\n",
            ),
        ] {
            let (_, error) = fixture.output(", input", &format!(", $i${input}$i$")).await;
            let error = error.unwrap_or_default();
            assert!(error.starts_with(expected), "{input}: {error}");
        }
        // The output before the error is kept; the changes are rolled back.
        fixture.run("CREATE TABLE kept (i int)").await;
        let schema = &fixture.schema;
        let input = format!(", 'insert into {schema}.kept values (1); select 1/0'");
        let (output, error) = fixture.output(", input", &input).await;
        assert_eq!(output.as_deref(), Some("INSERT 0 1"));
        assert!(error.is_some());
        assert_eq!(fixture.get("SELECT count(*) FROM kept").await.as_deref(), Some("0"));
        fixture.stop().await;
    });
}

#[test]
fn a_task_without_output_is_deleted_unless_delete_is_false() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(
            "INSERT INTO task (input, delete) VALUES ('select 1 where false', true), ('select 1 where false', false), \
             ('do ''begin end''', true), ('select 1/0', true)",
        )
        .await;
        fixture.idle().await;
        let left = fixture.get("SELECT string_agg(id::text, ' ' ORDER BY id) FROM task").await;
        assert_eq!(left.as_deref(), Some("2 3 4"));
        // A task that repeats is deleted too, and still repeats.
        fixture.run(
            "INSERT INTO task (id, input, repeat) VALUES (100, 'select 1 where false', '1 hour')",
        )
        .await;
        fixture.until("EXISTS (SELECT FROM task WHERE parent = 100 AND state = 'PLAN')").await;
        assert_eq!(fixture.get("SELECT 1 FROM task WHERE id = 100").await, None);
        fixture.stop().await;
    });
}

//! Invalid rows: each ends with an error and affects no other row.

use crate::fixture::{Fixture, run};

#[test]
fn a_delimiter_outside_ascii_is_refused() {
    run(async {
        let fixture = Fixture::new().await;
        let (output, error) = fixture.output(", delimiter, input", ", '→', 'select 1, 2'").await;
        assert_eq!(output, None);
        assert_eq!(error.as_deref(), Some("ERROR:  delimiter must be one ASCII character"));
        fixture.stop().await;
    });
}

#[test]
fn a_query_of_ten_megabytes_runs() {
    run(async {
        let fixture = Fixture::new().await;
        let (output, error) =
            fixture.output(", input", ", 'select ' || repeat(' ', 10000000) || '1'").await;
        assert_eq!((output.as_deref(), error), (Some("1"), None));
        let (_, error) = fixture.output(", input", ", 'selec ' || repeat('x', 10000000)").await;
        assert_eq!(error.map(|error| error.len() > 10_000_000), Some(true));
        fixture.stop().await;
    });
}

#[test]
fn a_long_output_is_cut() {
    run(async {
        let fixture = Fixture::with("\"output_max\": 1000").await;
        for input in [
            "select repeat(''x'', 100) from generate_series(1, 100000)",
            "select repeat(''x'', 100000000)",
            "copy (select repeat(''x'', 1000) from generate_series(1, 10000)) to stdout",
        ] {
            let (output, error) = fixture.output(", input", &format!(", '{input}'")).await;
            let output = output.unwrap_or_default();
            assert!(output.ends_with("[output cut after 1000 bytes]"), "{input}");
            // Of a row of more than 64 MiB only the mark was kept.
            assert!(output.starts_with("xxxxxxxxxx"), "{input}");
            assert!(output.len() < 1100 && output.len() > 900, "{input}: {}", output.len());
            assert_eq!(
                error.map(|error| error.starts_with("ERROR:  output is too long and was cut")),
                Some(true)
            );
        }
        fixture.sync().await;
        fixture.stop().await;
    });
}

#[test]
fn binary_output_is_stored_as_text() {
    run(async {
        let fixture = Fixture::new().await;
        let (output, error) =
            fixture.output(", input", ", 'copy (select ''a'') to stdout (format binary)'").await;
        assert_eq!(error, None);
        assert!(output.is_some_and(|output| output.starts_with("PGCOPY")));
        fixture.stop().await;
    });
}

#[test]
fn an_invalid_remote_fails_its_task() {
    run(async {
        let fixture = Fixture::new().await;
        for (remote, said) in [
            ("foo=bar", "PQconninfoParse failed\nDETAIL:  invalid connection option \"foo\""),
            (
                "application_name",
                "PQconninfoParse failed\nDETAIL:  missing \"=\" after \"application_name\" in connection info string",
            ),
            (
                "host=127.0.0.1 port=1 password=hidden",
                "could not connect to the remote\nDETAIL:  Connection refused",
            ),
            (
                "host=/nowhere",
                "could not connect to the remote\nDETAIL:  No such file or directory",
            ),
        ] {
            let (output, error) =
                fixture.output(", remote, input", &format!(", '{remote}', 'select 1'")).await;
            let error = error.unwrap_or_default();
            assert_eq!(output, None);
            assert!(error.starts_with(&format!("ERROR:  {said}")), "{error}");
            assert!(!error.contains("hidden") && !error.contains("STATEMENT"), "{error}");
        }
        let url = crate::fixture::cluster().url("not_there");
        let (_, error) = fixture.output(", remote, input", &format!(", '{url}', 'select 1'")).await;
        let expected = "ERROR:  could not connect to the remote\nDETAIL:  FATAL:  database \"not_there\" does not exist";
        assert_eq!(error.as_deref(), Some(expected));
        fixture.stop().await;
    });
}

#[test]
fn an_outcome_that_cannot_be_written_does_not_block_others() {
    // A trigger of the user refuses the outcome of one task; the others must be written.
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.output = ''bad'' THEN RAISE ''not this''; END IF; \
             RETURN NEW; END'; CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW EXECUTE PROCEDURE refuse()",
        )
        .await;
        fixture.run("INSERT INTO task (max, input) SELECT 9, 'select ''' || word || '''' FROM unnest(ARRAY['good', 'bad', 'fine']) AS word").await;
        fixture.idle().await;
        let rows = fixture
            .get("SELECT string_agg(coalesce(output, error), '|' ORDER BY id) FROM task")
            .await;
        let expected =
            "good|ERROR:  the outcome of the task cannot be written\nDETAIL:  not this|fine";
        assert_eq!(rows.as_deref(), Some(expected));
        fixture.stop().await;
    });
}

#[test]
fn a_column_name_in_another_encoding_does_not_repeat_the_task() {
    // A column name in another encoding could not be read: that was treated as a lost session, and the
    // task ran three times.
    run(async {
        let fixture = Fixture::new().await;
        let schema = fixture.schema.clone();
        fixture.run("CREATE TABLE paid (id integer)").await;
        let input = format!(
            "SET client_encoding = ''LATIN1''; INSERT INTO {schema}.paid VALUES (1); SELECT 1 AS \"Größe\", 2 AS b"
        );
        let (output, error) = fixture.output(", input", &format!(", '{input}'")).await;
        assert_eq!(error, None);
        let expected = "SET\nINSERT 0 1\nGröße\tb\n1\t2";
        assert_eq!(output.as_deref(), Some(expected));
        assert_eq!(fixture.get("SELECT count(*) FROM paid").await.as_deref(), Some("1"));
        fixture.stop().await;
    });
}

#[test]
fn output_and_errors_in_another_encoding_are_decoded() {
    // The output and the errors of a task after SET client_encoding could not be read.
    run(async {
        let fixture = Fixture::new().await;
        let input = "SET client_encoding = ''WIN1251''; SELECT ''Привет''";
        let (output, error) = fixture.output(", input", &format!(", '{input}'")).await;
        assert_eq!((output.as_deref(), error), (Some("SET\nПривет"), None));
        let input = "SET client_encoding = ''LATIN1''; SELECT ''Größe''::int";
        let (_, error) = fixture.output(", input", &format!(", '{input}'")).await;
        let error = error.unwrap_or_default();
        assert!(error.contains("integer: \"Größe\""), "{error}");
        // The next task of the session is read as UTF-8.
        let save = "INSERT INTO task (input, count, save) VALUES";
        fixture.run(&format!(
            "{save} ('SET client_encoding = ''LATIN1''', 2, true), ('SELECT length(''Größe'')', 2, true)"
        ))
        .await;
        fixture.until("EXISTS (SELECT FROM task WHERE output = '5')").await;
        fixture.stop().await;
    });
}

#[test]
fn characters_outside_the_database_encoding_are_written_as_codes() {
    // A database in LATIN1 cannot store the output of a remote: the outcome was written without the next run, and the task
    // never repeated again.
    run(async {
        let admin =
            crate::fixture::Client::new(&crate::fixture::database("postgres", "postgres")).await;
        let name = Fixture::name();
        admin
            .run(&format!("CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"))
            .await;
        let config = format!("[{{\"data\": \"{name}\", \"user\": \"postgres\"}}]");
        let config = taskyard_sql::Config::parse(&config).expect("a configuration");
        let source = taskyard_sql::Source::Inline(config);
        let patience = std::time::Duration::from_secs(40);
        let tasks = taskyard_sql::SqlTasks::start(
            crate::fixture::database("postgres", "postgres"),
            source,
            patience,
        );
        let client =
            crate::fixture::Client::new(&crate::fixture::database(&name, "postgres")).await;
        client.until("to_regclass('task') IS NOT NULL").await;
        let url = crate::fixture::cluster().url("postgres");
        client
            .run(&format!(
                "INSERT INTO task (input, remote, repeat) VALUES ('select ''5 '' || chr(8364)', '{url}', '1 day')"
            ))
            .await;
        client.until("EXISTS (SELECT FROM task WHERE state = 'DONE')").await;
        let row = client.get("SELECT concat_ws('|', t.output, split_part(t.error, chr(10), 1), n.state) FROM task t JOIN task n ON n.parent = t.id").await;
        let expected = "5 \\u{20ac}|ERROR:  characters that the database cannot store are written as codes|PLAN";
        assert_eq!(row.as_deref(), Some(expected));
        taskyard_core::service::Service::stop(&tasks.expect("it starts")).await;
    });
}

#[test]
fn a_task_repeats_in_place_where_a_unique_column_allows_no_copy() {
    // A unique column of the user refused the next row, and the task never repeated again.
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("ALTER TABLE task ADD COLUMN job text UNIQUE").await;
        fixture
            .run("INSERT INTO task (input, repeat, job) VALUES ('select 1', '1 day', 'daily')")
            .await;
        fixture.until("EXISTS (SELECT FROM task WHERE error IS NOT NULL)").await;
        let row = fixture
            .get(
                "SELECT concat_ws(' ', id, state, job, plan > now() + '23 hours'::interval, \
            error LIKE '%duplicate key%') FROM task",
            )
            .await;
        assert_eq!(row.as_deref(), Some("1 PLAN daily t t"));
        fixture.stop().await;
    });
}

#[test]
fn long_notices_and_errors_are_not_lost_sessions() {
    // Both were treated as a lost session, and the task ran three times.
    run(async {
        let fixture = Fixture::new().await;
        let schema = fixture.schema.clone();
        fixture.run("CREATE SEQUENCE runs").await;
        let text = |how: &str| {
            format!(
                ", 'DO $$ BEGIN PERFORM nextval(''{schema}.runs''); RAISE {how} ''%'', repeat(''x'', 70000000); END $$'"
            )
        };
        let (output, error) = fixture.output(", input", &text("NOTICE")).await;
        assert_eq!((output.as_deref(), error), (Some("DO"), None));
        let (_, error) = fixture.output(", input", &text("EXCEPTION")).await;
        let expected = "ERROR:  the error message of the database is too long\n";
        assert!(error.is_some_and(|error| error.starts_with(expected)));
        assert_eq!(fixture.get("SELECT last_value FROM runs").await.as_deref(), Some("2"));
        fixture.stop().await;
    });
}

#[test]
fn a_long_group_name_runs() {
    // The server limits the startup message. It closed the connection without an error, and the task was tried
    // four times a second, while all others waited.
    run(async {
        let fixture = Fixture::new().await;
        let input = "select length(current_setting(''pg_task.group''))";
        let values = format!(", repeat('g', 20000), '{input}', 1");
        for _ in 0..2 {
            let (output, error) = fixture.output(", \"group\", input, count", &values).await;
            assert_eq!((output.as_deref(), error), (Some("20000"), None));
        }
        fixture.stop().await;
    });
}

#[test]
fn a_task_longer_than_a_message_ends_with_an_error() {
    // It was claimed, could not be read, and was claimed again an hour later, for ever and without an error.
    run(async {
        let fixture = Fixture::new().await;
        for (columns, values) in [
            (", input", ", 'select ' || repeat(' ', 70000000) || '1'"),
            (", input, \"null\"", ", 'select 1', repeat('x', 70000000)"),
            (", input, remote", ", 'select 1', repeat('x', 600000)"),
        ] {
            let (output, error) = fixture.output(columns, values).await;
            let expected = "ERROR:  input must not be longer than 60 MiB";
            assert_eq!(output, None);
            assert!(error.is_some_and(|error| error.starts_with(expected)), "{columns}");
        }
        fixture.stop().await;
    });
}

#[test]
fn long_inputs_are_claimed_in_portions() {
    // A claim brought up to a thousand inputs, however long each was.
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("SELECT pg_advisory_lock(97)").await;
        fixture.run("INSERT INTO task (max, input) SELECT 9, 'select pg_advisory_lock_shared(97)' || repeat(' ', 40000000) FROM generate_series(1, 6)").await;
        fixture.until("4 = (SELECT count(*) FROM task WHERE state = 'WORK')").await;
        let busy = "SELECT count(*) FROM task WHERE state <> 'PLAN'";
        assert_eq!(fixture.get(busy).await.as_deref(), Some("4"));
        fixture.run("SELECT pg_advisory_unlock_all()").await;
        fixture.idle().await;
        fixture.stop().await;
    });
}

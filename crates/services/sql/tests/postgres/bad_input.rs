//! What nobody should insert, and what comes of it: an error in that row and nothing else.

use crate::rig::{Rig, run};

#[test]
fn a_delimiter_that_is_half_a_character() {
    run(async {
        let rig = Rig::new().await;
        let (output, error) = rig.output(", delimiter, input", ", '→', 'select 1, 2'").await;
        assert_eq!(output, None);
        assert_eq!(error.as_deref(), Some("ERROR:  delimiter must be one character of ASCII"));
        rig.stop().await;
    });
}

#[test]
fn a_query_of_ten_megabytes() {
    run(async {
        let rig = Rig::new().await;
        let (output, error) =
            rig.output(", input", ", 'select ' || repeat(' ', 10000000) || '1'").await;
        assert_eq!((output.as_deref(), error), (Some("1"), None));
        let (_, error) = rig.output(", input", ", 'selec ' || repeat('x', 10000000)").await;
        assert_eq!(error.map(|error| error.len() > 10_000_000), Some(true));
        rig.stop().await;
    });
}

#[test]
fn an_output_without_end_is_cut() {
    run(async {
        let rig = Rig::with("\"output_max\": 1000").await;
        for input in [
            "select repeat(''x'', 100) from generate_series(1, 100000)",
            "select repeat(''x'', 100000000)",
            "copy (select repeat(''x'', 1000) from generate_series(1, 10000)) to stdout",
        ] {
            let (output, error) = rig.output(", input", &format!(", '{input}'")).await;
            let output = output.unwrap_or_default();
            assert!(output.ends_with("[output cut after 1000 bytes]"), "{input}");
            // A row of more than 64 MiB left nothing but the mark.
            assert!(output.starts_with("xxxxxxxxxx"), "{input}");
            assert!(output.len() < 1100 && output.len() > 900, "{input}: {}", output.len());
            assert_eq!(
                error.map(|error| error.starts_with("ERROR:  output is too long and was cut")),
                Some(true)
            );
        }
        rig.settle().await;
        rig.stop().await;
    });
}

#[test]
fn bytes_that_are_no_text() {
    run(async {
        let rig = Rig::new().await;
        let (output, error) =
            rig.output(", input", ", 'copy (select ''a'') to stdout (format binary)'").await;
        assert_eq!(error, None);
        assert!(output.is_some_and(|output| output.starts_with("PGCOPY")));
        rig.stop().await;
    });
}

#[test]
fn remotes_that_are_none() {
    run(async {
        let rig = Rig::new().await;
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
                rig.output(", remote, input", &format!(", '{remote}', 'select 1'")).await;
            let error = error.unwrap_or_default();
            assert_eq!(output, None);
            assert!(error.starts_with(&format!("ERROR:  {said}")), "{error}");
            assert!(!error.contains("hidden") && !error.contains("STATEMENT"), "{error}");
        }
        let url = crate::rig::cluster().url("not_there");
        let (_, error) = rig.output(", remote, input", &format!(", '{url}', 'select 1'")).await;
        let expected = "ERROR:  could not connect to the remote\nDETAIL:  FATAL:  database \"not_there\" does not exist";
        assert_eq!(error.as_deref(), Some(expected));
        rig.stop().await;
    });
}

#[test]
fn an_end_that_cannot_be_written() {
    // Somebody's own trigger refuses what one task leaves; the others must be written all the same.
    run(async {
        let rig = Rig::new().await;
        rig.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.output = ''bad'' THEN RAISE ''not this''; END IF; \
             RETURN NEW; END'; CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW EXECUTE PROCEDURE refuse()",
        )
        .await;
        rig.run("INSERT INTO task (max, input) SELECT 9, 'select ''' || word || '''' FROM unnest(ARRAY['good', 'bad', 'fine']) AS word").await;
        rig.idle().await;
        let rows =
            rig.get("SELECT string_agg(coalesce(output, error), '|' ORDER BY id) FROM task").await;
        let expected = "good|ERROR:  the end of the task cannot be written\nDETAIL:  not this|fine";
        assert_eq!(rows.as_deref(), Some(expected));
        rig.stop().await;
    });
}

#[test]
fn a_name_that_is_no_text_is_no_reason_to_run_again() {
    // In another encoding the name of a column could not be read: that was taken for a lost session, and what the
    // task had done was done three times.
    run(async {
        let rig = Rig::new().await;
        let schema = rig.schema.clone();
        rig.run("CREATE TABLE paid (id integer)").await;
        let input = format!(
            "SET client_encoding = ''LATIN1''; INSERT INTO {schema}.paid VALUES (1); SELECT 1 AS \"Größe\", 2 AS b"
        );
        let (output, error) = rig.output(", input", &format!(", '{input}'")).await;
        assert_eq!(error, None);
        let expected = "SET\nINSERT 0 1\nGröße\tb\n1\t2";
        assert_eq!(output.as_deref(), Some(expected));
        assert_eq!(rig.get("SELECT count(*) FROM paid").await.as_deref(), Some("1"));
        rig.stop().await;
    });
}

#[test]
fn another_encoding_changes_how_bytes_travel_and_nothing_else() {
    // What a task said after SET client_encoding could not be read any more, its errors neither.
    run(async {
        let rig = Rig::new().await;
        let input = "SET client_encoding = ''WIN1251''; SELECT ''Привет''";
        let (output, error) = rig.output(", input", &format!(", '{input}'")).await;
        assert_eq!((output.as_deref(), error), (Some("SET\nПривет"), None));
        let input = "SET client_encoding = ''LATIN1''; SELECT ''Größe''::int";
        let (_, error) = rig.output(", input", &format!(", '{input}'")).await;
        let error = error.unwrap_or_default();
        assert!(error.contains("integer: \"Größe\""), "{error}");
        // The next task of the session is read in our own encoding.
        let save = "INSERT INTO task (input, count, save) VALUES";
        rig.run(&format!(
            "{save} ('SET client_encoding = ''LATIN1''', 2, true), ('SELECT length(''Größe'')', 2, true)"
        ))
        .await;
        rig.until("EXISTS (SELECT FROM task WHERE output = '5')").await;
        rig.stop().await;
    });
}

#[test]
fn an_end_that_this_encoding_cannot_hold_is_written_in_codes() {
    // A database in LATIN1 cannot store what a remote says: the end was written without the next run, and the repeat
    // ended for ever.
    run(async {
        let admin = crate::rig::Client::new(&crate::rig::database("postgres", "postgres")).await;
        let name = Rig::name();
        admin
            .run(&format!("CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"))
            .await;
        let config = format!("[{{\"data\": \"{name}\", \"user\": \"postgres\"}}]");
        let config = taskyard_sql::Config::parse(&config).expect("a configuration");
        let source = taskyard_sql::Source::Given(config);
        let patience = std::time::Duration::from_secs(40);
        let tasks = taskyard_sql::SqlTasks::start(
            crate::rig::database("postgres", "postgres"),
            source,
            patience,
        );
        let client = crate::rig::Client::new(&crate::rig::database(&name, "postgres")).await;
        client.until("to_regclass('task') IS NOT NULL").await;
        let url = crate::rig::cluster().url("postgres");
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
fn a_repeat_goes_on_where_no_second_row_is_allowed() {
    // A unique column of the user's own refused the next row, and with it the repeat ended for ever.
    run(async {
        let rig = Rig::new().await;
        rig.run("ALTER TABLE task ADD COLUMN job text UNIQUE").await;
        rig.run("INSERT INTO task (input, repeat, job) VALUES ('select 1', '1 day', 'daily')")
            .await;
        rig.until("EXISTS (SELECT FROM task WHERE error IS NOT NULL)").await;
        let row = rig
            .get(
                "SELECT concat_ws(' ', id, state, job, plan > now() + '23 hours'::interval, \
            error LIKE '%duplicate key%') FROM task",
            )
            .await;
        assert_eq!(row.as_deref(), Some("1 PLAN daily t t"));
        rig.stop().await;
    });
}

#[test]
fn a_notice_and_an_error_of_any_length() {
    // Both were taken for a lost session, and the task ran three times.
    run(async {
        let rig = Rig::new().await;
        let schema = rig.schema.clone();
        rig.run("CREATE SEQUENCE runs").await;
        let text = |how: &str| {
            format!(
                ", 'DO $$ BEGIN PERFORM nextval(''{schema}.runs''); RAISE {how} ''%'', repeat(''x'', 70000000); END $$'"
            )
        };
        let (output, error) = rig.output(", input", &text("NOTICE")).await;
        assert_eq!((output.as_deref(), error), (Some("DO"), None));
        let (_, error) = rig.output(", input", &text("EXCEPTION")).await;
        let expected = "ERROR:  what the database says about an error is too long\n";
        assert!(error.is_some_and(|error| error.starts_with(expected)));
        assert_eq!(rig.get("SELECT last_value FROM runs").await.as_deref(), Some("2"));
        rig.stop().await;
    });
}

#[test]
fn a_group_of_any_length() {
    // The server takes only so many bytes when a session is opened. It hung up without a word, and the task was tried
    // four times a second, while all others waited.
    run(async {
        let rig = Rig::new().await;
        let input = "select length(current_setting(''pg_task.group''))";
        let values = format!(", repeat('g', 20000), '{input}', 1");
        for _ in 0..2 {
            let (output, error) = rig.output(", \"group\", input, count", &values).await;
            assert_eq!((output.as_deref(), error), (Some("20000"), None));
        }
        rig.stop().await;
    });
}

#[test]
fn a_task_that_is_longer_than_a_message() {
    // It was claimed, could not be read, and was claimed again an hour later, for ever and without a word.
    run(async {
        let rig = Rig::new().await;
        for (columns, values) in [
            (", input", ", 'select ' || repeat(' ', 70000000) || '1'"),
            (", input, \"null\"", ", 'select 1', repeat('x', 70000000)"),
            (", input, remote", ", 'select 1', repeat('x', 600000)"),
        ] {
            let (output, error) = rig.output(columns, values).await;
            let expected = "ERROR:  input must not be longer than 60 MiB";
            assert_eq!(output, None);
            assert!(error.is_some_and(|error| error.starts_with(expected)), "{columns}");
        }
        rig.stop().await;
    });
}

#[test]
fn long_inputs_are_not_read_all_at_once() {
    // A claim brought up to a thousand inputs, however long each was.
    run(async {
        let rig = Rig::new().await;
        rig.run("SELECT pg_advisory_lock(97)").await;
        rig.run("INSERT INTO task (max, input) SELECT 9, 'select pg_advisory_lock_shared(97)' || repeat(' ', 40000000) FROM generate_series(1, 6)").await;
        rig.until("4 = (SELECT count(*) FROM task WHERE state = 'WORK')").await;
        let busy = "SELECT count(*) FROM task WHERE state <> 'PLAN'";
        assert_eq!(rig.get(busy).await.as_deref(), Some("4"));
        rig.run("SELECT pg_advisory_unlock_all()").await;
        rig.idle().await;
        rig.stop().await;
    });
}

//! `taskyard sql`: the scheduler, its crash, and its subcommands.

use std::time::{Duration, Instant};

use taskyard_sql::Conninfo;
use taskyard_sql::connection::{Connection, Query, SessionOptions, connect};
use tokio::runtime::{Builder, Runtime};

use crate::process::{Running, Serving, binary, http_get, run};
use taskyard_testkit::postgres::{Cluster, programs};

/// A database for one test, and a connection to it.
struct Database {
    url: String,
    connection: Connection,
    runtime: Runtime,
    cluster: Cluster,
}

impl Database {
    /// `None` when PostgreSQL is not installed and the tests may skip it.
    fn new() -> Option<Self> {
        let cluster = Cluster::new(programs()?);
        let url = cluster.url("postgres");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let conninfo = Conninfo::parse(&url).expect("a URL");
        let connection = runtime.block_on(connect(&conninfo, &SessionOptions::default()));
        let connection = connection.unwrap_or_else(|error| panic!("{}", error.line()));
        Some(Database { url, connection, runtime, cluster })
    }

    fn get(&mut self, sql: &str) -> Option<String> {
        let rows = self.runtime.block_on(self.connection.query(Query::new(sql, [])));
        rows.unwrap_or_else(|error| panic!("{sql}: {error}")).first_mut()?.take(0)
    }

    fn until(&mut self, sql: &str) {
        let began = Instant::now();
        while self.get(&format!("SELECT ({sql})::text FROM pg_sleep(0.005)")).as_deref()
            != Some("true")
        {
            assert!(began.elapsed() < Duration::from_secs(60), "never: {sql}");
        }
    }

    fn scheduler(&self) -> Running {
        let mut running = Running::start(binary().args(["sql", "--database", &self.url]));
        while !running.line().contains("Ctrl-C") {}
        running
    }

    fn sql(&self, args: &[&str]) -> String {
        let database = ["--database", &self.url];
        run(&[&["sql"], args, &database].concat()).good()
    }
}

#[test]
fn a_killed_scheduler_loses_no_task_and_its_session_ends() {
    let Some(mut database) = Database::new() else { return };
    let scheduler = database.scheduler();
    database.until("to_regclass('task') IS NOT NULL");
    database.get("CREATE SEQUENCE runs");
    database.get(
        "INSERT INTO task (input) VALUES ('select nextval(''runs''); select pg_sleep(CASE WHEN \
         (SELECT last_value FROM runs) > 1 THEN 0 ELSE 600 END)')",
    );
    database
        .until("EXISTS (SELECT FROM task WHERE state = 'WORK') AND (SELECT is_called FROM runs)");
    let pid = database.get("SELECT pid FROM task").expect("it runs");
    let since = database.get("SELECT pg_postmaster_start_time()");
    // Dropping it kills it with SIGKILL.
    drop(scheduler);
    let scheduler = database.scheduler();
    database.until("EXISTS (SELECT FROM task WHERE state = 'DONE' AND error IS NULL)");
    assert_eq!(database.get(&format!("SELECT 1 FROM pg_stat_activity WHERE pid = {pid}")), None);
    assert_eq!(database.get("SELECT last_value FROM runs").as_deref(), Some("2"));
    // In pg_task the kill of one process restarted the whole database and ended all its connections.
    assert_eq!(database.get("SELECT pg_postmaster_start_time()"), since);

    // The database server crashes and restarts: the scheduler waits for it.
    database.cluster.kill();
    database.cluster.start();
    let conninfo = Conninfo::parse(&database.url).expect("a URL");
    let connection = database.runtime.block_on(connect(&conninfo, &SessionOptions::default()));
    database.connection = connection.unwrap_or_else(|error| panic!("{}", error.line()));
    database.get("INSERT INTO task (input) VALUES ('select ''back''')");
    database.until("EXISTS (SELECT FROM task WHERE output = 'back')");
    scheduler.signal("TERM");
    let ended = scheduler.ended();
    assert_eq!((ended.exit, ended.out.as_str()), (0, "stopped\n"));
}

#[test]
fn tasks_are_listed_shown_run_and_stopped() {
    let Some(mut database) = Database::new() else { return };
    let refused = run(&["sql", "list", "--database", &database.url]);
    assert!(refused.err.contains("table \"public\".\"task\" does not exist"), "{refused:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tasks.json");
    std::fs::write(&file, "[{\"data\": \"postgres\"}]").expect("it can be written");
    let flags = ["--sql", file.to_str().expect("a name"), "--database", &database.url];
    let serving = Serving::folder(&folder.path().join("data"), &flags);
    database.until("to_regclass('task') IS NOT NULL");
    database.get(
        "INSERT INTO task (input, plan, repeat, remote) VALUES ('select 1', '2100-01-01 00:00+00', '1 day', \
         'host=h password=hidden')",
    );
    database.get("INSERT INTO task (input) VALUES ('select ''two''')");
    database.until("EXISTS (SELECT FROM task WHERE output = 'two')");
    let list = database.sql(&["list"]);
    assert!(list.contains("not_due") && list.contains("finished"), "{list}");
    let shown = database.sql(&["show", "1"]) + &database.sql(&["list", "--json"]);
    assert!(shown.contains("password=***") && !shown.contains("hidden"), "{shown}");
    assert!(shown.contains("repeat       1 day\n"), "{shown}");
    assert!(shown.contains("\"why\":\"not_due\""), "{shown}");
    let next = database.sql(&["next"]);
    assert_eq!(next.lines().count(), 21, "{next}");
    assert!(
        next.contains("2100-01-01T00:00:00Z") && next.contains("2100-01-20T00:00:00Z"),
        "{next}"
    );
    assert_eq!(database.sql(&["next", "1", "--count", "2"]).lines().count(), 3);
    assert_eq!(database.sql(&["stop", "1"]), "task 1 is stopped\n");
    assert_eq!(database.sql(&["stop", "2", "--json"]), "{\"id\":2,\"outcome\":\"ended\"}\n");
    let done = database.sql(&["list", "--state", "done", "--json"]);
    assert!(done.contains("\"output\":\"two\"") && done.lines().count() == 1, "{done}");
    let wrong = run(&["sql", "list", "--state", "ready", "--database", &database.url]).ends(2);
    assert!(wrong.err.contains("PLAN"), "{wrong:?}");
    assert_eq!(database.get("SELECT state FROM task WHERE id = 1").as_deref(), Some("STOP"));
    let again = database.sql(&["run", "2"]);
    assert_eq!(again, "task 2 has ended; its copy 3 runs now\n");
    database.until("EXISTS (SELECT FROM task WHERE id = 3 AND output = 'two' AND parent = 2)");
    run(&["sql", "show", "99", "--database", &database.url]).ends(4);
    database.get("INSERT INTO task (input, repeat, \"group\") VALUES ('select 1 as a, 2 as b', '1 day', 'daily')");
    database.until("EXISTS (SELECT FROM task WHERE parent = 4)");
    // Tabs are printed as tabs, intervals in words, times in the time zone of this machine.
    let url = ["--database", database.url.as_str()];
    let shown = run_in_zone(&[&["sql", "show", "4"], &url[..]].concat(), "Asia/Tokyo");
    assert!(shown.contains("output       a\tb\n             1\t2\n"), "{shown}");
    assert!(shown.contains("+09:00\n") && shown.contains("next run     5\n"), "{shown}");
    assert!(shown.lines().any(|line| line.starts_with("ran ") && line.contains("sec")), "{shown}");
    // Task 4 has ended; its next run is stopped.
    assert_eq!(database.sql(&["stop", "4"]), "task 5 is stopped\n");
    assert_eq!(
        database.sql(&["run", "--group", "daily"]),
        "task 5 is planned for now; it runs when its group allows\n"
    );
    run(&["sql", "stop", "--group", "none", "--database", &database.url]).ends(4);
    let metrics = http_get(&serving.url, "/metrics");
    assert!(metrics.contains("taskyard_sql_done_total{database=\"postgres\""), "{metrics}");
    assert!(http_get(&serving.url, "/healthz").contains("\"sql\":\"ok\""));
    serving.signal("TERM");
    let (status, _) = serving.ended();
    assert!(status.success());
    database
        .until("NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'pg_work%')");
}

// With the default limit no user could log in any more, and nothing said that the limit was reached.
#[test]
fn the_limit_is_logged_and_listed() {
    let Some(mut database) = Database::new() else { return };
    let rows = r#"[{"data": "postgres", "run": 1}]"#;
    let mut scheduler =
        Running::start(binary().args(["sql", "--database", &database.url, "--rows", rows]));
    while !scheduler.line().contains("Ctrl-C") {}
    database.until("to_regclass('task') IS NOT NULL");
    database.get(
        "INSERT INTO task (\"group\", input) VALUES ('a', 'select pg_sleep(600)'), ('b', 'select pg_sleep(600)')",
    );
    let mut logged = scheduler.error_line();
    while !logged.contains("limit reached") {
        assert!(!logged.is_empty(), "the scheduler ended");
        logged = scheduler.error_line();
    }
    assert!(logged.contains("1 task running") && logged.contains("raise it"), "{logged}");
    let list = run(&["sql", "list", "--database", &database.url]).ends(0);
    assert!(list.err.contains("limit reached: 1 task running; the others wait"), "{list:?}");
}

// INSERT alone fails on the sequence of a table of an earlier version, and no message named the missing GRANT.
#[test]
fn a_missing_grant_is_printed() {
    let Some(mut database) = Database::new() else { return };
    let check = |database: &Database, args: &[&str]| {
        run(&[&["sql", "check", "--database", &database.url], args].concat())
    };
    let absent = check(&database, &[]).ends(1);
    let problem = "database 'postgres': table \"public\".\"task\" does not exist; start";
    assert!(absent.err.contains(problem), "{absent:?}");
    database.get("CREATE ROLE \"the clerk\" LOGIN");
    database.get("CREATE TABLE task (id bigserial, input text)");
    database.get("GRANT INSERT ON task TO \"the clerk\"");
    let grant = "GRANT USAGE ON SEQUENCE public.task_id_seq TO \"the clerk\"";
    let shown = check(&database, &[]).ends(1).out;
    assert!(shown.contains("also need USAGE on the sequence of the table; run:\n"), "{shown}");
    assert!(shown.contains(&format!("  {grant}; -- in postgres\n")), "{shown}");
    let json = check(&database, &["--json"]).ends(1).out;
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(json["missing_grants"], serde_json::json!([grant]));
    database.get(grant);
    assert!(!check(&database, &[]).good().contains("GRANT"));
}

// The run that was looked up ended before it was stopped, and its next run stayed planned.
#[test]
fn the_next_run_is_stopped_if_the_running_one_ends_meanwhile() {
    let Some(mut database) = Database::new() else { return };
    let scheduler = database.scheduler();
    database.until("to_regclass('task') IS NOT NULL");
    scheduler.signal("TERM");
    assert_eq!(scheduler.ended().exit, 0);
    for (ended, selector) in [
        ("UPDATE task SET state = 'DONE', stop = now() WHERE id = $", &["1"][..]),
        ("DELETE FROM task WHERE id = $", &["--group", "reports"][..]),
    ] {
        database.get("TRUNCATE task RESTART IDENTITY");
        database.get(
            "INSERT INTO task (\"group\", repeat, input) VALUES ('reports', '1 hour', 'SELECT 1')",
        );
        database.get("BEGIN");
        database.get(&ended.replace('$', "1"));
        database.get(
            "INSERT INTO task (\"group\", repeat, input, parent, chain, plan) \
             VALUES ('reports', '1 hour', 'SELECT 1', 1, 1, now() + interval '1 hour')",
        );
        let stop = [&["sql", "stop", "--database", &database.url], selector].concat();
        let stopping = Running::start(binary().args(stop));
        // It has found the first run and waits for the transaction that ends it.
        database.until("EXISTS (SELECT FROM pg_locks WHERE NOT granted)");
        database.get("COMMIT");
        let stopped = stopping.ended();
        assert_eq!((stopped.exit, &*stopped.out), (0, "task 2 is stopped\n"), "{stopped:?}");
        assert_eq!(database.get("SELECT state FROM task WHERE id = 2").as_deref(), Some("STOP"));
    }
}

#[test]
fn a_failed_connection_names_the_database_and_what_to_do() {
    let Some(database) = Database::new() else { return };
    let url = database.url.replacen("postgres@", "clerk@", 1);
    let refused = run(&["sql", "list", "--database", &url]).ends(1);
    assert!(refused.err.contains("cannot connect to database 'postgres' at "), "{refused:?}");
    let advice = "as 'clerk': role \"clerk\" does not exist; an administrator can run: CREATE ROLE \"clerk\" LOGIN\n";
    assert!(refused.err.ends_with(advice), "{refused:?}");
    let mut scheduler = Running::start(binary().args(["sql", "--database", &url]));
    let logged = scheduler.error_line();
    assert_eq!(logged.matches("does not exist").count(), 1, "{logged}");
    assert!(logged.contains("; an administrator can run: CREATE ROLE \"clerk\" LOGIN"), "{logged}");
    scheduler.signal("TERM");
    assert_eq!(scheduler.ended().exit, 0);
}

#[test]
fn an_empty_database_variable_counts_as_absent() {
    for args in [
        &["sql", "list"][..],
        &["sql", "check"],
        &["sql"],
        &["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off", "--sql", "x"],
    ] {
        let output = binary().args(args).env("TASKYARD_DATABASE", "").output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("--database"), "{args:?}: {error}");
    }
}

#[test]
fn the_configuration_is_read_again_on_sighup() {
    let Some(mut database) = Database::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tasks.json");
    let write = |table: &str| {
        let text = format!("[{{\"data\": \"postgres\", \"table\": \"{table}\"}}]");
        std::fs::write(&file, text).expect("it can be written");
        // Neither its size nor its time of modification shows the change.
        let opened = std::fs::File::options().write(true).open(&file).expect("it is there");
        opened.set_modified(std::time::UNIX_EPOCH).expect("it is ours");
    };
    write("first");
    let name = file.to_str().expect("a name");
    let mut scheduler =
        Running::start(binary().args(["sql", "--database", &database.url, "--config", name]));
    while !scheduler.line().contains("Ctrl-C") {}
    database.until("to_regclass('first') IS NOT NULL");
    write("other");
    scheduler.signal("HUP");
    database.until("to_regclass('other') IS NOT NULL");
    let gone = "NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'pg_work public first%')";
    database.until(gone);
    scheduler.signal("TERM");
    assert_eq!(scheduler.ended().exit, 0);
}

/// The output of a command in this time zone.
fn run_in_zone(args: &[&str], zone: &str) -> String {
    let output = binary().args(args).env("TZ", zone).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("it is text")
}

#[test]
fn a_configuration_file_is_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tasks.json");
    let name = file.to_str().expect("a name");
    std::fs::write(&file, "[{\"data\": \"shop\", \"colour\": 1}]").expect("written");
    let refused = run(&["sql", "check", name]).ends(2);
    let expected = "row 1: unknown field `colour`, expected one of `data`, `user`, ";
    assert!(refused.err.contains(expected), "{refused:?}");
    std::fs::write(&file, "[{\"data\": \"shop\", \"sleep\": 100}]").expect("written");
    let checked = run(&["sql", "check", name]);
    let json = run(&["sql", "check", name, "--json"]).good();
    assert!(json.starts_with("{\"data\":\"shop\"") && json.contains("\"sleep_ms\":100"), "{json}");
    let out = checked.good();
    assert!(out.contains("shop") && out.contains("100 ms") && out.contains("3600 s"), "{out}");
    std::fs::write(&file, "[{\"sleep\": \"often\"}]").expect("written");
    let refused = run(&["sql", "check", name]).ends(2);
    assert!(refused.err.contains("row 1"), "{refused:?}");
    run(&["sql", "check", "not/there.json"]).ends(2);
    run(&["sql", "check"]).ends(2);
    let refused = run(&["sql", "list"]).ends(2);
    assert!(refused.err.contains("--database"), "{refused:?}");
}

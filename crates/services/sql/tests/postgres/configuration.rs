//! Changes of the configuration.

use std::time::Duration;

use crate::fixture::{Client, Fixture, database, run};
use taskyard_core::service::{Health, Service};
use taskyard_sql::{Source, SqlTasks};

#[test]
fn missing_objects_are_created_and_a_changed_file_is_read_again() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tasks.json");
        let (one, two) = (Fixture::name(), Fixture::name());
        let write = |text: String| std::fs::write(&file, text).expect("it can be written");
        write(format!("[{{\"data\": \"{one}\"}}]"));
        let admin = database("postgres", "postgres");
        let tasks =
            SqlTasks::start(admin.clone(), Source::File(file.clone()), Duration::from_secs(60));
        let tasks = tasks.expect("it starts");
        let admin = Client::new(&admin).await;
        let made = |name: &str| {
            format!(
                "EXISTS (SELECT FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba WHERE datname = '{name}' \
                 AND rolname = '{name}' AND rolcanlogin AND NOT rolsuper)"
            )
        };
        admin.until(&made(&one)).await;
        let first = Client::new(&database(&one, &one)).await;
        first.until("to_regclass('public.task') IS NOT NULL").await;
        first.run("INSERT INTO task (input) VALUES ('select current_user')").await;
        first.until(&format!("EXISTS (SELECT FROM task WHERE output = '{one}')")).await;

        // An invalid file changes nothing and is reported.
        write("[{".into());
        tasks.reload();
        assert!(
            matches!(tasks.health(), Health::Unhealthy(said) if said.contains("the old configuration stays"))
        );
        first.run("INSERT INTO task (input) VALUES ('select 2')").await;
        first.until("EXISTS (SELECT FROM task WHERE output = '2')").await;

        // The scheduler of a removed row waits for its task; that of a new row starts. The change of the file is noticed.
        first.run("SELECT pg_advisory_lock(5)").await;
        first.run("INSERT INTO task (input) VALUES ('select pg_advisory_lock_shared(5)')").await;
        first.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        write(format!("[{{\"data\": \"{two}\", \"table\": \"jobs\", \"sleep\": 100}}]"));
        admin.until(&made(&two)).await;
        let second = Client::new(&database(&two, &two)).await;
        second.until("to_regclass('public.jobs') IS NOT NULL").await;
        first.run("SELECT pg_advisory_unlock_all()").await;
        first.until("NOT EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        first.until("NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'pg_work%')").await;
        first.run("INSERT INTO task (input) VALUES ('select 3')").await;
        second.run("INSERT INTO jobs (input) VALUES ('select 3')").await;
        second.until("EXISTS (SELECT FROM jobs WHERE output = '3')").await;
        assert_eq!(
            first.get("SELECT state FROM task ORDER BY id DESC").await.as_deref(),
            Some("PLAN")
        );
        assert_eq!(tasks.health(), Health::Healthy);
        tasks.stop().await;
    });
}

#[test]
fn an_idle_scheduler_has_one_connection() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run("INSERT INTO task (input, count, max) SELECT 'select 1', 100, 3 FROM generate_series(1, 20)").await;
        fixture.idle().await;
        let mine = format!("application_name LIKE 'pg_task {} %'", fixture.schema);
        fixture.until(&format!("NOT EXISTS (SELECT FROM pg_stat_activity WHERE {mine})")).await;
        let name = format!("pg_work {} task 1000", fixture.schema);
        let count = fixture
            .get(&format!(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
            ))
            .await;
        assert_eq!(count.as_deref(), Some("1"));
        let metrics = fixture.tasks.metrics();
        let value = |name: &str| {
            metrics.iter().find(|metric| metric.name == name).map(|metric| metric.values[0].1)
        };
        assert_eq!(value("taskyard_sql_done_total"), Some(20.0));
        assert_eq!(value("taskyard_sql_leader"), Some(1.0));
        assert!(
            fixture.tasks.status()[0].status.starts_with("leader; 0 running, 20 done"),
            "{:?}",
            fixture.tasks.status()
        );
        fixture.stop().await;
    });
}

#[test]
fn a_restored_row_resumes_and_a_removed_one_is_drained() {
    // A removed row was forgotten: restored, its table stood still until its last task had ended, and the service
    // did not wait for that task when it stopped.
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, schema) = (folder.path().join("tasks.json"), Fixture::name());
        let write = |text: &str| std::fs::write(&file, text).expect("it can be written");
        let row = format!("[{{\"data\": \"postgres\", \"schema\": \"{schema}\"}}]");
        write(&row);
        let admin = database("postgres", "postgres");
        let tasks = SqlTasks::start(admin, Source::File(file.clone()), Duration::from_secs(60));
        let tasks = tasks.expect("it starts");
        let client = Fixture::client(&schema).await;
        client.until(&format!("to_regclass('{schema}.task') IS NOT NULL")).await;
        client.run("SELECT pg_advisory_lock(96)").await;
        client.run("INSERT INTO task (input) VALUES ('select pg_advisory_lock_shared(96)')").await;
        client.until("EXISTS (SELECT FROM task WHERE state = 'WORK')").await;
        write("[]");
        tasks.reload();
        write(&row);
        tasks.reload();
        client.run("INSERT INTO task (input, \"group\") VALUES ('select 2', 'other')").await;
        client.until("EXISTS (SELECT FROM task WHERE output = '2')").await;
        write("[]");
        tasks.reload();
        let mut stopping = tasks.stop();
        tokio::select! {
            biased;
            () = &mut stopping => panic!("its task still runs"),
            () = client.until("EXISTS (SELECT FROM task WHERE state = 'WORK')") => {}
        }
        client.run("SELECT pg_advisory_unlock_all()").await;
        stopping.await;
        let state = client.get("SELECT state FROM task WHERE id = 1").await;
        assert_eq!(state.as_deref(), Some("DONE"));
    });
}

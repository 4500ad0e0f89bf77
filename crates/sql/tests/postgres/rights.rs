//! Ordinary roles: one that schedules, one that only inserts.

use std::time::Duration;

use crate::rig::{Client, Rig, cluster, database, run};
use taskyard_core::service::{Health, Service};
use taskyard_sql::{Config, Source, SqlTasks};

fn schedule(config: &str, user: &str) -> SqlTasks {
    let config = Config::parse(config).expect("a configuration");
    let database = database("postgres", user);
    SqlTasks::start(database, Source::Given(config), Duration::from_secs(60)).expect("it starts")
}

#[test]
fn an_ordinary_role_schedules_and_another_only_inserts() {
    // pg_task let nobody insert but superusers and members of its own role.
    run(async {
        let (schema, admin) = (Rig::name(), Client::new(&database("postgres", "postgres")).await);
        let (owner, poor) = (format!("{schema}_owner"), format!("{schema}_poor"));
        admin
            .run(&format!(
                "CREATE ROLE {owner} LOGIN; CREATE ROLE {poor} LOGIN; CREATE SCHEMA {schema} AUTHORIZATION {owner}"
            ))
            .await;
        let row = format!(
            "[{{\"data\": \"postgres\", \"user\": \"{owner}\", \"schema\": \"{schema}\"}}]"
        );
        let tasks = schedule(&row, &owner);
        admin.until(&format!("to_regclass('{schema}.task') IS NOT NULL")).await;
        admin
            .run(&format!(
                "GRANT USAGE ON SCHEMA {schema} TO {poor}; GRANT INSERT ON {schema}.task TO {poor}; \
                 GRANT USAGE ON SEQUENCE {schema}.task_id_seq TO {poor}"
            ))
            .await;
        let inserter = Client::new(&database("postgres", &poor)).await;
        inserter
            .run(&format!(
                "INSERT INTO {schema}.task (input) VALUES ('select current_user, session_user')"
            ))
            .await;
        inserter
            .run(&format!("INSERT INTO {schema}.task (input, \"group\") VALUES ('set session authorization postgres', 'g')"))
            .await;
        admin
            .until(&format!("2 = (SELECT count(*) FROM {schema}.task WHERE state = 'DONE')"))
            .await;
        let who = admin
            .get(&format!("SELECT split_part(output, chr(10), 2) FROM {schema}.task WHERE id = 1"))
            .await;
        assert_eq!(who, Some(format!("{owner}\t{owner}")));
        let error = admin
            .get(&format!("SELECT split_part(error, chr(10), 1) FROM {schema}.task WHERE id = 2"))
            .await;
        assert_eq!(
            error.as_deref(),
            Some("ERROR:  permission denied to set session authorization \"postgres\"")
        );
        // Who wrote the connection string must prove who they are: trust of this machine is not theirs.
        let url = cluster().url("postgres");
        for (remote, said) in [
            (url.clone(), "Non-superusers must provide a password in the connection string."),
            (
                url.replace("postgres@", "postgres:x@"),
                "Non-superuser cannot connect if the server does not request a password.",
            ),
        ] {
            inserter
                .run(&format!(
                    "INSERT INTO {schema}.task (input, remote) VALUES ('select 1', '{remote}')"
                ))
                .await;
            admin
                .until(&format!("NOT EXISTS (SELECT FROM {schema}.task WHERE stop IS NULL)"))
                .await;
            let sql = format!("SELECT error FROM {schema}.task ORDER BY id DESC LIMIT 1");
            let error = admin.get(&sql).await.unwrap_or_default();
            let expected = format!("ERROR:  password is required\nDETAIL:  {said}");
            assert!(error.starts_with(&expected), "{error}");
        }
        tasks.stop().await;
    });
}

#[test]
fn a_missing_right_is_named() {
    run(async {
        let (schema, admin) = (Rig::name(), Client::new(&database("postgres", "postgres")).await);
        let role = format!("{schema}_r");
        admin.run(&format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA {schema}")).await;
        let row =
            format!("[{{\"data\": \"postgres\", \"user\": \"{role}\", \"schema\": \"{schema}\"}}]");
        let tasks = schedule(&row, &role);
        let expected = format!("GRANT USAGE, CREATE ON SCHEMA \"{schema}\" TO \"{role}\"");
        told(&tasks, &expected).await;
        // With the right it goes on by itself.
        admin.run(&expected).await;
        admin.until(&format!("to_regclass('{schema}.task') IS NOT NULL")).await;
        tasks.stop().await;
        // All that is missing is told at once, and a password is not.
        let row = "[{\"data\": \"not_there\", \"user\": \"no_one\", \"password\": \"secret\"}]";
        let tasks = schedule(row, &role);
        let all = "permission denied to create role; somebody who may can run: CREATE ROLE \"no_one\" LOGIN; \
                   CREATE DATABASE \"not_there\" OWNER \"no_one\"";
        told(&tasks, all).await;
        assert!(!format!("{:?}", tasks.health()).contains("secret"));
        tasks.stop().await;
    });
}

#[test]
fn an_ordinary_role_that_may_makes_roles_and_databases() {
    // Whoever is no superuser cannot give a database to a role that was only just made, unless they have that role.
    run(async {
        let (name, admin) = (Rig::name(), Client::new(&database("postgres", "postgres")).await);
        let maker = format!("{name}_maker");
        admin.run(&format!("CREATE ROLE {maker} LOGIN CREATEROLE CREATEDB")).await;
        let tasks = schedule(&format!("[{{\"data\": \"{name}\"}}]"), &maker);
        let made = format!(
            "EXISTS (SELECT FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba WHERE datname = '{name}' \
             AND rolname = '{name}' AND rolcanlogin AND NOT rolsuper AND NOT rolcreaterole)"
        );
        admin.until(&made).await;
        let inserter = Client::new(&database(&name, &name)).await;
        inserter.until("to_regclass('public.task') IS NOT NULL").await;
        inserter.run("INSERT INTO task (input) VALUES ('select current_user')").await;
        inserter.until(&format!("EXISTS (SELECT FROM task WHERE output = '{name}')")).await;
        // Nothing is left of what was lent for it.
        let has = format!("SELECT pg_has_role('{maker}', '{name}', 'member')");
        assert_eq!(admin.get(&has).await.as_deref(), Some("f"));
        tasks.stop().await;
    });
}

#[test]
fn a_role_that_is_not_let_in_is_told_what_helps() {
    run(async {
        let (name, admin) = (Rig::name(), Client::new(&database("postgres", "postgres")).await);
        admin.run(&format!("CREATE ROLE {name} NOLOGIN")).await;
        admin.run(&format!("CREATE DATABASE {name} OWNER {name}")).await;
        admin.run(&format!("REVOKE CONNECT ON DATABASE {name} FROM public, {name}")).await;
        let tasks = schedule(&format!("[{{\"data\": \"{name}\"}}]"), "postgres");
        for missing in [
            format!("ALTER ROLE \"{name}\" LOGIN"),
            format!("GRANT CONNECT ON DATABASE \"{name}\" TO \"{name}\""),
        ] {
            told(&tasks, &format!("an administrator can run: {missing}")).await;
            admin.run(&missing).await;
        }
        let inserter = Client::new(&database(&name, &name)).await;
        inserter.until("to_regclass('public.task') IS NOT NULL").await;
        tasks.stop().await;
    });
}

/// Waits until the service says this about itself.
async fn told(tasks: &SqlTasks, expected: &str) {
    let admin = Client::new(&database("postgres", "postgres")).await;
    for _ in 0..4000 {
        if let Health::Troubled(said) = tasks.health()
            && said.contains(expected)
        {
            return;
        }
        admin.run("SELECT pg_sleep(0.005)").await;
    }
    panic!("{:?} instead of {expected}", tasks.health());
}

#[test]
fn a_password_is_proved_by_scram_and_md5() {
    run(async {
        let (name, admin) = (Rig::name(), Client::new(&database("postgres", "postgres")).await);
        for method in ["md5", "scram-sha-256"] {
            let role = format!("{name}_{}", &method[..3]);
            let rules = format!(
                "SELECT 'local all {role} {method}' UNION ALL SELECT 'local all all trust'"
            );
            admin
                .run(&format!(
                    "SET password_encryption = '{method}'; CREATE ROLE {role} LOGIN PASSWORD 'it''s secret'; \
                     DO $d$ BEGIN EXECUTE format('COPY ({}) TO %L', current_setting('hba_file')); END $d$",
                    rules.replace('\'', "''")
                ))
                .await;
            admin.run("SELECT pg_reload_conf()").await;
            let mut conninfo = database("postgres", &role);
            conninfo.password = Some("wrong".into());
            let refused = async |conninfo| {
                let opening = taskyard_sql::wire::Opening::default();
                taskyard_sql::wire::connect(&conninfo, &opening)
                    .await
                    .err()
                    .map(|error| error.line())
            };
            let said = format!("password authentication failed for user \"{role}\"");
            // The server reads the file a moment later.
            while refused(conninfo.clone()).await.as_deref() != Some(said.as_str()) {}
            conninfo.password = Some("it's secret".into());
            assert_eq!(refused(conninfo.clone()).await, None, "{method}");
            conninfo.password = None;
            assert_eq!(
                refused(conninfo).await.as_deref(),
                Some("fe_sendauth: no password supplied")
            );
        }
    });
}

#[test]
fn who_may_insert_names_no_files() {
    // Whoever could insert could let the scheduler read any file of its machine, a device that never ends among them.
    run(async {
        let (schema, admin) = (Rig::name(), Client::new(&database("postgres", "postgres")).await);
        admin
            .run(&format!(
                "CREATE ROLE {schema} LOGIN; CREATE SCHEMA {schema} AUTHORIZATION {schema}"
            ))
            .await;
        let row = format!(
            "[{{\"data\": \"postgres\", \"user\": \"{schema}\", \"schema\": \"{schema}\"}}]"
        );
        let tasks = schedule(&row, &schema);
        admin.until(&format!("to_regclass('{schema}.task') IS NOT NULL")).await;
        for option in ["sslrootcert", "sslcert", "sslkey", "passfile"] {
            admin
                .run(&format!(
                    "INSERT INTO {schema}.task (input, remote) VALUES ('select 1', 'host=127.0.0.1 port=1 password=x {option}=/dev/zero')"
                ))
                .await;
        }
        let refused = "error LIKE 'ERROR:  files are not allowed in a remote%'";
        admin
            .until(&format!("4 = (SELECT count(*) FROM {schema}.task WHERE state = 'DONE')"))
            .await;
        let count = admin.get(&format!("SELECT count(*) FROM {schema}.task WHERE {refused}")).await;
        assert_eq!(count.as_deref(), Some("4"));
        tasks.stop().await;
    });
}

#[test]
fn a_role_that_is_not_let_in_any_more_is_told() {
    // Whatever kept sessions from opening counted as a lack of room: nothing ran, and the scheduler was well.
    run(async {
        let (schema, admin) = (Rig::name(), Client::new(&database("postgres", "postgres")).await);
        admin
            .run(&format!(
                "CREATE ROLE {schema} LOGIN; CREATE SCHEMA {schema} AUTHORIZATION {schema}"
            ))
            .await;
        let row = format!(
            "[{{\"data\": \"postgres\", \"user\": \"{schema}\", \"schema\": \"{schema}\"}}]"
        );
        let tasks = schedule(&row, &schema);
        admin.until(&format!("to_regclass('{schema}.task') IS NOT NULL")).await;
        admin.run(&format!("INSERT INTO {schema}.task (input) VALUES ('select 1')")).await;
        let done = |count: u32| {
            format!(
                "{count} = (SELECT count(*) FROM {schema}.task WHERE state = 'DONE' AND error IS NULL)"
            )
        };
        admin.until(&done(1)).await;
        admin.run(&format!("ALTER ROLE {schema} NOLOGIN")).await;
        admin.run(&format!("INSERT INTO {schema}.task (input) VALUES ('select 2')")).await;
        told(&tasks, "is not permitted to log in").await;
        admin.run(&format!("ALTER ROLE {schema} LOGIN")).await;
        admin.until(&done(2)).await;
        assert_eq!(tasks.health(), Health::Well);
        tasks.stop().await;
    });
}

//! A hosted service on the dashboard: SQL tasks of a real database.

use std::sync::Arc;
use std::time::Duration;

use taskyard_core::service::Service;
use taskyard_sql::connection::{Connection, SessionOptions, connect};
use taskyard_sql::{Config, Conninfo, Source, SqlTasks};

use crate::HOSTILE;
use crate::site::DashboardServer;
use taskyard_testkit::chromium::browse;
use taskyard_testkit::postgres::{Cluster, programs};

const NEWEST: &str = "[data-table=\"Newest tasks\"] tbody tr";
const PLANNED: &str = "[data-table=\"Planned runs\"] tbody tr";

async fn run(wire: &mut Connection, sql: &str) {
    wire.run(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

#[tokio::test]
async fn sql_tasks_are_shown_with_their_runs_and_without_passwords() {
    let Some(programs) = programs() else { return };
    let cluster = Cluster::new(programs);
    let database = Conninfo::parse(&cluster.url("postgres")).unwrap();
    let config = Config::parse("[{\"data\": \"postgres\"}]").unwrap();
    let tasks = SqlTasks::start(database.clone(), Source::Inline(config), Duration::ZERO).unwrap();
    let site =
        DashboardServer::with(Some("right-0123456789"), vec![Arc::new(tasks) as Arc<dyn Service>])
            .await;
    let mut wire = connect(&database, &SessionOptions::default()).await.ok().unwrap();
    browse(&site.url(), async |page| {
        page.until("text('#state') === 'token required'").await;
        assert_eq!(page.text("#view").await, "");
        page.fill("#token", "right-0123456789").await;
        page.click("#token-form button").await;
        // The navigation lists the services that the server hosts.
        page.until("text('#state') === 'live'").await;
        page.until("document.querySelector('[data-view=pool]').hidden").await;
        page.click("[data-view=sql]").await;
        page.until("text('#services h2') === 'SQL tasks'").await;
        page.until("text('#services .parts').includes('leader; 0 running')").await;
        page.until("text('#services').includes('Newest tasks: \"public\".\"task\" in postgres: none')").await;

        let input = format!("select '{}'", HOSTILE.replace('\'', "''")).replace('\'', "''");
        run(
            &mut wire,
            &format!(
                "INSERT INTO task (input, plan, repeat, remote) VALUES ('{input}', '2100-01-01 00:00+00', '1 day', \
                 'host=h user=ann password=hidden')"
            ),
        )
        .await;
        run(&mut wire, "INSERT INTO task (input) VALUES ('select 1/0')").await;
        page.until(&format!("text('{NEWEST}:nth-child(1)').includes('ERROR:  division by zero')"))
            .await;
        assert!(page.text(&format!("{NEWEST}:nth-child(1)")).await.starts_with("2DONE"));
        let planned = page.text(&format!("{NEWEST}:nth-child(2)")).await;
        assert!(planned.starts_with("1PLAN") && planned.contains("not_due"), "{planned}");
        assert!(planned.contains("user=ann password=*** host=h"), "{planned}");
        page.until(&format!("document.querySelectorAll('{PLANNED}').length === 20")).await;
        let second = page.text(&format!("{PLANNED}:nth-child(2)")).await;
        assert!(second.starts_with("2100-01-02T00:00:00Z1"), "{second}");
        let html = page.run("return document.querySelector('#services').innerHTML").await;
        assert!(!html.as_str().unwrap().contains("=hidden"), "{html}");
        // Queries are text and never HTML.
        assert!(page.text("#services").await.contains("onerror"));
        assert!(page.run("return document.querySelector('#services img')").await.is_null());
        assert_eq!(page.run("return document.title").await, "SQL tasks · Taskyard");
        page.picture("sql").await;

        // A problem is shown beside its tasks.
        assert_eq!(page.text("#services .problem").await, "");
        cluster.kill();
        page.until("text('#services .problem').startsWith('\"public\".\"task\" in postgres: ')").await;
        assert_eq!(page.text("#state").await, "live");
    })
    .await;
    site.stop().await;
}

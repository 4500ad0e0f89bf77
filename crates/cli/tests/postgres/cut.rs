//! Connections to the database are closed, also in the middle of a reply.

use crate::cut_servers::CutServers;
use crate::database::DatabaseFixture;
use crate::fixture::{create_tubes, run, serve, start};
use crate::judge::judge;
use crate::key_storm::add_each_key_once;
use crate::load::{ServerFate, StormLoad};
use crate::proxy::PostgresProxy;
use taskyard_testkit::postgres::{cluster, sql};

/// How many replies arrive before and after each fault.
const REPLIES: usize = 100;

/// Terminates the database sessions of the servers.
const TERMINATE: &str = "
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'taskyard'";

#[test]
fn terminated_connections_are_opened_again() {
    run(async {
        let fixture = DatabaseFixture::new();
        let servers = [fixture.serve(), fixture.serve()];
        create_tubes(&servers[0]).await;
        let load = StormLoad::new();
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        for _ in 0..8 {
            load.wait_for_replies(REPLIES).await;
            sql(&fixture.database.url(), TERMINATE);
        }
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&fixture, &load);
    });
}

#[test]
fn interrupted_replies_leave_no_task_behind() {
    run(async {
        let fixture = DatabaseFixture::new();
        let proxy = PostgresProxy::new(cluster(), &fixture.database.url()).await;
        let (near, far) = (fixture.serve(), serve(&proxy.url));
        create_tubes(&near).await;
        let load = StormLoad::new();
        load.begin(&near, ServerFate::Stays).await;
        load.begin(&far, ServerFate::Stays).await;
        load.wait_for_replies(REPLIES).await;
        proxy.cut(40).await;
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&fixture, &load);
    });
}

#[test]
fn a_storm_of_interrupted_replies_adds_each_key_once() {
    run(async {
        let fixture = DatabaseFixture::new();
        let proxy = PostgresProxy::new(cluster(), &fixture.database.url()).await;
        let servers = [fixture.start(), start(&proxy.url)];
        add_each_key_once(CutServers::new(servers, async |count| proxy.cut(count).await)).await;
    });
}

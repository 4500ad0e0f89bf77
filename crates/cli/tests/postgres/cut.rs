//! Connections to the database are cut, also in the middle of an answer.

use crate::judge::judge;
use crate::load::{Fate, Load};
use crate::proxy::Proxy;
use crate::yard::{Yard, run};
use taskyard_testkit::postgres::{cluster, sql};

/// How many answers arrive before and after each fault.
const ANSWERS: usize = 100;

/// Terminates the database sessions of the servers.
const TERMINATE: &str = "
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'taskyard'";

#[test]
fn terminated_connections_are_opened_again() {
    run(async {
        let mut yard = Yard::new();
        let servers = [yard.serve(), yard.serve()];
        yard.make_tubes(&servers[0]).await;
        let load = Load::new();
        for server in &servers {
            load.begin(server, Fate::Lives).await;
        }
        for _ in 0..8 {
            load.answers(ANSWERS).await;
            sql(&yard.database.url(), TERMINATE);
        }
        load.answers(ANSWERS).await;
        load.end().await;
        judge(&yard, &load);
    });
}

#[test]
fn cut_off_answers_leave_no_task_behind() {
    run(async {
        let mut yard = Yard::new();
        let proxy = Proxy::new(cluster(), &yard.database.url()).await;
        let (near, far) = (yard.serve(), yard.serve_by(&proxy.url));
        yard.make_tubes(&near).await;
        let load = Load::new();
        load.begin(&near, Fate::Lives).await;
        load.begin(&far, Fate::Lives).await;
        load.answers(ANSWERS).await;
        proxy.cut(40).await;
        load.answers(ANSWERS).await;
        load.end().await;
        judge(&yard, &load);
    });
}

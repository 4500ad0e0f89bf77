//! Connections to the database are cut: at any moment, and in the middle of an answer.

use crate::judge::judge;
use crate::load::{Fate, Load};
use crate::proxy::Proxy;
use crate::yard::{Yard, run};
use taskyard_testkit::postgres::{cluster, sql};

/// How many answers come before and after each blow.
const ANSWERS: usize = 100;

/// Ends what serves this database's servers.
const TERMINATE: &str = "
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'taskyard'";

#[test]
fn connections_that_the_database_ends_are_made_anew() {
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
fn answers_that_are_cut_off_leave_nothing_behind() {
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

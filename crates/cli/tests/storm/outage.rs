//! The database is killed under load, and comes back.

use crate::cluster::{Cluster, programs};
use crate::database::prepare;
use crate::judge::judge;
use crate::load::{Fate, Load};
use crate::yard::{Yard, run};

/// How many answers come before and after each blow.
const ANSWERS: usize = 200;

#[test]
fn servers_outlive_their_database() {
    run(async {
        let cluster: &'static Cluster =
            Box::leak(Box::new(Cluster::new(programs().expect("it is there"))));
        prepare(cluster);
        let mut yard = Yard::on(cluster);
        let servers = [yard.serve(), yard.serve()];
        yard.make_tubes(&servers[0]).await;
        let load = Load::new();
        for server in &servers {
            load.begin(server, Fate::Lives).await;
        }
        for _ in 0..3 {
            load.answers(ANSWERS).await;
            cluster.kill();
            cluster.start();
        }
        load.answers(ANSWERS).await;
        load.end().await;
        judge(&yard, &load);
    });
}

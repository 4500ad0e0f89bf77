//! The database is killed under load and restarted.

use std::thread;

use crate::judge::judge;
use crate::load::{Fate, Load};
use crate::yard::{Yard, run};
use taskyard_testkit::postgres::{Cluster, programs};
use taskyard_testkit::postgres::{crash, prepare, sql};

/// How many answers arrive before and after each fault.
const ANSWERS: usize = 200;

#[test]
fn servers_survive_a_restart_of_their_database() {
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
        for _ in 0..2 {
            load.answers(ANSWERS).await;
            cluster.kill();
            cluster.start();
        }
        load.answers(ANSWERS).await;
        // A server that is started meanwhile waits, and does not declare the others dead.
        cluster.kill();
        let newcomer = thread::scope(|scope| {
            let starting = scope.spawn(|| yard.start(&yard.database.url()));
            cluster.start();
            starting.join().expect("it starts")
        });
        let newcomer = yard.welcome(newcomer);
        load.begin(&newcomer, Fate::Lives).await;
        load.answers(ANSWERS).await;
        load.end().await;
        judge(&yard, &load);
    });
}

/// The last heartbeat of one server was sent shortly before its next one was due.
const OLD: &str = "UPDATE taskyard.server SET heartbeat = heartbeat - 1900000
    WHERE id = (SELECT id FROM taskyard.server ORDER BY id LIMIT 1)";

// One process of the database was killed, as a system without memory does it, and the database recovered in place: in four of fourteen crashes
// the first server that reconnected declared the other dead and delivered its tasks again.
#[test]
fn servers_survive_a_crash_of_one_database_process() {
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
        for _ in 0..6 {
            load.answers(ANSWERS).await;
            sql(&yard.database.url(), OLD);
            crash(&yard.database.url());
        }
        load.answers(ANSWERS).await;
        load.end().await;
        judge(&yard, &load);
    });
}

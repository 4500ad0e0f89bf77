//! The database is killed under load and restarted.

use std::thread;

use crate::database::DatabaseFixture;
use crate::fixture::{connect, create_tubes, run};
use crate::judge::judge;
use crate::load::{ServerFate, StormLoad};
use taskyard_testkit::postgres::{Cluster, programs};
use taskyard_testkit::postgres::{crash, prepare, sql};

/// How many replies arrive before and after each fault.
const REPLIES: usize = 200;

#[test]
fn servers_survive_a_restart_of_their_database() {
    run(async {
        let cluster: &'static Cluster =
            Box::leak(Box::new(Cluster::new(programs().expect("it is installed"))));
        prepare(cluster);
        let fixture = DatabaseFixture::on(cluster);
        let servers = [fixture.serve(), fixture.serve()];
        create_tubes(&servers[0]).await;
        let load = StormLoad::new();
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        for _ in 0..2 {
            load.wait_for_replies(REPLIES).await;
            cluster.kill();
            cluster.start();
        }
        load.wait_for_replies(REPLIES).await;
        // A server that is started meanwhile waits, and does not declare the others dead.
        cluster.kill();
        let newcomer = thread::scope(|scope| {
            let starting = scope.spawn(|| fixture.start());
            cluster.start();
            starting.join().expect("it starts")
        });
        let newcomer = connect(newcomer);
        load.begin(&newcomer, ServerFate::Stays).await;
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&fixture, &load);
    });
}

/// The last heartbeat of one server was sent shortly before its next one was due.
const OLD: &str = "UPDATE taskyard.server SET heartbeat = heartbeat - 1900000
    WHERE id = (SELECT id FROM taskyard.server ORDER BY id LIMIT 1)";

// One process of the database was killed, as a system without free memory does, and the database recovered in place: in four of fourteen crashes
// the first server that reconnected declared the other dead and delivered its tasks again.
#[test]
fn servers_survive_a_crash_of_one_database_process() {
    run(async {
        let cluster: &'static Cluster =
            Box::leak(Box::new(Cluster::new(programs().expect("it is installed"))));
        prepare(cluster);
        let fixture = DatabaseFixture::on(cluster);
        let servers = [fixture.serve(), fixture.serve()];
        create_tubes(&servers[0]).await;
        let load = StormLoad::new();
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        for _ in 0..6 {
            load.wait_for_replies(REPLIES).await;
            sql(&fixture.database.url(), OLD);
            crash(&fixture.database.url());
        }
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&fixture, &load);
    });
}

//! The storms of every shared database on PostgreSQL, and crashes of one of its processes.

use taskyard_testkit::postgres::{OwnCluster, SharedPostgres, crash, sql};
use taskyard_testkit::storm::load::{Finishes, ServerFate, StormLoad, create_tubes};
use taskyard_testkit::storm::run;
use taskyard_testkit::storm::server::StormServer;
use taskyard_testkit::suite::storms::judge_storm;

use crate::process::binary;

taskyard_testkit::storm_suite!(SharedPostgres, binary);

/// How many replies arrive before and after each fault.
const REPLIES: usize = 200;

/// The last heartbeat of one server was sent shortly before its next one was due.
const OLD: &str = "UPDATE taskyard.server SET heartbeat = heartbeat - 1900000
    WHERE id = (SELECT id FROM taskyard.server ORDER BY id LIMIT 1)";

// One process of the database was killed, as a system without free memory does, and the database recovered in place: in four of fourteen crashes
// the first server that reconnected declared the other dead and delivered its tasks again.
#[test]
fn servers_survive_a_crash_of_one_database_process() {
    let Some(cluster) = OwnCluster::new() else { return };
    let url = cluster.database.url();
    run(async {
        let servers = [(); 2].map(|()| StormServer::start(binary, &url));
        create_tubes(&servers[0].http, None).await;
        let load = StormLoad::new(Finishes::Any);
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        for _ in 0..6 {
            load.wait_for_replies(REPLIES).await;
            sql(&url, OLD);
            crash(&url);
        }
        load.wait_for_replies(REPLIES).await;
        judge_storm::<SharedPostgres>(&cluster, &servers[0], &load).await;
    });
}

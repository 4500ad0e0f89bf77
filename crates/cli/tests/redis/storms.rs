//! The storms of every shared database on Redis, and storms on a cluster of it.

use taskyard_testkit::redis::{RedisCluster, SharedRedis, program};
use taskyard_testkit::server_process::ServerProcess;
use taskyard_testkit::storm::faulty_servers::KilledServers;
use taskyard_testkit::storm::keys::{self, add_each_key_once};
use taskyard_testkit::storm::load::{Finishes, ServerFate, StormLoad, TUBES, create_tubes};
use taskyard_testkit::storm::run;
use taskyard_testkit::storm::schedules::fire_each_time_once;
use taskyard_testkit::storm::server::StormServer;
use taskyard_testkit::suite::storms::judge_through;

use crate::process::binary;

taskyard_testkit::storm_suite!(SharedRedis, binary);

/// How many replies arrive before and after each fault.
const REPLIES: usize = 150;

fn start(url: &str) -> ServerProcess {
    ServerProcess::on_store(binary, url)
}

/// On a cluster a schedule and its tube are on different nodes, so a fire has two steps.
#[test]
fn killed_servers_of_a_cluster_fire_and_add_once() {
    let Some(program) = program() else { return };
    let cluster = RedisCluster::new(&program);
    run(async {
        fire_each_time_once(KilledServers::new(2, || start(&cluster.url()))).await;
        let url = format!("{}?prefix=keys", cluster.url());
        add_each_key_once(KilledServers::new(2, || start(&url))).await;
        let node = cluster.master_of(&format!("{{keys:{}}}:o", keys::TUBE));
        node.audit("keys", keys::TUBE);
    });
}

/// With `wait=1` everything acknowledged is on the replica that takes over.
#[test]
fn a_master_of_a_cluster_is_killed_under_load() {
    let Some(program) = program() else { return };
    let cluster = RedisCluster::new(&program);
    run(async {
        let url = format!("{}?wait=1&wait_ms=5000", cluster.url());
        let servers = [(); 2].map(|()| StormServer::start(binary, &url));
        create_tubes(&servers[0].http, None).await;
        let load = StormLoad::new(Finishes::Any);
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        for key in ["{taskyard:plain}:o", "{taskyard}:v"] {
            load.wait_for_replies(REPLIES).await;
            let master = cluster.master_of(key);
            let port = master.port();
            master.kill();
            while cluster.living_master_of(key).is_none_or(|now| now == port) {}
            master.start();
            cluster.wait_until_whole();
        }
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge_through::<SharedRedis>(&servers[0], &load).await;
        for name in TUBES {
            cluster.master_of(&format!("{{taskyard:{name}}}:o")).audit("taskyard", name);
        }
    });
}

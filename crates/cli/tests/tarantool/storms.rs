//! The storms of every shared database on Tarantool, and storms on one with a replica.

use std::sync::Arc;

use taskyard_testkit::storm::load::{Finishes, ServerFate, StormLoad, create_tubes};
use taskyard_testkit::storm::run;
use taskyard_testkit::storm::server::StormServer;
use taskyard_testkit::suite::storms::judge_through;
use taskyard_testkit::tarantool::{SharedTarantool, TarantoolInstance, program};

use crate::process::binary;

taskyard_testkit::storm_suite!(SharedTarantool, binary);

/// How many replies arrive before and after each fault.
const REPLIES: usize = 150;

/// Two servers on this database, with clients.
async fn loaded_servers(url: &str) -> ([StormServer; 2], Arc<StormLoad>) {
    let servers = [(); 2].map(|()| StormServer::start(binary, url));
    create_tubes(&servers[0].http, None).await;
    let load = StormLoad::new(Finishes::Any);
    for server in &servers {
        load.begin(server, ServerFate::Stays).await;
    }
    (servers, load)
}

/// A URL with both instances, in this order.
fn url_of(pair: &[TarantoolInstance; 2]) -> String {
    format!("{},127.0.0.1:{}", pair[0].url(), pair[1].port())
}

/// Waits until `to` has everything that `from` has written.
fn wait_until_caught_up(from: &TarantoolInstance, to: &TarantoolInstance) {
    let clock = |instance: &TarantoolInstance| {
        instance.talk("return require('json').encode(box.info.vclock)")
    };
    while clock(from) != clock(to) {}
}

/// The master is made read-only and the replica promoted, and then the reverse.
#[test]
fn a_replica_takes_over_under_load() {
    let Some(program) = program() else { return };
    let pair = TarantoolInstance::pair(&program);
    run(async {
        let (servers, load) = loaded_servers(&url_of(&pair)).await;
        for turn in 0..3 {
            load.wait_for_replies(REPLIES).await;
            let (from, to) = (&pair[turn % 2], &pair[(turn + 1) % 2]);
            from.talk("box.cfg{read_only = true}");
            wait_until_caught_up(from, to);
            to.talk("box.cfg{read_only = false}");
        }
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge_through::<SharedTarantool>(&servers[0], &load).await;
        pair[1].audit("taskyard");
    });
}

/// With `replicas=1` everything acknowledged is on the replica when the master is killed.
#[test]
fn a_master_is_killed_and_its_replica_promoted_under_load() {
    let Some(program) = program() else { return };
    let pair = TarantoolInstance::pair(&program);
    run(async {
        let url = format!("{}?replicas=1", url_of(&pair));
        let (servers, load) = loaded_servers(&url).await;
        load.wait_for_replies(REPLIES).await;
        pair[0].kill();
        pair[1].talk("box.cfg{read_only = false}");
        // Alone it can acknowledge nothing. The old master may have writes that no replica has: it must not return with them.
        pair[0].forget();
        pair[0].start_as_replica();
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge_through::<SharedTarantool>(&servers[0], &load).await;
        pair[1].audit("taskyard");
    });
}

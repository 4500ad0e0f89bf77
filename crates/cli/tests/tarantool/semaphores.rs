//! Servers and Tarantool are killed under a load of semaphore calls.

use taskyard_conformance::random::runs;
use taskyard_conformance::semaphores::storm;
use taskyard_core::Span;
use taskyard_testkit::tarantool::{TarantoolInstance, program};
use tokio::task::JoinSet;

use crate::fixture::{run, serve};
use crate::live_servers::LiveServers;

const SEMAPHORES: usize = 30;
/// Short, because the servers use real clocks.
const LEASE: Span = Span::from_micros(200_000);
/// How many replies arrive before each fault.
const REPLIES: usize = 150;

#[test]
fn kills_lose_no_grant_and_no_event() {
    run(async {
        let tarantool = TarantoolInstance::new(program().expect("it is installed"));
        let (stays, mut killed) = (serve(&tarantool.url()), serve(&tarantool.url()));
        let servers = LiveServers::new(vec![stays.http.clone(), killed.http.clone()]);
        storm::prepare(&servers, SEMAPHORES, LEASE).await;
        let mut clients = JoinSet::new();
        for seed in storm::client_seeds(4) {
            let servers = servers.clone();
            clients.spawn(async move { storm::run_client(&servers, seed, SEMAPHORES, 200).await });
        }
        for round in 0..runs() {
            servers.wait_for_replies((2 * round + 1) * REPLIES).await;
            killed.serving.signal("KILL");
            killed = serve(&tarantool.url());
            servers.replace(1, killed.http.clone());
            servers.wait_for_replies((2 * round + 2) * REPLIES).await;
            tarantool.kill();
            tarantool.start();
        }
        let delivered = clients.join_all().await.into_iter().flatten().collect();
        // Unacknowledged events would be delivered again after half a minute; here immediately.
        tarantool.talk(
            "for _, event in ipairs(box.space.taskyard_event:select()) do
                box.space.taskyard_event:update(event[1], {{'=', 7, 0}})
            end",
        );
        storm::check_invariants(&servers, SEMAPHORES, delivered).await;
        tarantool.audit("taskyard");
    });
}

//! Servers are killed under a load of semaphore calls, and others replace them.

use taskyard_conformance::random::runs;
use taskyard_conformance::semaphores::storm;
use taskyard_core::Span;
use taskyard_testkit::postgres::sql;
use tokio::task::JoinSet;

use crate::database::DatabaseFixture;
use crate::fixture::run;
use crate::live_servers::LiveServers;

const SEMAPHORES: usize = 30;
/// Short, because the servers use real clocks.
const LEASE: Span = Span::from_micros(200_000);
/// How many replies arrive before each fault.
const REPLIES: usize = 200;

#[test]
fn killed_servers_lose_no_grant_and_no_event() {
    run(async {
        let fixture = DatabaseFixture::new();
        let stays = fixture.serve();
        let mut killed = fixture.serve();
        let servers = LiveServers::new(vec![stays.http.clone(), killed.http.clone()]);
        storm::prepare(&servers, SEMAPHORES, LEASE).await;
        let mut clients = JoinSet::new();
        for seed in storm::client_seeds(4) {
            let servers = servers.clone();
            clients.spawn(async move { storm::run_client(&servers, seed, SEMAPHORES, 250).await });
        }
        for round in 1..=2 * runs() {
            servers.wait_for_replies(round * REPLIES).await;
            killed.serving.signal("KILL");
            killed = fixture.serve();
            servers.replace(1, killed.http.clone());
        }
        let delivered = clients.join_all().await.into_iter().flatten().collect();
        // Unacknowledged events would be delivered again after half a minute; here immediately.
        sql(&fixture.database.url(), "UPDATE taskyard.semaphore_event SET next_at = 0");
        storm::check_invariants(&servers, SEMAPHORES, delivered).await;
        let wrong = sql(&fixture.database.url(), "SELECT * FROM taskyard.semaphore_audit");
        assert_eq!(wrong, None);
    });
}

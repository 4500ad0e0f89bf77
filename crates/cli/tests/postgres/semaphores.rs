//! Servers are killed under a load of semaphore calls, and others replace them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use taskyard::Http;
use taskyard_conformance::semaphores::storm;
use taskyard_core::{Command, Error, Execute, Reply, Span};
use tokio::task::JoinSet;

use crate::yard::{Yard, run};
use taskyard_testkit::postgres::sql;

const SEMAPHORES: usize = 30;
/// Short, because the servers use real clocks.
const LEASE: Span = Span::from_micros(200_000);
/// How many answers arrive before each fault.
const ANSWERS: usize = 200;

/// The servers that are alive: a client whose server is gone uses the next one.
struct Servers {
    alive: Mutex<Vec<Http>>,
    answers: AtomicUsize,
}

impl Execute for Servers {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        loop {
            let place = fastrand::usize(..);
            let http = {
                let alive = self.alive.lock().expect("no client failed");
                alive[place % alive.len()].clone()
            };
            let replies = http.execute(commands.clone()).await;
            // Calls of semaphores are idempotent and may be repeated.
            let lost = |reply: &Result<Reply, Error>| {
                matches!(
                    reply,
                    Err(Error::StoreUnavailable(_)
                        | Error::OutcomeUnknown(_)
                        | Error::ShuttingDown)
                )
            };
            if !replies.iter().any(lost) {
                self.answers.fetch_add(1, Ordering::Relaxed);
                return replies;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[test]
fn killed_servers_lose_no_grant_and_no_event() {
    run(async {
        let mut yard = Yard::new();
        let stays = yard.serve();
        let mut goes = yard.serve();
        let servers: &'static Servers = Box::leak(Box::new(Servers {
            alive: Mutex::new(vec![stays.http.clone(), goes.http.clone()]),
            answers: AtomicUsize::new(0),
        }));
        storm::prepare(servers, SEMAPHORES, LEASE).await;
        let mut clients = JoinSet::new();
        for seed in 0..4 {
            clients.spawn(async move { storm::run_client(servers, seed, SEMAPHORES, 250).await });
        }
        for blow in 1..=2 {
            while servers.answers.load(Ordering::Relaxed) < blow * ANSWERS {
                tokio::task::yield_now().await;
            }
            goes.serving.signal("KILL");
            let next = yard.serve();
            servers.alive.lock().expect("no client failed")[1] = next.http.clone();
            goes = next;
        }
        let told = clients.join_all().await.into_iter().flatten().collect();
        // Unacknowledged events would be delivered again after half a minute; here at once.
        sql(&yard.database.url(), "UPDATE taskyard.semaphore_event SET next_at = 0");
        storm::check_invariants(servers, SEMAPHORES, told).await;
        let wrong = sql(&yard.database.url(), "SELECT * FROM taskyard.semaphore_audit");
        assert_eq!(wrong, None);
    });
}

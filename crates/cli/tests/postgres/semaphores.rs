//! Servers are killed in the middle of a storm on semaphores, and others take their place.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use taskyard::Http;
use taskyard_conformance::semaphores::storm;
use taskyard_core::{Command, Error, Execute, Reply, Span};
use tokio::task::JoinSet;

use crate::yard::{Yard, run};
use taskyard_testkit::postgres::sql;

const SEMAPHORES: usize = 30;
/// Short, because the servers' clocks are real.
const LEASE: Span = Span::from_micros(200_000);
/// How many answers come before each blow.
const ANSWERS: usize = 200;

/// Whoever still lives: a client whose server is gone asks the next one.
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
            // Semaphores may be asked twice: every call of theirs says the same again.
            let lost = |reply: &Result<Reply, Error>| {
                matches!(
                    reply,
                    Err(Error::StoreAway(_) | Error::OutcomeUnknown(_) | Error::ShuttingDown)
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
            clients.spawn(async move { storm::play(servers, seed, SEMAPHORES, 250).await });
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
        // What was told and not acknowledged would come again in half a minute; here at once.
        sql(&yard.database.url(), "UPDATE taskyard.semaphore_event SET next_at = 0");
        storm::judge(servers, SEMAPHORES, told).await;
        let wrong = sql(&yard.database.url(), "SELECT * FROM taskyard.semaphore_audit");
        assert_eq!(wrong, None);
    });
}

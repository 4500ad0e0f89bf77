//! Servers and Tarantool are killed under a load of semaphore calls.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use taskyard::Http;
use taskyard_conformance::semaphores::storm;
use taskyard_core::{Command, Error, Execute, Reply, Span};
use tokio::task::JoinSet;

use crate::yard::{run, serve};
use taskyard_testkit::tarantool::{Instance, program};

const SEMAPHORES: usize = 30;
/// Short, because the servers use real clocks.
const LEASE: Span = Span::from_micros(200_000);
/// How many answers arrive before each fault.
const ANSWERS: usize = 150;

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

impl Servers {
    /// Waits for this many more answers.
    async fn answered(&self, count: usize) {
        let wanted = self.answers.load(Ordering::Relaxed) + count;
        while self.answers.load(Ordering::Relaxed) < wanted {
            tokio::task::yield_now().await;
        }
    }
}

#[test]
fn kills_lose_no_grant_and_no_event() {
    run(async {
        let tarantool = Instance::new(program().expect("it is there"));
        let (stays, goes) = (serve(&tarantool.url()), serve(&tarantool.url()));
        let servers: &'static Servers = Box::leak(Box::new(Servers {
            alive: Mutex::new(vec![stays.http.clone(), goes.http.clone()]),
            answers: AtomicUsize::new(0),
        }));
        storm::prepare(servers, SEMAPHORES, LEASE).await;
        let mut clients = JoinSet::new();
        for seed in 0..4 {
            clients.spawn(async move { storm::run_client(servers, seed, SEMAPHORES, 200).await });
        }
        servers.answered(ANSWERS).await;
        goes.serving.signal("KILL");
        let next = serve(&tarantool.url());
        servers.alive.lock().expect("no client failed")[1] = next.http.clone();
        servers.answered(ANSWERS).await;
        tarantool.kill();
        tarantool.start();
        let told = clients.join_all().await.into_iter().flatten().collect();
        // Unacknowledged events would be delivered again after half a minute; here at once.
        tarantool.talk(
            "for _, event in ipairs(box.space.taskyard_event:select()) do
                box.space.taskyard_event:update(event[1], {{'=', 7, 0}})
            end",
        );
        storm::check_invariants(servers, SEMAPHORES, told).await;
        tarantool.audit("taskyard");
    });
}

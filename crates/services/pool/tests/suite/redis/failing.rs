//! Parts that die, freeze and come back.

use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value;

use super::acting::Actor;
use super::audit::{Account, Audit};
use super::play::Process;
use super::yard::{Far, Yard};
use crate::rig::Client;

/// Nobody waits long for those who are silent. A backend for each process.
const SHORT: &str = "leases: {task_seconds: 3, backend_seconds: 2, leader_seconds: 1}\n\
                     classes: [{name: fast, seconds: 60, limit: 100%}, {name: slow, seconds: 100, limit: 50%}]\n";

/// The pool as processes: two schedulers, a gateway, and a backend in each of two processes.
pub struct Cast {
    pub yard: Yard,
    pub audit: Audit,
    pub gateway: Option<Process>,
    pub schedulers: Vec<Process>,
    pub backends: Vec<Process>,
}

impl Cast {
    pub async fn new() -> Option<Self> {
        let yard = Yard::new(1, SHORT)?;
        let audit = Audit::follow(yard.redis().port(), &[2, 1]);
        let start = |role: &str| yard.process(role);
        let schedulers = vec![start("scheduler one"), start("scheduler two")];
        let backends = vec![start("backend"), start("backend")];
        let gateway = Some(start("gateway"));
        yard.until(|status| status["backends"] == 2 && status["paused"] == false).await;
        Some(Cast { yard, audit, gateway, schedulers, backends })
    }

    /// Looks until nobody holds anything, and whether what was held ever exceeded a limit.
    pub async fn until_empty(&self) -> Account {
        self.yard.until_empty().await;
        self.audit.check("")
    }

    pub fn far(&self) -> Far {
        Far { address: self.gateway.as_ref().unwrap().said.clone() }
    }

    /// Where a backend that has claimed a task listens.
    pub async fn busy(&self) -> usize {
        let claimed = |status: &Value| !status["in_redis"]["allocations"][0]["backend"].is_null();
        let status = self.yard.until(claimed).await;
        let backend = &status["in_redis"]["allocations"][0]["backend"];
        let all = status["in_redis"]["backends"].as_array().unwrap();
        let own = all.iter().find(|one| one["backend"] == *backend).unwrap();
        let busy = |process: &Process| process.said == own["address"].as_str().unwrap();
        self.backends.iter().position(busy).unwrap()
    }

    /// Which scheduler leads.
    async fn leader(&self) -> usize {
        let status = self.yard.until(|status| status["leader"]["name"].is_string()).await;
        let name = status["leader"]["name"].as_str().unwrap();
        self.schedulers.iter().position(|one| name.starts_with(&one.said)).unwrap()
    }
}

/// Everything up to the end: exactly one, and the last.
pub async fn end(client: &mut Client) -> String {
    let heard = client.rest().await;
    let ends = heard.iter().filter(|one| one.verb == "complete" || one.verb == "deny");
    assert_eq!(ends.count(), 1, "{heard:?}");
    let last = heard.last().unwrap();
    assert!(["complete", "deny"].contains(&last.verb.as_str()), "{heard:?}");
    last.error().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_backend_returns_its_task_or_tells_the_client() {
    let Some(mut cast) = Cast::new().await else { return };
    let far = cast.far();
    // Nobody has seen anything: it runs again, on the other backend.
    let mut unseen = far.start("{}", "sleep 3; echo made > result.txt").await;
    unseen.until("output").await;
    let busy = cast.busy().await;
    cast.backends.remove(busy).kill();
    assert_eq!(unseen.until("result").await.bytes, b"made\n");
    assert_eq!(end(&mut unseen).await, "");
    let mut seen = far.start("{}", "echo seen; exec sleep 1000").await;
    seen.until_output("seen").await;
    let busy = cast.busy().await;
    cast.backends.remove(busy).kill();
    assert_eq!(end(&mut seen).await, "the program or its backend was killed");
    let status = cast.yard.until(|status| status["backends"] == 0).await;
    assert_eq!((&status["counts"]["put_back"], &status["counts"]["lost"]), (&1.into(), &1.into()));
    cast.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_backend_is_passed_over_and_what_it_says_later_reaches_nobody() {
    let Some(cast) = Cast::new().await else { return };
    let mut client = cast.far().start("{}", "sleep 2; echo out; echo made > result.txt").await;
    client.until("output").await;
    let busy = cast.busy().await;
    cast.backends[busy].signal(Signal::STOP);
    // Its lease ends, the other one runs the task; then it comes back with output of its own.
    cast.yard.until(|status| status["counts"]["put_back"] == 1).await;
    cast.backends[busy].signal(Signal::CONT);
    let heard = client.rest().await;
    let outputs = heard.iter().filter(|one| one.bytes == b"out\n").count();
    let results = heard.iter().filter(|one| one.verb == "result").count();
    assert_eq!((outputs, results, heard.last().unwrap().error()), (1, 1, ""), "{heard:?}");
    cast.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_or_frozen_gateway_frees_everything() {
    let Some(mut cast) = Cast::new().await else { return };
    for freeze in [true, false] {
        let gateway = cast.gateway.take().unwrap_or_else(|| cast.yard.process("gateway"));
        let far = Far { address: gateway.said.clone() };
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(far.start("{}", "exec sleep 1000").await);
        }
        cast.yard.until(|status| status["running"] == 2 && status["queued"] == 2).await;
        if freeze {
            gateway.signal(Signal::STOP);
            cast.until_empty().await;
            gateway.signal(Signal::CONT);
            for client in &mut clients {
                let why = end(client).await;
                let told = [
                    "the pool has forgotten the task",
                    "the program or its backend was killed",
                    "nobody waits for it any more",
                ];
                assert!(told.iter().any(|words| why.starts_with(words)), "{why}");
            }
        } else {
            gateway.kill();
            cast.until_empty().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_scheduler_loses_nothing_and_counts_nothing_twice() {
    let Some(mut cast) = Cast::new().await else { return };
    let far = cast.far();
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut client = far.start(r#"{"duration": 50}"#, "echo up; exec sleep 1000").await;
        client.until("output").await;
        running.push(client);
    }
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut client = far.start(r#"{"duration": 50}"#, "echo x > result.txt").await;
        client.until("queue").await;
        waiting.push(client);
    }
    let leader = cast.leader().await;
    let first = cast.yard.status().await["leader"]["number"].clone();
    cast.schedulers.remove(leader).kill();
    let status = cast
        .yard
        .until(|status| {
            let number = &status["leader"]["number"];
            number.is_string() && *number != first && status["remembered"] == 5
        })
        .await;
    assert_eq!((&status["running"], &status["queued"]), (&2.into(), &3.into()), "{status:#}");
    drop(running);
    for client in &mut waiting {
        assert_eq!(client.until("result").await.bytes, b"x\n");
        assert_eq!(end(client).await, "");
    }
    cast.until_empty().await;
}

/// A scheduler that was paused past its lease comes back and goes on as if it led: everything it writes must be refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_that_is_paused_past_its_lease_comes_too_late() {
    let Some(cast) = Cast::new().await else { return };
    let far = cast.far();
    let leader = cast.leader().await;
    let old = cast.yard.status().await["leader"]["number"].as_str().unwrap().to_owned();
    cast.schedulers[leader].signal(Signal::STOP);
    let new = |status: &Value| {
        let number = &status["leader"]["number"];
        number.is_string() && *number != *old
    };
    cast.yard.until(new).await;
    let mut client = far.start("{}", "echo up; exec sleep 1000").await;
    client.until_output("up").await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(far.start("{}", "echo x > result.txt").await);
    }
    cast.schedulers[leader].signal(Signal::CONT);
    for client in &mut clients {
        assert_eq!(client.until("result").await.bytes, b"x\n");
        assert_eq!(end(client).await, "");
    }
    let status = cast.yard.until(|status| status["leader"]["number"].is_string()).await;
    assert_ne!(status["leader"]["number"], old.as_str());
    // What such a one may still send, word for word.
    let id = status["in_redis"]["allocations"][0]["task"].as_str().unwrap().to_owned();
    let attempt = status["in_redis"]["allocations"][0]["attempt"].as_str().unwrap().to_owned();
    let before = cast.yard.redis().talk(&["HGETALL", "queue.executing"]);
    for call in [
        vec!["gather", &old, "9", "1", "0", "9"],
        vec!["start", &old, &id, "9-9", "0", "default", "1", "1"],
        vec!["put_back", &old, &id, &attempt],
        vec!["give_up", &old, &id, "lost", "x"],
        vec!["lower", &old, &id, &attempt, "0", "1"],
        vec!["halt", &old, &id, &attempt, "x"],
        vec!["tell", &old, "1000", &id, "{}"],
    ] {
        let said = cast.yard.function(&call);
        assert!(said.contains("DEPOSED"), "{call:?}: {said}");
    }
    assert_eq!(cast.yard.redis().talk(&["HGETALL", "queue.executing"]), before);
    drop(client);
    cast.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_lose_nothing() {
    let Some(cast) = Cast::new().await else { return };
    let far = cast.far();
    let mut clients = Vec::new();
    for round in 0..12 {
        clients.push(far.start("{}", "sleep 0.2; echo x > result.txt").await);
        if round % 3 == 0 {
            cast.yard.redis().talk(&["CLIENT", "KILL", "TYPE", "normal"]);
            cast.yard.redis().talk(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
    }
    for client in &mut clients {
        // One whose arrival was cut is told so, and runs perhaps for nobody.
        let why = end(client).await;
        assert!(why.is_empty() || why.contains("database"), "{why}");
    }
    cast.yard.until_empty().await;
}

/// A backend that is told to stop ends what it runs with a word and is gone at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_stops_takes_nothing_new_and_leaves() {
    let Some(mut cast) = Cast::new().await else { return };
    let mut client = cast.far().start("{}", "echo up; exec sleep 1000").await;
    client.until_output("up").await;
    let busy = cast.busy().await;
    cast.backends.remove(busy).stop();
    assert_eq!(end(&mut client).await, "the backend is stopping");
    cast.yard.until(|status| status["backends"] == 1).await;
    cast.until_empty().await;
}

/// A task that was given a place, and the backend was gone before it took it: it waited for the other one, on which a session was
/// that nobody ended, because nobody waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_backend_is_left_to_take_waits_again() {
    let Some(cast) = Cast::new().await else { return };
    let mut session = cast.far().session().await;
    session.until("output").await;
    let idle = 1 - cast.busy().await;
    cast.backends[idle].signal(Signal::STOP);
    let mut client = cast.far().start("{}", "echo x > result.txt").await;
    assert_eq!(end(&mut session).await, "halted: its place is needed");
    assert_eq!(client.until("result").await.bytes, b"x\n");
    assert_eq!(end(&mut client).await, "");
    cast.backends[idle].signal(Signal::CONT);
    let status = cast.yard.until(|status| status["backends"] == 2).await;
    assert_eq!(status["counts"]["put_back"], 0, "it never ran before");
    cast.until_empty().await;
}

/// The news that a backend is gone and that its task is lost came together, and the task got the place of the backend that
/// was gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_place_of_a_backend_goes_with_it() {
    let Some(yard) = Yard::new(1, SHORT) else { return };
    let audit = Audit::follow(yard.redis().port(), &[1]);
    let _scheduler = yard.scheduler("one");
    let (backend, gateway) = (yard.backends_with(Arc::new(Actor)).await, yard.gateway().await);
    let client = gateway.start("{}", "100000").await;
    let claimed = |status: &Value| status["in_redis"]["allocations"][0]["backend"].is_string();
    let status = yard.until(claimed).await;
    let number = status["in_redis"]["backends"][0]["backend"].as_str().unwrap();
    drop(backend);
    yard.function(&["depart", number]);
    yard.until(|status| status["backends"] == 0 && status["queued"] == 1).await;
    drop(client);
    yard.until_empty().await;
    audit.check("");
}

/// Offers that somebody has thrown away: those who had a place waited for ever for a backend to take it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offer_that_is_lost_is_made_again() {
    let Some(cast) = Cast::new().await else { return };
    // Both backends are silent for less than their lease.
    cast.backends.iter().for_each(|backend| backend.signal(Signal::STOP));
    let mut client = cast.far().start("{}", "echo x > result.txt").await;
    let offered = |status: &Value| status["in_redis"]["allocations"][0].is_object();
    cast.yard.until(offered).await;
    cast.yard.redis().talk(&["DEL", "queue.outcoming"]);
    cast.backends.iter().for_each(|backend| backend.signal(Signal::CONT));
    assert_eq!(client.until("result").await.bytes, b"x\n");
    assert_eq!(end(&mut client).await, "");
    cast.until_empty().await;
}

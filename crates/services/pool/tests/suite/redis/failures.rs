//! Parts that fail, freeze and come back.

use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value;

use super::audit::{AllocationLog, Audit};
use super::fake_runner::FakeRunner;
use super::fixture::{GatewayAddress, RedisFixture};
use super::process::Process;
use crate::fixture::Client;

/// Short leases, so that silent parts are given up soon. One backend for each process.
const SHORT: &str = "leases: {task_seconds: 3, backend_seconds: 2, leader_seconds: 1}\n\
                     classes: [{name: fast, seconds: 60, limit: 100%}, {name: slow, seconds: 100, limit: 50%}]\n";

/// The pool as processes: two schedulers, a gateway, and a backend in each of two processes.
pub struct ProcessPool {
    pub fixture: RedisFixture,
    pub audit: Audit,
    pub gateway: Option<Process>,
    pub schedulers: Vec<Process>,
    pub backends: Vec<Process>,
}

impl ProcessPool {
    pub async fn new() -> Option<Self> {
        let fixture = RedisFixture::new(1, SHORT)?;
        let audit = Audit::follow(fixture.redis().port(), &[2, 1]);
        let start = |role: &str| fixture.process(role);
        let schedulers = vec![start("scheduler one"), start("scheduler two")];
        let backends = vec![start("backend"), start("backend")];
        let gateway = Some(start("gateway"));
        fixture.until(|status| status["backends"] == 2 && status["paused"] == false).await;
        Some(ProcessPool { fixture, audit, gateway, schedulers, backends })
    }

    /// Polls until nothing is held, and checks that no limit was exceeded.
    pub async fn until_empty(&self) -> AllocationLog {
        self.fixture.until_empty().await;
        self.audit.check("")
    }

    pub fn far(&self) -> GatewayAddress {
        GatewayAddress { address: self.gateway.as_ref().unwrap().ready_line.clone() }
    }

    /// The process of the backend that has claimed a task.
    pub async fn busy(&self) -> usize {
        let claimed = |status: &Value| !status["in_redis"]["allocations"][0]["backend"].is_null();
        let status = self.fixture.until(claimed).await;
        let backend = &status["in_redis"]["allocations"][0]["backend"];
        let all = status["in_redis"]["backends"].as_array().unwrap();
        let own = all.iter().find(|one| one["backend"] == *backend).unwrap();
        let busy = |process: &Process| process.ready_line == own["address"].as_str().unwrap();
        self.backends.iter().position(busy).unwrap()
    }

    /// The process of the leading scheduler.
    async fn leader(&self) -> usize {
        let status = self.fixture.until(|status| status["leader"]["name"].is_string()).await;
        let name = status["leader"]["name"].as_str().unwrap();
        self.schedulers.iter().position(|one| name.starts_with(&one.ready_line)).unwrap()
    }
}

/// Everything up to the end: there is exactly one, and it is the last frame.
pub async fn end(client: &mut Client) -> String {
    let received = client.rest().await;
    let ends = received.iter().filter(|one| one.verb == "complete" || one.verb == "deny");
    assert_eq!(ends.count(), 1, "{received:?}");
    let last = received.last().unwrap();
    assert!(["complete", "deny"].contains(&last.verb.as_str()), "{received:?}");
    last.error().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_backend_requeues_its_task_or_ends_it_with_an_error() {
    let Some(mut pool) = ProcessPool::new().await else { return };
    let (far, leader) = (pool.far(), pool.leader().await);
    // The client has seen nothing: it runs again, on the other backend.
    let mut unseen = far.start("{}", "sleep 3; echo made > result.txt").await;
    unseen.until("output").await;
    let busy = pool.busy().await;
    pool.backends.remove(busy).kill();
    assert_eq!(unseen.until("result").await.bytes, b"made\n");
    assert_eq!(end(&mut unseen).await, "");
    let mut seen = far.start("{}", "echo seen; exec sleep 1000").await;
    seen.until_output("seen").await;
    let busy = pool.busy().await;
    pool.backends.remove(busy).kill();
    assert_eq!(end(&mut seen).await, "the program or its backend was killed");
    let status = pool.fixture.until(|status| status["backends"] == 0).await;
    // On a busy machine the leader may change; another one counts from zero.
    if pool.leader().await == leader {
        let counts = (&status["counts"]["requeued"], &status["counts"]["lost"]);
        assert_eq!(counts, (&1.into(), &1.into()));
    }
    let attempts = pool.until_empty().await.attempts.len();
    assert!(attempts >= 3, "the first task ran twice, {attempts} attempts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_backend_is_replaced_and_its_late_output_is_ignored() {
    let Some(pool) = ProcessPool::new().await else { return };
    let mut client = pool.far().start("{}", "sleep 2; echo out; echo made > result.txt").await;
    client.until("output").await;
    let busy = pool.busy().await;
    pool.backends[busy].signal(Signal::STOP);
    // Its lease expires, the other one runs the task; then it continues with output of its own.
    pool.fixture.until(|status| status["counts"]["requeued"] == 1).await;
    pool.backends[busy].signal(Signal::CONT);
    let received = client.rest().await;
    let outputs = received.iter().filter(|one| one.bytes == b"out\n").count();
    let results = received.iter().filter(|one| one.verb == "result").count();
    assert_eq!((outputs, results, received.last().unwrap().error()), (1, 1, ""), "{received:?}");
    pool.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_or_frozen_gateway_frees_everything() {
    let Some(mut pool) = ProcessPool::new().await else { return };
    for freeze in [true, false] {
        let gateway = pool.gateway.take().unwrap_or_else(|| pool.fixture.process("gateway"));
        let far = GatewayAddress { address: gateway.ready_line.clone() };
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(far.start("{}", "exec sleep 1000").await);
        }
        pool.fixture.until(|status| status["running"] == 2 && status["queued"] == 2).await;
        if freeze {
            gateway.signal(Signal::STOP);
            pool.until_empty().await;
            gateway.signal(Signal::CONT);
            for client in &mut clients {
                let why = end(client).await;
                let expected = [
                    "the task expired",
                    "the program or its backend was killed",
                    "the task was withdrawn",
                ];
                assert!(expected.iter().any(|start| why.starts_with(start)), "{why}");
            }
        } else {
            gateway.kill();
            pool.until_empty().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_scheduler_loses_nothing_and_counts_nothing_twice() {
    let Some(mut pool) = ProcessPool::new().await else { return };
    let far = pool.far();
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
    let leader = pool.leader().await;
    let first = pool.fixture.status().await["leader"]["number"].clone();
    pool.schedulers.remove(leader).kill();
    let status = pool
        .fixture
        .until(|status| {
            let number = &status["leader"]["number"];
            number.is_string() && *number != first && status["tracked"] == 5
        })
        .await;
    assert_eq!((&status["running"], &status["queued"]), (&2.into(), &3.into()), "{status:#}");
    drop(running);
    for client in &mut waiting {
        assert_eq!(client.until("result").await.bytes, b"x\n");
        assert_eq!(end(client).await, "");
    }
    pool.until_empty().await;
}

/// A scheduler that was paused past its lease continues as if it led: everything it writes must be refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_that_was_paused_past_its_lease_is_refused() {
    let Some(pool) = ProcessPool::new().await else { return };
    let far = pool.far();
    let leader = pool.leader().await;
    let old = pool.fixture.status().await["leader"]["number"].as_str().unwrap().to_owned();
    pool.schedulers[leader].signal(Signal::STOP);
    let new = |status: &Value| {
        let number = &status["leader"]["number"];
        number.is_string() && *number != *old
    };
    pool.fixture.until(new).await;
    let mut client = far.start("{}", "echo up; exec sleep 1000").await;
    client.until_output("up").await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(far.start("{}", "echo x > result.txt").await);
    }
    pool.schedulers[leader].signal(Signal::CONT);
    for client in &mut clients {
        assert_eq!(client.until("result").await.bytes, b"x\n");
        assert_eq!(end(client).await, "");
    }
    let status = pool.fixture.until(|status| status["leader"]["number"].is_string()).await;
    assert_ne!(status["leader"]["number"], old.as_str());
    // Calls that such a scheduler may still send.
    let id = status["in_redis"]["allocations"][0]["task"].as_str().unwrap().to_owned();
    let attempt = status["in_redis"]["allocations"][0]["attempt"].as_str().unwrap().to_owned();
    let before = pool.fixture.redis().talk(&["HGETALL", "queue.executing"]);
    for call in [
        vec!["collect_events", &old, "9", "1", "0", "9"],
        vec!["start", &old, &id, "9-9", "0", "default", "1", "1"],
        vec!["requeue", &old, &id, &attempt],
        vec!["end_task", &old, &id, "lost", "x"],
        vec!["lower", &old, &id, &attempt, "0", "1"],
        vec!["halt", &old, &id, &attempt, "x"],
        vec!["publish_estimates", &old, "1000", &id, "{}"],
    ] {
        let reply = pool.fixture.function(&call);
        assert!(reply.contains("NOTLEADER"), "{call:?}: {reply}");
    }
    assert_eq!(pool.fixture.redis().talk(&["HGETALL", "queue.executing"]), before);
    drop(client);
    pool.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_lose_nothing() {
    let Some(pool) = ProcessPool::new().await else { return };
    let far = pool.far();
    let mut clients = Vec::new();
    for round in 0..12 {
        clients.push(far.start("{}", "sleep 0.2; echo x > result.txt").await);
        if round % 3 == 0 {
            pool.fixture.redis().talk(&["CLIENT", "KILL", "TYPE", "normal"]);
            pool.fixture.redis().talk(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
    }
    for client in &mut clients {
        // A client whose submission was cut receives an error, and its task may run nevertheless.
        let why = end(client).await;
        assert!(why.is_empty() || why.contains("database"), "{why}");
    }
    pool.fixture.until_empty().await;
}

/// A backend that is asked to stop ends its task with an error and deregisters at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_backend_claims_nothing_and_deregisters() {
    let Some(mut pool) = ProcessPool::new().await else { return };
    let mut client = pool.far().start("{}", "echo up; exec sleep 1000").await;
    client.until_output("up").await;
    let busy = pool.busy().await;
    pool.backends.remove(busy).stop();
    assert_eq!(end(&mut client).await, "the backend is stopping");
    pool.fixture.until(|status| status["backends"] == 1).await;
    pool.until_empty().await;
}

/// A task was offered, and the backend was gone before it claimed it: it waited for the other backend, which had a
/// session that was not halted, because no task waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offer_without_a_backend_is_withdrawn() {
    let Some(pool) = ProcessPool::new().await else { return };
    let mut session = pool.far().session().await;
    session.until("output").await;
    let idle = 1 - pool.busy().await;
    pool.backends[idle].signal(Signal::STOP);
    let mut client = pool.far().start("{}", "echo x > result.txt").await;
    assert_eq!(end(&mut session).await, "halted: a waiting task needs its backend");
    assert_eq!(client.until("result").await.bytes, b"x\n");
    assert_eq!(end(&mut client).await, "");
    pool.backends[idle].signal(Signal::CONT);
    let status = pool.fixture.until(|status| status["backends"] == 2).await;
    assert_eq!(status["counts"]["requeued"], 0, "it never ran before");
    pool.until_empty().await;
}

/// The events that a backend is gone and that its task is lost came together, and the task got the slot of the lost
/// backend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_of_a_lost_backend_is_removed() {
    let Some(fixture) = RedisFixture::new(1, SHORT) else { return };
    let audit = Audit::follow(fixture.redis().port(), &[1]);
    let _scheduler = fixture.scheduler("one");
    let (backend, gateway) =
        (fixture.backends_with(Arc::new(FakeRunner)).await, fixture.gateway().await);
    let client = gateway.start("{}", "100000").await;
    let claimed = |status: &Value| status["in_redis"]["allocations"][0]["backend"].is_string();
    let status = fixture.until(claimed).await;
    let number = status["in_redis"]["backends"][0]["backend"].as_str().unwrap();
    drop(backend);
    fixture.function(&["deregister", number]);
    fixture.until(|status| status["backends"] == 0 && status["queued"] == 1).await;
    drop(client);
    fixture.until_empty().await;
    audit.check("");
}

/// Offers were deleted: their tasks waited forever for a backend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_offer_is_repeated() {
    let Some(pool) = ProcessPool::new().await else { return };
    // Both backends are silent for less than their lease.
    pool.backends.iter().for_each(|backend| backend.signal(Signal::STOP));
    let mut client = pool.far().start("{}", "echo x > result.txt").await;
    let offered = |status: &Value| status["in_redis"]["allocations"][0].is_object();
    pool.fixture.until(offered).await;
    pool.fixture.redis().talk(&["DEL", "queue.outcoming"]);
    pool.backends.iter().for_each(|backend| backend.signal(Signal::CONT));
    assert_eq!(client.until("result").await.bytes, b"x\n");
    assert_eq!(end(&mut client).await, "");
    pool.until_empty().await;
}

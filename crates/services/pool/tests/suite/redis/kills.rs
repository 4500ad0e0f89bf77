//! Kills each part of a pool at each call that it makes to Redis, once before the call is sent and once after its
//! reply.
//!
//! A *round* is a small pool in which everything happens that can happen to a task. In the first rounds each part
//! reports which functions it calls, and how often; then there is a round for each of these calls in which the part
//! is killed there. Many pools share a Redis, whose own log of the allocations is checked at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;
use taskyard_pool::redis::CallStage;
use tokio::task::block_in_place;

use super::audit::Audit;
use super::fake_runner::FakeRunner;
use super::fixture::{FORGETFUL, GatewayAddress, Part, RedisFixture};
use super::process::{Behavior, Process};
use crate::fixture::Client;
use taskyard_testkit::redis::{RedisInstance, program};

const CONFIG: &str = "leases: {task_seconds: 3, backend_seconds: 1.2, leader_seconds: 0.8}\n\
                      classes: [{name: fast, seconds: 0.2, limit: 100%}, {name: slow, seconds: 5, limit: 1}]\n";
/// The backends are counted, one task of the slow class may run.
const LIMITS: [usize; 2] = [0, 1];
/// How many rounds run at once.
const ROUNDS_AT_ONCE: usize = 24;
/// Of calls that are repeated, so many are chosen, spread over the round.
const CALLS_MAX: usize = 8;
/// How many rounds without kills are tried until all functions were called.
const ROUNDS_WITHOUT_KILLS_MAX: usize = 5;
/// How many tasks test whether a pool still works.
const TRIES: usize = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Scheduler,
    TestGateway,
    Backend,
}

/// The result of a round.
struct RoundResult {
    killed: bool,
    calls: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_part_may_be_killed_before_and_after_every_call() {
    let Some(program) = program() else { return };
    let redis = Arc::new(RedisInstance::with(program, FORGETFUL));
    let audit = Arc::new(Audit::follow(redis.port(), &LIMITS));
    let counts = rounds_without_kills(&redis, &audit).await;
    let seen: BTreeSet<String> = counts.keys().map(|(_, function)| function.clone()).collect();
    assert_eq!(seen, functions(&redis), "every function is called in a round without kills");
    let mut deaths = Vec::new();
    for ((role, function), count) in counts {
        for at in spread(count) {
            for moment in [CallStage::Before, CallStage::After] {
                deaths.push((role, Behavior::Dies(function.clone(), at, moment)));
            }
        }
    }
    let count = deaths.len();
    let results = rounds(&redis, &audit, deaths).await;
    let killed = results.iter().filter(|(_, result)| result.killed).count();
    println!("{killed} of {count} were killed");
    // What depends on time does not happen equally often in every round.
    assert!(killed * 4 >= count * 3, "only {killed} of {count} calls were reached");
}

/// How often each part calls each function. On a busy machine the scheduler may lose its lead early, so there may be
/// more than one such round.
async fn rounds_without_kills(
    redis: &Arc<RedisInstance>,
    audit: &Arc<Audit>,
) -> BTreeMap<(Role, String), usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..ROUNDS_WITHOUT_KILLS_MAX {
        let roles = [Role::Scheduler, Role::TestGateway, Role::Backend];
        let behaviors = roles.map(|role| (role, Behavior::Reports));
        counts.clear();
        for (role, result) in rounds(redis, audit, behaviors.into()).await {
            for call in result.calls {
                *counts.entry((role, call)).or_default() += 1;
            }
        }
        println!("{counts:?}");
        let seen: BTreeSet<&String> = counts.keys().map(|(_, function)| function).collect();
        if seen.len() == functions(redis).len() {
            break;
        }
    }
    counts
}

/// Some numbers below `count`, including the first and the last.
fn spread(count: usize) -> BTreeSet<usize> {
    let most = CALLS_MAX.min(count);
    (0..most).map(|at| 1 + at * (count - 1) / (most - 1).max(1)).collect()
}

/// All functions of the library.
fn functions(redis: &RedisInstance) -> BTreeSet<String> {
    let list = redis.talk(&["FUNCTION", "LIST", "LIBRARYNAME", "taskyard_pool*"]);
    let names = list.lines().filter_map(|line| line.trim().strip_prefix("taskyard_pool_"));
    names.filter_map(|name| name.split_once('_')).map(|(_, name)| name.to_owned()).collect()
}

async fn rounds(
    redis: &Arc<RedisInstance>,
    audit: &Arc<Audit>,
    behaviors: Vec<(Role, Behavior)>,
) -> Vec<(Role, RoundResult)> {
    let rounds = behaviors.into_iter().map(|(role, behavior)| async move {
        // Each in its own task: waiting for a process must not block other rounds.
        tokio::spawn(round(redis.clone(), audit.clone(), role, behavior)).await.unwrap()
    });
    stream::iter(rounds).buffer_unordered(ROUNDS_AT_ONCE).collect().await
}

/// One pool from its start to its end.
async fn round(
    redis: Arc<RedisInstance>,
    audit: Arc<Audit>,
    role: Role,
    behavior: Behavior,
) -> (Role, RoundResult) {
    let name = format!("{role:?}-{behavior:?}-{}", fastrand::u32(..));
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let fixture = RedisFixture::beside(&redis, &name, 1, CONFIG);
    let victim = |own: Role, role_name: &str| {
        (own == role).then(|| block_in_place(|| fixture.process_that(role_name, &behavior)))
    };
    // The part to be killed takes the lead first, unless it is killed before.
    let mut scheduler = victim(Role::Scheduler, "scheduler doomed");
    if let Some(process) = &mut scheduler {
        fixture.until(|status| status["leader"]["name"].is_string() || process.is_dead()).await;
    }
    let _scheduler = fixture.scheduler("steady");
    let steady = fixture.gateway().await;
    let gateway = victim(Role::TestGateway, "gateway");
    let far = match &gateway {
        Some(process) => GatewayAddress { address: process.ready_line.clone() },
        None => GatewayAddress::clone(&steady),
    };
    let mut ends = vec![requeued_until_lost(&fixture, &far).await];
    let mut backend = victim(Role::Backend, "fake");
    let _steady = fixture.backends_with(Arc::new(FakeRunner)).await;
    let _other: Option<Part> = match backend {
        Some(_) => None,
        None => Some(fixture.backends_with(Arc::new(FakeRunner)).await),
    };
    let mut dead = || backend.as_mut().is_some_and(Process::is_dead);
    fixture.until(|status| status["backends"] == 2 || dead()).await;
    ends.extend(all_task_events(&far).await);
    // Afterwards the pool works as before. On a very busy machine a part may miss its lease once more, which costs a
    // task and is not an error.
    let mut well = false;
    for _ in 0..TRIES {
        let received = steady.start("{}", "1").await.rest().await;
        let count_of = |verb: &str| received.iter().filter(|one| one.verb == verb).count();
        assert_eq!((count_of("complete"), count_of("deny")), (1, 0), "{name}: {received:?}");
        well = received.last().is_some_and(|last| last.error().is_empty());
        if well {
            break;
        }
    }
    assert!(well, "{name}: nothing runs any more");
    let victim = [scheduler, gateway, backend].into_iter().flatten().next();
    let victim: Process = victim.expect("one process is to be killed");
    let (killed, calls) = block_in_place(|| victim.stop());
    for count in ends {
        let alone = role == Role::TestGateway && killed && count == 0;
        assert!(count == 1 || alone, "{name}: a client received {count} ends");
    }
    fixture.until_empty().await;
    audit.check(&fixture.base());
    (role, RoundResult { killed, calls })
}

/// A backend that no gateway can reach: its task is requeued twice, then its client receives an error. Returns the
/// number of ends.
async fn requeued_until_lost(fixture: &RedisFixture, far: &GatewayAddress) -> usize {
    let nowhere = fixture.backends_at(Arc::new(FakeRunner), Some("127.0.0.1:1".into())).await;
    let status = fixture.until(|status| status["in_redis"]["backends"][0].is_object()).await;
    let end_counts = match far.try_start("{}", "2000").await {
        Some(client) => ends(client).await,
        // A task that was never accepted gets no end.
        None => 0,
    };
    // It takes no task from the others.
    drop(nowhere);
    let backend = status["in_redis"]["backends"][0]["backend"].as_str().unwrap();
    block_in_place(|| fixture.function(&["deregister", backend]));
    end_counts
}

/// Two backends, with a session and a default task on them. A second session is denied, which lowers the default
/// task; then a task needs the backend of the session; one waiting client lowers its duration, another leaves.
/// Returns how many ends each client received.
async fn all_task_events(far: &GatewayAddress) -> Vec<usize> {
    let mut end_counts = Vec::new();
    let session = until_it_runs(far.try_session().await).await;
    let default = until_it_runs(far.try_start("{}", "1500").await).await;
    if let Some(denied) = far.try_session().await {
        end_counts.push(ends_or_runs(denied).await);
    }
    let quick = far.try_start(r#"{"duration": 0.2}"#, "100").await;
    let mut slow = far.try_start(r#"{"duration": 4}"#, "50").await;
    if let Some(slow) = &mut slow {
        slow.send_late(r#"options {"duration": 3}"#).await;
    }
    drop(far.try_start(r#"{"duration": 0.2}"#, "100").await);
    for client in [quick, slow, default].into_iter().flatten() {
        end_counts.push(ends(client).await);
    }
    // No task needed its backend if one was free.
    drop(session);
    end_counts
}

async fn until_it_runs(client: Option<Client>) -> Option<Client> {
    let mut client = client?;
    while let Some(received) = client.next_frame().await {
        match received.verb.as_str() {
            "output" => return Some(client),
            "complete" | "deny" => return None,
            _ => {}
        }
    }
    None
}

async fn ends(mut client: Client) -> usize {
    let received = client.rest().await;
    received.iter().filter(|one| ["complete", "deny"].contains(&one.verb.as_str())).count()
}

/// The same for a session that may get a backend: then its client leaves.
async fn ends_or_runs(client: Client) -> usize {
    let mut client = client;
    while let Some(received) = client.next_frame().await {
        match received.verb.as_str() {
            "output" => return 1,
            "complete" | "deny" => return 1 + ends(client).await,
            _ => {}
        }
    }
    0
}

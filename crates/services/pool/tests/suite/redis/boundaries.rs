//! Each part of a pool is killed at each call that it makes to Redis, once before the call leaves and once after its answer.
//!
//! A *day* is a small pool in which everything happens that can happen to a task. On the first days each part tells which
//! functions it calls, and how often; then there is a day for each of these calls on which the part is killed there. Many
//! pools share a Redis, whose own account of the allocations is looked at in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;
use taskyard_pool::redis::Moment;
use tokio::task::block_in_place;

use super::acting::Actor;
use super::audit::Audit;
use super::play::{Fate, Process};
use super::yard::{FORGETFUL, Far, Part, Yard};
use crate::rig::Client;
use taskyard_testkit::redis::{Instance, program};

const CONFIG: &str = "leases: {task_seconds: 3, backend_seconds: 1.2, leader_seconds: 0.8}\n\
                      classes: [{name: fast, seconds: 0.2, limit: 100%}, {name: slow, seconds: 5, limit: 1}]\n";
/// The backends are counted, one of the slow class may run.
const LIMITS: [usize; 2] = [0, 1];
/// How many days there are at once.
const DAYS_AT_ONCE: usize = 24;
/// Of calls that are made again and again, so many are taken, spread over the day.
const CALLS_MAX: usize = 8;
/// How many days everybody lives until all that can happen has happened on one.
const USUAL_DAYS_MAX: usize = 5;
/// How many tasks try whether a pool still works.
const TRIES: usize = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Scheduler,
    Gateway,
    Backend,
}

/// What came of a day.
struct Evening {
    killed: bool,
    calls: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_part_may_die_before_and_after_every_call() {
    let Some(program) = program() else { return };
    let redis = Arc::new(Instance::with(program, FORGETFUL));
    let audit = Arc::new(Audit::follow(redis.port(), &LIMITS));
    let counts = usual_days(&redis, &audit).await;
    let seen: BTreeSet<String> = counts.keys().map(|(_, function)| function.clone()).collect();
    assert_eq!(seen, functions(&redis), "every function is called on a usual day");
    let mut deaths = Vec::new();
    for ((role, function), count) in counts {
        for at in spread(count) {
            for moment in [Moment::Before, Moment::After] {
                deaths.push((role, Fate::Dies(function.clone(), at, moment)));
            }
        }
    }
    let count = deaths.len();
    let evenings = days(&redis, &audit, deaths).await;
    let killed = evenings.iter().filter(|(_, evening)| evening.killed).count();
    println!("{killed} of {count} were killed");
    // What happens by the second does not happen equally often every day.
    assert!(killed * 4 >= count * 3, "only {killed} of {count} calls were reached");
}

/// How often each part calls each function. On a busy machine the scheduler may lose its lead before the evening, so there may be more
/// than one such day.
async fn usual_days(redis: &Arc<Instance>, audit: &Arc<Audit>) -> BTreeMap<(Role, String), usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..USUAL_DAYS_MAX {
        let roles = [Role::Scheduler, Role::Gateway, Role::Backend];
        let fates = roles.map(|role| (role, Fate::Tells));
        counts.clear();
        for (role, evening) in days(redis, audit, fates.into()).await {
            for call in evening.calls {
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

/// Some of so many, the first and the last among them.
fn spread(count: usize) -> BTreeSet<usize> {
    let most = CALLS_MAX.min(count);
    (0..most).map(|at| 1 + at * (count - 1) / (most - 1).max(1)).collect()
}

/// All functions that there are.
fn functions(redis: &Instance) -> BTreeSet<String> {
    let list = redis.talk(&["FUNCTION", "LIST", "LIBRARYNAME", "taskyard_pool*"]);
    let names = list.lines().filter_map(|line| line.trim().strip_prefix("taskyard_pool_"));
    names.filter_map(|name| name.split_once('_')).map(|(_, name)| name.to_owned()).collect()
}

async fn days(
    redis: &Arc<Instance>,
    audit: &Arc<Audit>,
    fates: Vec<(Role, Fate)>,
) -> Vec<(Role, Evening)> {
    let days = fates.into_iter().map(|(role, fate)| async move {
        // Each on its own: those that wait for a process hold up nobody else.
        tokio::spawn(day(redis.clone(), audit.clone(), role, fate)).await.unwrap()
    });
    stream::iter(days).buffer_unordered(DAYS_AT_ONCE).collect().await
}

/// One pool from its beginning to its end.
async fn day(redis: Arc<Instance>, audit: Arc<Audit>, role: Role, fate: Fate) -> (Role, Evening) {
    let name = format!("{role:?}-{fate:?}-{}", fastrand::u32(..));
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let yard = Yard::beside(&redis, &name, 1, CONFIG);
    let doomed = |own: Role, words: &str| {
        (own == role).then(|| block_in_place(|| yard.process_that(words, &fate)))
    };
    // The doomed one leads first, unless it does not even come to that.
    let mut scheduler = doomed(Role::Scheduler, "scheduler doomed");
    if let Some(process) = &mut scheduler {
        yard.until(|status| status["leader"]["name"].is_string() || process.is_dead()).await;
    }
    let _scheduler = yard.scheduler("steady");
    let steady = yard.gateway().await;
    let gateway = doomed(Role::Gateway, "gateway");
    let far = match &gateway {
        Some(process) => Far { address: process.said.clone() },
        None => Far::clone(&steady),
    };
    let mut ends = vec![lost_again_and_again(&yard, &far).await];
    let mut backend = doomed(Role::Backend, "actor");
    let _steady = yard.backends_with(Arc::new(Actor)).await;
    let _other: Option<Part> = match backend {
        Some(_) => None,
        None => Some(yard.backends_with(Arc::new(Actor)).await),
    };
    let mut dead = || backend.as_mut().is_some_and(Process::is_dead);
    yard.until(|status| status["backends"] == 2 || dead()).await;
    ends.extend(everything(&far).await);
    // Afterwards the pool is as good as before. On a machine that is very busy somebody may be late with a word
    // once more, which costs a task and is no fault.
    let mut well = false;
    for _ in 0..TRIES {
        let heard = steady.start("{}", "1").await.rest().await;
        let said = |verb: &str| heard.iter().filter(|one| one.verb == verb).count();
        assert_eq!((said("complete"), said("deny")), (1, 0), "{name}: {heard:?}");
        well = heard.last().is_some_and(|last| last.error().is_empty());
        if well {
            break;
        }
    }
    assert!(well, "{name}: nothing runs any more");
    let doomed = [scheduler, gateway, backend].into_iter().flatten().next();
    let doomed: Process = doomed.expect("somebody is doomed");
    let (killed, calls) = block_in_place(|| doomed.stop());
    for count in ends {
        let alone = role == Role::Gateway && killed && count == 0;
        assert!(count == 1 || alone, "{name}: a client was told {count} ends");
    }
    yard.until_empty().await;
    audit.check(&yard.base());
    (role, Evening { killed, calls })
}

/// A backend that no gateway finds: its task is put back twice, and then its client is told. Answers how often.
async fn lost_again_and_again(yard: &Yard, far: &Far) -> usize {
    let nowhere = yard.backends_at(Arc::new(Actor), Some("127.0.0.1:1".into())).await;
    let status = yard.until(|status| status["in_redis"]["backends"][0].is_object()).await;
    let told = match far.try_start("{}", "2000").await {
        Some(client) => ends(client).await,
        // Nobody is told who never came in.
        None => 0,
    };
    // It takes nothing from the others.
    drop(nowhere);
    let backend = status["in_redis"]["backends"][0]["backend"].as_str().unwrap();
    block_in_place(|| yard.function(&["depart", backend]));
    told
}

/// Two backends, a session and a default task on them. A second session is denied, which costs the default task time; then a
/// task needs the place of the session; one waits whose client wants less time, one's client leaves. Answers how many
/// ends each client was told.
async fn everything(far: &Far) -> Vec<usize> {
    let mut told = Vec::new();
    let session = until_it_runs(far.try_session().await).await;
    let default = until_it_runs(far.try_start("{}", "1500").await).await;
    if let Some(denied) = far.try_session().await {
        told.push(ends_or_runs(denied).await);
    }
    let quick = far.try_start(r#"{"duration": 0.2}"#, "100").await;
    let mut slow = far.try_start(r#"{"duration": 4}"#, "50").await;
    if let Some(slow) = &mut slow {
        slow.say_late(r#"options {"duration": 3}"#).await;
    }
    drop(far.try_start(r#"{"duration": 0.2}"#, "100").await);
    for client in [quick, slow, default].into_iter().flatten() {
        told.push(ends(client).await);
    }
    // Nobody needed its place where a backend was free.
    drop(session);
    told
}

async fn until_it_runs(client: Option<Client>) -> Option<Client> {
    let mut client = client?;
    while let Some(heard) = client.hear().await {
        match heard.verb.as_str() {
            "output" => return Some(client),
            "complete" | "deny" => return None,
            _ => {}
        }
    }
    None
}

async fn ends(mut client: Client) -> usize {
    let heard = client.rest().await;
    heard.iter().filter(|one| ["complete", "deny"].contains(&one.verb.as_str())).count()
}

/// The same for a session that may get a backend: then its client leaves.
async fn ends_or_runs(client: Client) -> usize {
    let mut client = client;
    while let Some(heard) = client.hear().await {
        match heard.verb.as_str() {
            "output" => return 1,
            "complete" | "deny" => return 1 + ends(client).await,
            _ => {}
        }
    }
    0
}

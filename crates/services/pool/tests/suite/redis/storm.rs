//! Thousands of tasks while parts are killed and frozen and connections are cut; all are accounted for at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use taskyard_testkit::random::{first_seed, runs};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::fixture::{GatewayAddress, RedisFixture};
use super::process::Process;

/// Number of tasks, which `TASKYARD_RUNS` multiplies, and of concurrent clients.
const TASKS: usize = 2_000;
const CLIENTS: usize = 48;
/// After so many tasks a part fails.
const STEP: usize = 200;
/// Limits that are numbers, so that they do not depend on the number of backends.
const LIMITS: [usize; 3] = [usize::MAX, 6, 2];
const CONFIG: &str = "leases: {task_seconds: 4, backend_seconds: 2, leader_seconds: 1}\n\
                      classes: [{name: fast, seconds: 3, limit: 100%}, {name: medium, seconds: 10, limit: 6}, \
                      {name: slow, seconds: 30, limit: 2}]\n";

/// What the clients received.
#[derive(Default)]
struct ClientOutcomes {
    asked: AtomicUsize,
    ended: AtomicUsize,
    left: AtomicUsize,
    /// Its gateway was killed meanwhile.
    cut: AtomicUsize,
}

type Gateways = Arc<Mutex<Vec<Process>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_tasks_while_parts_fail() {
    let Some(fixture) = RedisFixture::new(4, CONFIG) else { return };
    let seed = first_seed();
    let tasks = TASKS * runs();
    let fixture = Arc::new(fixture);
    let outcomes = Arc::new(ClientOutcomes::default());
    let mut schedulers = vec![fixture.process("scheduler one"), fixture.process("scheduler two")];
    let mut backends: Vec<Process> = (0..3).map(|_| fixture.process("stub 5")).collect();
    let gateways: Gateways =
        Arc::new(Mutex::new(vec![fixture.process("gateway"), fixture.process("gateway")]));
    fixture.until(|status| status["backends"] == 12 && status["paused"] == false).await;
    let over = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(watch(fixture.clone(), over.clone()));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let chance = fastrand::Rng::with_seed(seed ^ client as u64);
        clients.spawn(submit_tasks(gateways.clone(), outcomes.clone(), tasks, chance));
    }
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut next = STEP;
    let mut frozen: Option<Frozen> = None;
    while outcomes.asked.load(Ordering::Acquire) < tasks {
        if outcomes.asked.load(Ordering::Acquire) < next {
            tokio::task::yield_now().await;
            continue;
        }
        next += STEP;
        unfreeze(&mut frozen, &schedulers, &backends);
        match chance.u8(0..7) {
            0 | 1 => {
                backends.remove(chance.usize(0..backends.len())).kill();
                backends.push(fixture.process("stub 5"));
            }
            2 => {
                schedulers.remove(chance.usize(0..2)).kill();
                schedulers.push(fixture.process("scheduler next"));
            }
            3 => {
                let mut gateways = gateways.lock().await;
                gateways.remove(chance.usize(0..2)).kill();
                gateways.push(fixture.process("gateway"));
            }
            4 => frozen = Some(Frozen::Scheduler(chance.usize(0..2))),
            5 => frozen = Some(Frozen::Backend(chance.usize(0..backends.len()))),
            _ => {
                fixture.redis().talk(&["CLIENT", "KILL", "TYPE", "normal"]);
                fixture.redis().talk(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            }
        }
        match frozen {
            Some(Frozen::Scheduler(at)) => schedulers[at].signal(Signal::STOP),
            Some(Frozen::Backend(at)) => backends[at].signal(Signal::STOP),
            None => {}
        }
    }
    unfreeze(&mut frozen, &schedulers, &backends);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    fixture.until_empty().await;
    over.store(true, Ordering::Release);
    let looks = watching.await.unwrap();
    assert!(looks > 100, "the status was checked during the load");
    let count = |of: &AtomicUsize| of.load(Ordering::Acquire);
    let (ended, left, cut) = (count(&outcomes.ended), count(&outcomes.left), count(&outcomes.cut));
    println!("{ended} received their end, {left} left, {cut} lost their gateway; {looks} looks");
    assert_eq!(ended + left + cut, count(&outcomes.asked));
    assert!(ended > tasks / 2 && left > 0);
}

/// The frozen part.
#[derive(Clone, Copy)]
enum Frozen {
    Scheduler(usize),
    Backend(usize),
}

fn unfreeze(frozen: &mut Option<Frozen>, schedulers: &[Process], backends: &[Process]) {
    match frozen.take() {
        Some(Frozen::Scheduler(at)) => schedulers[at].signal(Signal::CONT),
        Some(Frozen::Backend(at)) => backends[at].signal(Signal::CONT),
        None => {}
    }
}

/// Checks repeatedly whether a limit is exceeded.
async fn watch(fixture: Arc<RedisFixture>, over: Arc<AtomicBool>) -> usize {
    let mut looks = 0;
    while !over.load(Ordering::Acquire) {
        let status = fixture.status().await;
        let all = status["in_redis"]["allocations"].as_array().cloned().unwrap_or_default();
        for (class, limit) in LIMITS.into_iter().enumerate() {
            let of_class =
                |one: &&Value| one["class"].as_u64().is_some_and(|own| own >= class as u64);
            let running = all.iter().filter(of_class).count();
            assert!(running <= limit, "{running} of class {class} or longer: {all:?}");
        }
        looks += usize::from(!status.is_null());
        tokio::task::yield_now().await;
    }
    looks
}

/// A client that submits tasks one after the other.
async fn submit_tasks(
    gateways: Gateways,
    outcomes: Arc<ClientOutcomes>,
    tasks: usize,
    mut chance: fastrand::Rng,
) {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    while outcomes.asked.fetch_add(1, Ordering::AcqRel) < tasks {
        let address = {
            let gateways = gateways.lock().await;
            gateways[chance.usize(0..2)].ready_line.clone()
        };
        let options = match chance.u8(0..5) {
            0 => json!({ "duration": 3 }),
            1 => json!({ "duration": 10 }),
            2 => json!({ "duration": 30 }),
            _ => json!({}),
        };
        if chance.u8(0..20) == 0 {
            run_socket_task(&GatewayAddress { address }, &options, &outcomes).await;
            continue;
        }
        let file = json!({ "filename": "a.sh", "text": "" });
        let body = json!({ "input": [file], "options": options });
        let url = format!("http://{address}/pool/run/sh");
        let asking = http.post(url).json(&body).send();
        let patience = match chance.u8(0..20) {
            0 => Duration::from_millis(chance.u64(0..20)),
            _ => Duration::from_secs(60),
        };
        let outcome = match timeout(patience, asking).await {
            Err(_) if patience < Duration::from_secs(1) => &outcomes.left,
            Err(_) => panic!("a client received nothing for a minute"),
            Ok(Err(_)) => &outcomes.cut,
            Ok(Ok(answer)) => match answer.json::<Value>().await {
                Ok(answer) => {
                    let one = answer["ok"].is_object() != answer["error"].is_object();
                    assert!(one, "{answer}");
                    &outcomes.ended
                }
                Err(_) => &outcomes.cut,
            },
        };
        outcome.fetch_add(1, Ordering::AcqRel);
    }
    outcomes.asked.fetch_sub(1, Ordering::AcqRel);
}

/// A client that counts its frames: one end, or its gateway is gone.
async fn run_socket_task(far: &GatewayAddress, options: &Value, outcomes: &ClientOutcomes) {
    let Some(mut client) = far.try_start(&options.to_string(), "").await else {
        outcomes.cut.fetch_add(1, Ordering::AcqRel);
        return;
    };
    let frames = client.rest().await;
    let ends =
        frames.iter().filter(|one| ["complete", "deny"].contains(&one.verb.as_str())).count();
    assert!(ends <= 1, "{frames:?}");
    let outcome = if ends == 1 { &outcomes.ended } else { &outcomes.cut };
    outcome.fetch_add(1, Ordering::AcqRel);
}

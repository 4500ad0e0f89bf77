//! Ten thousand tasks while everything is killed, frozen and cut, and an account of them at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::play::Process;
use super::yard::{Far, Yard};

/// How many tasks, and how many clients at once.
const TASKS: usize = 10_000;
const CLIENTS: usize = 48;
/// After so many tasks something happens.
const STEP: usize = 400;
/// Limits that are numbers, so that they hold whoever lives.
const LIMITS: [usize; 3] = [usize::MAX, 6, 2];
const CONFIG: &str = "leases: {task_seconds: 4, backend_seconds: 2, leader_seconds: 1}\n\
                      classes: [{name: fast, seconds: 3, limit: 100%}, {name: medium, seconds: 10, limit: 6}, \
                      {name: slow, seconds: 30, limit: 2}]\n";

/// What clients heard.
#[derive(Default)]
struct Heard {
    asked: AtomicUsize,
    ended: AtomicUsize,
    left: AtomicUsize,
    /// Its gateway was killed meanwhile.
    cut: AtomicUsize,
}

type Gateways = Arc<Mutex<Vec<Process>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_tasks_and_everybody_dies_now_and_then() {
    let Some(yard) = Yard::new(4, CONFIG) else { return };
    let given = std::env::var("TASKYARD_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}");
    let yard = Arc::new(yard);
    let heard = Arc::new(Heard::default());
    let mut schedulers = vec![yard.process("scheduler one"), yard.process("scheduler two")];
    let mut backends: Vec<Process> = (0..3).map(|_| yard.process("stub 5")).collect();
    let gateways: Gateways =
        Arc::new(Mutex::new(vec![yard.process("gateway"), yard.process("gateway")]));
    yard.until(|status| status["backends"] == 12 && status["paused"] == false).await;
    let over = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(watch(yard.clone(), over.clone()));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let chance = fastrand::Rng::with_seed(seed ^ client as u64);
        clients.spawn(ask(gateways.clone(), heard.clone(), chance));
    }
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut next = STEP;
    let mut frozen: Option<Frozen> = None;
    while heard.asked.load(Ordering::Acquire) < TASKS {
        if heard.asked.load(Ordering::Acquire) < next {
            tokio::task::yield_now().await;
            continue;
        }
        next += STEP;
        thaw(&mut frozen, &schedulers, &backends);
        match chance.u8(0..7) {
            0 | 1 => {
                backends.remove(chance.usize(0..backends.len())).kill();
                backends.push(yard.process("stub 5"));
            }
            2 => {
                schedulers.remove(chance.usize(0..2)).kill();
                schedulers.push(yard.process("scheduler next"));
            }
            3 => {
                let mut gateways = gateways.lock().await;
                gateways.remove(chance.usize(0..2)).kill();
                gateways.push(yard.process("gateway"));
            }
            4 => frozen = Some(Frozen::Scheduler(chance.usize(0..2))),
            5 => frozen = Some(Frozen::Backend(chance.usize(0..backends.len()))),
            _ => {
                yard.redis().talk(&["CLIENT", "KILL", "TYPE", "normal"]);
                yard.redis().talk(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            }
        }
        match frozen {
            Some(Frozen::Scheduler(at)) => schedulers[at].signal(Signal::STOP),
            Some(Frozen::Backend(at)) => backends[at].signal(Signal::STOP),
            None => {}
        }
    }
    thaw(&mut frozen, &schedulers, &backends);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    yard.until_empty().await;
    over.store(true, Ordering::Release);
    let looks = watching.await.unwrap();
    assert!(looks > 100, "somebody looked while it stormed");
    let count = |of: &AtomicUsize| of.load(Ordering::Acquire);
    let (ended, left, cut) = (count(&heard.ended), count(&heard.left), count(&heard.cut));
    println!("{ended} heard their end, {left} left, {cut} lost their gateway; {looks} looks");
    assert_eq!(ended + left + cut, count(&heard.asked));
    assert!(ended > TASKS / 2 && left > 0);
}

/// Who does not move.
#[derive(Clone, Copy)]
enum Frozen {
    Scheduler(usize),
    Backend(usize),
}

fn thaw(frozen: &mut Option<Frozen>, schedulers: &[Process], backends: &[Process]) {
    match frozen.take() {
        Some(Frozen::Scheduler(at)) => schedulers[at].signal(Signal::CONT),
        Some(Frozen::Backend(at)) => backends[at].signal(Signal::CONT),
        None => {}
    }
}

/// Looks again and again whether a limit is exceeded.
async fn watch(yard: Arc<Yard>, over: Arc<AtomicBool>) -> usize {
    let mut looks = 0;
    while !over.load(Ordering::Acquire) {
        let status = yard.status().await;
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

/// A client that asks on and on.
async fn ask(gateways: Gateways, heard: Arc<Heard>, mut chance: fastrand::Rng) {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    while heard.asked.fetch_add(1, Ordering::AcqRel) < TASKS {
        let address = {
            let gateways = gateways.lock().await;
            gateways[chance.usize(0..2)].said.clone()
        };
        let options = match chance.u8(0..5) {
            0 => json!({ "duration": 3 }),
            1 => json!({ "duration": 10 }),
            2 => json!({ "duration": 30 }),
            _ => json!({}),
        };
        if chance.u8(0..20) == 0 {
            by_socket(&Far { address }, &options, &heard).await;
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
            Err(_) if patience < Duration::from_secs(1) => &heard.left,
            Err(_) => panic!("a client was told nothing for a minute"),
            Ok(Err(_)) => &heard.cut,
            Ok(Ok(answer)) => match answer.json::<Value>().await {
                Ok(answer) => {
                    let one = answer["ok"].is_object() != answer["error"].is_object();
                    assert!(one, "{answer}");
                    &heard.ended
                }
                Err(_) => &heard.cut,
            },
        };
        outcome.fetch_add(1, Ordering::AcqRel);
    }
    heard.asked.fetch_sub(1, Ordering::AcqRel);
}

/// A client whose frames are counted: one end, or its gateway is gone.
async fn by_socket(far: &Far, options: &Value, heard: &Heard) {
    let Some(mut client) = far.try_start(&options.to_string(), "").await else {
        heard.cut.fetch_add(1, Ordering::AcqRel);
        return;
    };
    let frames = client.rest().await;
    let ends =
        frames.iter().filter(|one| ["complete", "deny"].contains(&one.verb.as_str())).count();
    assert!(ends <= 1, "{frames:?}");
    let outcome = if ends == 1 { &heard.ended } else { &heard.cut };
    outcome.fetch_add(1, Ordering::AcqRel);
}

//! Simulates a pool: its gateways, schedulers and backends over a Redis that crashes, loses data and freezes.
//!
//! All parts of the pool are the real ones, with their connections to Redis and to each other; Redis runs the real function library
//! of the pool on simulated data. Programs, clients and the network are simulated. Start reading at `world`, then `redis`, `record`
//! (which also judges) and `client`.

mod client;
mod net;
mod pipe;
mod plan;
mod planted;
mod record;
mod redis;
mod runner;
mod world;

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

pub use plan::PoolPlan;

use crate::effects::FaultCounts;
use crate::final_phase::Facts;
use crate::history::History;
use crate::panics::caught;
use crate::plan::{Mask, Plan};
use crate::planted::PlantedFault;
use crate::run::{RunReport, simulated_runtime};
use world::PoolWorld;

/// How long it takes until nothing of ended tasks is left, beyond the leases.
const CLEAN_MAX: Duration = Duration::from_secs(90);
/// The longest run; each task has a shorter limit.
const RUN_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Runs a plan without what the mask leaves out, and judges it.
pub fn run(plan: &Plan, pool: &PoolPlan, mask: &Mask, planted: Option<PlantedFault>) -> RunReport {
    let runtime = simulated_runtime();
    let world = runtime.block_on(simulate(plan, pool, mask, planted));
    let empty = runtime.block_on(async { History::new(plan.start) });
    let (history, violation, simulated) = {
        let _guard = runtime.enter();
        let mut record = world.record.lock();
        let simulated = record.history.elapsed();
        (std::mem::replace(&mut record.history, empty), record.violation.take(), simulated)
    };
    let (crashes, commands) = (world.crashes.get(), world.redis.calls.get());
    // Tasks of the pool end with the runtime, and look at the clock then.
    drop(runtime);
    RunReport {
        history,
        facts: Facts::default(),
        violation,
        estimates: Default::default(),
        simulated,
        crashes,
        recoveries: 0,
        faults: FaultCounts::default(),
        commands,
    }
}

async fn simulate(
    plan: &Plan,
    pool: &PoolPlan,
    mask: &Mask,
    planted: Option<PlantedFault>,
) -> Rc<PoolWorld> {
    let world = PoolWorld::start(plan, pool, mask, planted);
    // A panic is noted.
    _ = caught(play(&world, mask)).await;
    world
}

/// Lets clients and faults do what they do, and checks what is left.
async fn play(world: &Rc<PoolWorld>, mask: &Mask) {
    let (plan, pool) = (&world.plan, &world.pool);
    let mask = Rc::new(mask.clone());
    let mut tasks = Vec::new();
    for (index, fault) in pool.faults.iter().enumerate() {
        if !mask.faults.contains(&index) {
            tasks.push(tokio::task::spawn_local(world.clone().run_fault(*fault)));
        }
    }
    for client in 0..plan.clients {
        tasks.push(tokio::task::spawn_local(client::run(world.clone(), client, mask.clone())));
    }
    let checking = tokio::task::spawn_local(check_allocations(world.clone()));
    let work = async {
        for task in tasks {
            if let Err(error) = task.await {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    };
    let is_stuck = timeout(RUN_MAX, work).await.is_err();
    world.record.lock().history.note("the clients and the faults ended".into());
    if is_stuck {
        world.record.lock().violate("liveness", "the clients did not end in time".into());
    } else if world.record.lock().violation.is_none() {
        check_empty(world).await;
    }
    checking.abort();
}

/// Compares programs with allocations, each second.
async fn check_allocations(world: Rc<PoolWorld>) {
    loop {
        sleep(Duration::from_secs(1)).await;
        if world.is_quiet() {
            world.redis.look(|data, now_ms| world.record.lock().check_allocations(data, now_ms));
        }
    }
}

/// Nothing of a task stays when all clients are gone.
async fn check_empty(world: &PoolWorld) {
    let leases: u32 = world.pool.leases.iter().sum();
    let until = Instant::now() + CLEAN_MAX + Duration::from_secs(leases.into());
    loop {
        let left = left_over(world);
        if left.is_empty() {
            return;
        }
        if Instant::now() >= until {
            let text = format!("after all clients left there is still: {}", left.join(", "));
            return world.record.lock().violate("leftover", text);
        }
        sleep(Duration::from_secs(1)).await;
    }
}

fn left_over(world: &PoolWorld) -> Vec<String> {
    let mut left = world.redis.look(|data, now_ms| {
        let mut left = data.keys_with("task:", now_ms);
        left.extend(
            data.keys_with("queue", now_ms).into_iter().filter(|key| key != "queue.outcoming"),
        );
        left
    });
    let record = world.record.lock();
    let runs = record.runs.iter().enumerate().filter(|(_, run)| !run.has_ended);
    left.extend(runs.map(|(number, _)| format!("run {number}")));
    left
}

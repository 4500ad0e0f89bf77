//! Runs one plan from its start to its judges, on one thread and virtual time.

use std::rc::Rc;
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::effects::{FaultCounts, take_counts};
use crate::estimates::observe;
use crate::evidence::Evidence;
use crate::faults::run_fault;
use crate::final_phase::{Facts, FinalPhase};
use crate::history::History;
use crate::judges::{HeldEstimates, Violation, count_estimates, judge};
use crate::panics::{caught, noting};
use crate::plan::{Mask, Plan, Scenario};
use crate::planted::PlantedFault;
use crate::world::World;

/// How long the tubes may take to be created, before any fault.
const PREPARE_MAX: Duration = Duration::from_secs(3_600);

/// What a run did, and whether a judge found a violation.
pub struct RunReport {
    /// What clients saw.
    pub history: History,
    /// What the final phase found.
    pub facts: Facts,
    /// The first violation.
    pub violation: Option<Violation>,
    /// How many estimates of starts held.
    pub estimates: HeldEstimates,
    /// How much virtual time passed.
    pub simulated: Duration,
    /// How many servers and databases crashed.
    pub crashes: u64,
    /// How often a server started again after a crash or a stop, recovered its data and served.
    pub recoveries: u64,
    /// Which faults happened and what they did.
    pub faults: FaultCounts,
    /// How many commands of clients were executed, or calls of functions in Redis.
    pub commands: u64,
}

/// Runs a plan without what the mask leaves out, and judges it. A panic of anything in it is a violation.
pub fn run(plan: &Plan, mask: &Mask, planted: Option<PlantedFault>) -> RunReport {
    // The engine draws the seeds of its ticks from the generator of the thread.
    fastrand::seed(plan.seed);
    take_counts();
    let (report, panicked) = noting(|| match &plan.pool {
        Some(pool) => crate::pool::run(plan, pool, mask, planted),
        None => run_servers(plan, mask, planted),
    });
    let mut report = report.unwrap_or_else(|_| RunReport::empty(plan));
    report.faults = take_counts();
    if let Some(text) = panicked {
        report.violation = Some(Violation::new("panic", text));
    }
    report
}

fn run_servers(plan: &Plan, mask: &Mask, planted: Option<PlantedFault>) -> RunReport {
    let runtime = simulated_runtime();
    let (world, facts, is_stuck) = runtime.block_on(simulate(plan, mask, planted));
    let (simulated, crashes, recoveries) = {
        let _guard = runtime.enter();
        let crashes = world.crashes.get() + world.storage.start_crashes();
        let recoveries = world.recoveries.get();
        (world.history.borrow().elapsed(), crashes, recoveries)
    };
    let history = world.history.replace(runtime.block_on(async { History::new(plan.start) }));
    let evidence = Evidence::new(plan, &history, &facts);
    let estimates = count_estimates(&evidence).unwrap_or_default();
    let violation = match (world.open_failure.take(), is_stuck) {
        (Some(failure), _) => Some(Violation::new("damage", failure)),
        (None, true) => Some(Violation::new("liveness", "the clients did not end in time".into())),
        (None, false) => judge(&evidence),
    };
    drop(evidence);
    let commands = history.calls.len() as u64;
    RunReport {
        history,
        facts,
        violation,
        estimates,
        simulated,
        crashes,
        recoveries,
        faults: FaultCounts::default(),
        commands,
    }
}

impl RunReport {
    /// The report of a run that did not get anywhere.
    fn empty(plan: &Plan) -> Self {
        let history = simulated_runtime().block_on(async { History::new(plan.start) });
        RunReport {
            history,
            facts: Facts::default(),
            violation: None,
            estimates: HeldEstimates::default(),
            simulated: Duration::ZERO,
            crashes: 0,
            recoveries: 0,
            faults: FaultCounts::default(),
            commands: 0,
        }
    }
}

/// A runtime with one thread and virtual time.
pub fn simulated_runtime() -> LocalRuntime {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build_local(LocalOptions::default());
    runtime.expect("a runtime without files and sockets can be built")
}

async fn simulate(
    plan: &Plan,
    mask: &Mask,
    planted: Option<PlantedFault>,
) -> (Rc<World>, Facts, bool) {
    let world = World::start(plan, planted);
    if world.open_failure.borrow().is_some() {
        return (world, Facts::default(), true);
    }
    let (facts, is_stuck) = caught(play(&world, mask)).await.unwrap_or_default();
    (world, facts, is_stuck)
}

/// Lets clients, workers and faults do what they do, and ends the run; also whether that took too long.
async fn play(world: &Rc<World>, mask: &Mask) -> (Facts, bool) {
    let plan = &world.plan;
    let mask = Rc::new(mask.clone());
    let mut admin = FinalPhase::new(world.clone());
    if tokio::time::timeout(PREPARE_MAX, admin.prepare()).await.is_err() {
        admin.facts.late = Some("a tube could not be created within an hour".into());
        return (admin.facts, true);
    }
    world.start_workers();
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    if plan.scenario == Scenario::Estimates {
        tasks.push(tokio::task::spawn_local(observe(world.clone())));
    }
    for (index, fault) in plan.faults.iter().enumerate() {
        if !mask.faults.contains(&index) {
            world.faults_left.set(world.faults_left.get() + 1);
            tasks.push(tokio::task::spawn_local(run_fault(world.clone(), *fault)));
        }
    }
    for number in 0..plan.clients {
        let client = Client::new(world.clone(), number);
        tasks.push(tokio::task::spawn_local(client.run(mask.clone())));
    }
    // Every call of a client ends within its wait, and within the faults.
    let each = plan.pause_max + Duration::from_secs(25) + 20 * plan.latency_max;
    let most = each * plan.operations + plan.expected_length() + Duration::from_secs(3_600);
    let work = async {
        for task in tasks {
            if let Err(error) = task.await {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    };
    let is_stuck = tokio::time::timeout(most, work).await.is_err();
    world.history.borrow_mut().note("the clients and the faults ended".into());
    if !is_stuck {
        world.wait_for_servers().await;
        let end = tokio::time::timeout(Duration::from_secs(24 * 3_600), admin.finish()).await;
        if end.is_err() {
            admin.facts.late = Some("a call after the faults got no reply within a day".into());
        }
    }
    admin.facts.server_stops = world.stops.take();
    (admin.facts, is_stuck)
}

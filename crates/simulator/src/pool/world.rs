//! Holds the processes of a pool and its Redis, and lets faults begin and end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use taskyard_pool::Config;
use taskyard_pool::redis::{
    BackendHost, BackendHostOptions, BackendTrust, PoolAddress, RedisGateway, RedisScheduler,
};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::net::{PoolNetwork, ProcessNumber, backend_address};
use super::plan::{Part, PoolFault, PoolFaultKind, PoolPlan};
use super::record::SharedRecord;
use super::redis::{CallWatcher, SimulatedRedis};
use super::runner::SimulatedRunner;
use crate::effects::{count_effects, count_fault};
use crate::history::History;
use crate::plan::{Mask, Plan, stream};
use crate::planted::PlantedFault;

/// How long backends may continue when they are asked to stop.
const GRACE: Duration = Duration::from_secs(2);

/// Everything of one run.
pub struct PoolWorld {
    pub plan: Plan,
    pub pool: PoolPlan,
    pub config: Config,
    pub record: SharedRecord,
    pub redis: Rc<SimulatedRedis>,
    pub planted: Option<PlantedFault>,
    network: PoolNetwork,
    processes: RefCell<BTreeMap<Part, Process>>,
    next_process: Cell<ProcessNumber>,
    active_faults: Cell<usize>,
    pub crashes: Cell<u64>,
    /// Whether a fault has happened.
    pub is_faulty: Cell<bool>,
}

/// A running process.
struct Process {
    number: ProcessNumber,
    role: Role,
}

enum Role {
    Scheduler {
        stop: Option<oneshot::Sender<()>>,
        serving: JoinHandle<()>,
    },
    Backends {
        stop: Option<oneshot::Sender<()>>,
        serving: JoinHandle<()>,
        runner: Arc<SimulatedRunner>,
    },
    Gateway {
        gateway: RedisGateway,
        gone: watch::Sender<bool>,
    },
}

impl PoolWorld {
    /// Prepares a run and starts all processes.
    pub fn start(
        plan: &Plan,
        pool: &PoolPlan,
        mask: &Mask,
        planted: Option<PlantedFault>,
    ) -> Rc<Self> {
        let faults = pool.faults.iter().enumerate();
        let kinds: Vec<PoolFaultKind> = faults
            .filter(|(index, _)| !mask.faults.contains(index))
            .map(|(_, fault)| fault.kind)
            .collect();
        let keeps_programs = kinds.iter().all(|kind| kind.keeps_programs());
        let record = SharedRecord::new(History::new(plan.start), pool, keeps_programs);
        let network = PoolNetwork::new(stream(plan.seed, u64::MAX, 10), pool.latency_max);
        let watched = record.clone();
        let watcher: CallWatcher = Rc::new(move |function, data, now_ms, error| {
            watched.lock().check_call(function, data, now_ms, error);
        });
        let redis = SimulatedRedis::new(
            network.clone(),
            stream(plan.seed, u64::MAX, 11),
            plan.start,
            planted.map_or(|text| text.to_owned(), super::planted::alteration),
            kinds.contains(&PoolFaultKind::FailOver),
            watcher,
        );
        let world = Rc::new(PoolWorld {
            plan: plan.clone(),
            pool: pool.clone(),
            config: pool.config(),
            record,
            redis,
            planted,
            network,
            processes: RefCell::default(),
            next_process: Cell::new(0),
            active_faults: Cell::new(0),
            crashes: Cell::new(0),
            is_faulty: Cell::new(false),
        });
        world.redis.start();
        world.parts().into_iter().for_each(|part| world.start_process(part));
        world
    }

    /// All processes that should run.
    fn parts(&self) -> Vec<Part> {
        let schedulers = (0..self.pool.schedulers).map(Part::Scheduler);
        let hosts = (0..self.pool.hosts).map(Part::Backends);
        schedulers.chain(hosts).chain((0..self.pool.gateways).map(Part::Gateway)).collect()
    }

    fn start_process(&self, part: Part) {
        if self.processes.borrow().contains_key(&part) {
            return;
        }
        let number = self.next_process.get();
        self.next_process.set(number + 1);
        let role = match part {
            Part::Scheduler(_) => self.scheduler(number),
            Part::Backends(_) => self.backends(number),
            Part::Gateway(_) => self.gateway_process(number),
        };
        self.record.lock().history.note(format!("process {number} is {part:?}"));
        self.processes.borrow_mut().insert(part, Process { number, role });
    }

    fn address(&self, number: ProcessNumber, role: &str) -> PoolAddress {
        let address = PoolAddress::with_dialer("redis://redis", role, self.network.of(number));
        address.expect("the address is good")
    }

    fn scheduler(&self, number: ProcessNumber) -> Role {
        let address = self.address(number, "scheduler");
        let scheduler = RedisScheduler::new(self.config.clone(), &address, "simulated");
        let (stop, stopped) = oneshot::channel::<()>();
        let scheduler = scheduler.expect("the configuration is good");
        let serving = tokio::spawn(scheduler.run(async move { _ = stopped.await }));
        Role::Scheduler { stop: Some(stop), serving }
    }

    fn backends(&self, number: ProcessNumber) -> Role {
        let runner = SimulatedRunner::new(self.record.clone(), number);
        let options = BackendHostOptions {
            listen: (Ipv4Addr::LOCALHOST, 1).into(),
            advertise: Some(backend_address(number)),
            identity: None,
            grace: GRACE,
        };
        let host = BackendHost::with_listener(
            self.config.clone(),
            &self.address(number, "backend"),
            runner.clone(),
            options,
            self.network.listen(number),
        );
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(host.run(async move { _ = stopped.await }));
        Role::Backends { stop: Some(stop), serving, runner }
    }

    fn gateway_process(&self, number: ProcessNumber) -> Role {
        let trust = BackendTrust::default().with_dialer(self.network.of(number));
        let address = self.address(number, "gateway");
        let gateway = RedisGateway::with_trust(&self.config, &address, trust);
        let gateway = gateway.expect("the configuration is good");
        Role::Gateway { gateway, gone: watch::channel(false).0 }
    }

    /// A gateway that runs, and what tells its end.
    pub fn gateway(&self, index: usize) -> Option<(RedisGateway, watch::Receiver<bool>)> {
        match &self.processes.borrow().get(&Part::Gateway(index))?.role {
            Role::Gateway { gateway, gone } => Some((gateway.clone(), gone.subscribe())),
            _ => None,
        }
    }

    /// Ends a process at once; `false` if it does not run.
    fn kill(&self, part: Part) -> bool {
        let Some(process) = self.processes.borrow_mut().remove(&part) else { return false };
        self.network.kill(process.number);
        match process.role {
            Role::Scheduler { serving, .. } => serving.abort(),
            Role::Backends { serving, runner, .. } => {
                serving.abort();
                runner.kill();
            }
            Role::Gateway { gone, .. } => _ = gone.send(true),
        }
        true
    }

    /// Asks a process to stop; a gateway has no clients that it could keep.
    fn stop(&self, part: Part) -> bool {
        match self.processes.borrow_mut().get_mut(&part).map(|process| &mut process.role) {
            Some(Role::Scheduler { stop, .. } | Role::Backends { stop, .. }) => {
                stop.take().is_some()
            }
            _ => false,
        }
    }

    fn number(&self, part: Part) -> Option<ProcessNumber> {
        Some(self.processes.borrow().get(&part)?.number)
    }

    /// Lets one fault begin and end.
    pub async fn run_fault(self: Rc<Self>, fault: PoolFault) {
        sleep(fault.at).await;
        // A process that stalls may be another one at the end.
        let stalled = match fault.kind {
            PoolFaultKind::Stall(part) => self.number(part),
            _ => None,
        };
        if !self.begin(fault.kind, stalled) {
            return;
        }
        count_fault(fault.kind.name());
        self.is_faulty.set(true);
        self.active_faults.set(self.active_faults.get() + 1);
        self.record.lock().begin_fault(fault.kind);
        sleep(fault.lasts).await;
        self.record.lock().history.note(format!("end of {:?}", fault.kind));
        self.end(fault.kind, stalled);
        self.active_faults.set(self.active_faults.get() - 1);
        self.record.lock().quiet_since = Instant::now();
    }

    /// Whether no fault is active.
    pub fn is_quiet(&self) -> bool {
        self.active_faults.get() == 0
    }

    fn begin(self: &Rc<Self>, kind: PoolFaultKind, stalled: Option<ProcessNumber>) -> bool {
        let crashes = |effects: Option<usize>| {
            self.crashes.set(self.crashes.get() + u64::from(effects.is_some()));
            count_effects(kind.name(), effects.unwrap_or_default());
            effects.is_some()
        };
        let count = |cell: &Cell<u32>| cell.set(cell.get() + 1);
        match kind {
            PoolFaultKind::CrashRedis(loss) => return crashes(self.redis.crash(loss)),
            PoolFaultKind::FailOver => return crashes(self.redis.fail_over()),
            PoolFaultKind::Kill(part) => return crashes(self.kill(part).then_some(1)),
            PoolFaultKind::Stop(part) => {
                let stops = self.stop(part);
                count_effects(kind.name(), stops.into());
                return stops;
            }
            PoolFaultKind::Stall(_) => match stalled {
                Some(number) => self.network.stall(number, true),
                None => return false,
            },
            PoolFaultKind::FlushRedis => count_effects(kind.name(), self.redis.flush()),
            PoolFaultKind::FreezeRedis => self.redis.freeze(true),
            PoolFaultKind::LoseReplies => count(&self.redis.losing_replies),
            PoolFaultKind::LoseMessages => count(&self.redis.losing_messages),
            PoolFaultKind::SlowRedis => count(&self.redis.slow),
            PoolFaultKind::CutRedis => self.network.cut(true),
            PoolFaultKind::CutBackends => self.network.cut(false),
            PoolFaultKind::SilenceBackends => self.network.silence_backends(true),
            PoolFaultKind::RefuseBackends => self.network.refuse_backends(true),
        }
        true
    }

    fn end(self: &Rc<Self>, kind: PoolFaultKind, stalled: Option<ProcessNumber>) {
        let uncount = |cell: &Cell<u32>| cell.set(cell.get() - 1);
        match kind {
            PoolFaultKind::CrashRedis(_) => {
                if !self.redis.is_up() {
                    self.redis.start();
                }
            }
            PoolFaultKind::Kill(part) => self.start_process(part),
            PoolFaultKind::Stop(part) => {
                // A stopped process that has not ended yet is killed.
                self.kill(part);
                self.start_process(part);
            }
            PoolFaultKind::Stall(_) => {
                if let Some(number) = stalled {
                    self.network.stall(number, false);
                }
            }
            PoolFaultKind::FreezeRedis => self.redis.freeze(false),
            PoolFaultKind::LoseReplies => uncount(&self.redis.losing_replies),
            PoolFaultKind::LoseMessages => uncount(&self.redis.losing_messages),
            PoolFaultKind::SlowRedis => uncount(&self.redis.slow),
            PoolFaultKind::SilenceBackends => self.network.silence_backends(false),
            PoolFaultKind::RefuseBackends => self.network.refuse_backends(false),
            PoolFaultKind::FlushRedis
            | PoolFaultKind::FailOver
            | PoolFaultKind::CutRedis
            | PoolFaultKind::CutBackends => {}
        }
    }
}

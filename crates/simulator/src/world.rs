//! Holds what the clients, servers and faults of a run share, and lets single faults begin and end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use taskyard_engine::Settings;
use taskyard_store::OpenError;
use taskyard_store::remote::HEARTBEAT;
use tokio::time::Instant;

use crate::clock::SimulatedClock;
use crate::effects::{FaultName, count_effects, count_fault};
use crate::faults::FaultKind;
use crate::history::SharedHistory;
use crate::network::Network;
use crate::plan::{Plan, Scenario};
use crate::planted::PlantedFault;
use crate::server::SimulatedServer;
use crate::server_stops::ServerStops;
use crate::storage::Storage;
use crate::workers::Workers;

/// How long after a full disk a server may need to follow its wall clock, and before one on a slow disk.
const CLOCK_LAG_MAX: Duration = Duration::from_secs(5);

/// How long a server waits that could not open its store.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The faults that fill the disk.
#[derive(Clone, Copy, Default)]
struct FullDisk {
    /// How many there are now.
    count: u32,
    /// Since when.
    since: Option<Instant>,
    /// When the latest one ended.
    ended: Option<Instant>,
}

impl FullDisk {
    fn begin(self) -> Self {
        // A disk that was full a moment ago may have refused the same.
        let is_new =
            self.count == 0 && self.ended.is_none_or(|ended| ended.elapsed() >= CLOCK_LAG_MAX);
        let since = if is_new { Some(Instant::now()) } else { self.since };
        FullDisk { count: self.count + 1, since, ..self }
    }

    fn end(self) -> Self {
        FullDisk { count: self.count - 1, ended: Some(Instant::now()), ..self }
    }
}

/// Everything of one run.
pub struct World {
    /// What the run does.
    pub plan: Plan,
    /// Its servers.
    pub servers: Vec<SimulatedServer>,
    /// What stores its tasks.
    pub storage: Storage,
    /// What its clients saw.
    pub history: SharedHistory,
    /// How many crashes of servers and of the database happened.
    pub crashes: Cell<u64>,
    /// How often a server started again and served after its crash.
    pub recoveries: Cell<u64>,
    /// How many faults are not over yet.
    pub faults_left: Cell<usize>,
    /// How many faults fill the disk, since when, and when the latest one ended.
    full_disk: Cell<FullDisk>,
    /// When the latest wall clock was set, or noticed by a server that was frozen.
    latest_step: Cell<Option<Instant>>,
    /// The graceful stops of servers.
    pub stops: ServerStops,
    /// Why a store could not be opened although its disk works.
    pub open_failure: RefCell<Option<String>>,
    /// What connects clients to servers, if they do not call the engines.
    pub network: Option<Network>,
    /// The clients of the product, by simulated client and server.
    pub(crate) clients: RefCell<BTreeMap<(u32, usize), taskyard::Client>>,
    pub(crate) planted: Option<PlantedFault>,
    /// The processes of workers.
    pub(crate) workers: Workers,
}

impl World {
    /// Prepares a run and starts its servers.
    pub fn start(plan: &Plan, planted: Option<PlantedFault>) -> Rc<Self> {
        let started = Instant::now();
        let history = SharedHistory::new(plan.start);
        history.reserve(plan.clients * plan.operations);
        let server = |_| SimulatedServer::new(SimulatedClock::new(started, plan.start));
        let world = Rc::new(World {
            plan: plan.clone(),
            servers: (0..plan.servers).map(server).collect(),
            storage: Storage::new(plan, &history, planted),
            crashes: Cell::new(0),
            recoveries: Cell::new(0),
            faults_left: Cell::new(0),
            full_disk: Cell::default(),
            latest_step: Cell::default(),
            stops: ServerStops::default(),
            open_failure: RefCell::default(),
            network: plan.scenario.has_network().then(|| Network::new(plan, planted)),
            clients: RefCell::default(),
            planted,
            workers: Workers::new(plan, &history),
            history,
        });
        for server in 0..plan.servers {
            world.start_server(server);
            if !world.storage.shows_wall_time() {
                tokio::task::spawn_local(send_heartbeats(world.clone(), server));
            }
        }
        world
    }

    /// Starts a server, now or when its disk works again.
    fn start_server(self: &Rc<Self>, server: usize) {
        if self.servers[server].is_up() {
            return;
        }
        let store = match self.storage.open(server, self.planted) {
            Ok(store) => store,
            Err(OpenError::Unavailable { .. }) if self.faults_left.get() > 0 => {
                let world = self.clone();
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(RESTART_PAUSE).await;
                    world.start_server(server);
                });
                return;
            }
            Err(error) => {
                *self.open_failure.borrow_mut() = Some(error.to_string());
                return;
            }
        };
        // Estimates follow from the series.
        let series_tubes_max = if self.plan.scenario == Scenario::Estimates { 10 } else { 0 };
        let settings = Settings { series_tubes_max, workers_max: 0, ..Settings::default() };
        self.servers[server].start(store, self.storage.busy_until(), settings);
        self.recoveries.update(|count| count + u64::from(self.servers[server].incarnation() > 1));
        self.accept_connections(server);
    }

    /// Waits until all servers run again: one that could not open its store tries again every second. One that has panicked never does.
    pub async fn wait_for_servers(&self) {
        let all_run = || self.servers.iter().all(SimulatedServer::is_up);
        let until = Instant::now() + 5 * RESTART_PAUSE;
        while !all_run() && self.open_failure.borrow().is_none() && Instant::now() < until {
            tokio::time::sleep(RESTART_PAUSE).await;
        }
    }

    /// Ends the process of a server; false if there is none.
    pub fn crash_server(&self, server: usize) -> bool {
        if let Some(network) = &self.network {
            network.stop_listening(server);
        }
        let is_up = self.servers[server].crash();
        if is_up {
            self.history.borrow_mut().end_process(server);
        }
        is_up
    }

    /// Whether the server may still show times by its wall clock as it was before that was set: it must store that first, and tries
    /// again each second.
    pub fn may_show_old_times(&self) -> bool {
        let FullDisk { count, since, ended } = self.full_disk.get();
        let may_fail = count > 0 || ended.is_some_and(|ended| ended.elapsed() < CLOCK_LAG_MAX);
        let is_unstored = |step: Instant| since.is_some_and(|since| step + CLOCK_LAG_MAX >= since);
        may_fail && self.latest_step.get().is_some_and(is_unstored)
    }

    /// Whether a fault can happen now: a server that is not up cannot crash.
    pub fn can_begin(&self, kind: FaultKind) -> bool {
        match kind {
            FaultKind::CrashServer(server) | FaultKind::LosePower(server) => {
                self.servers[server].is_up()
            }
            FaultKind::StopServer(server) => {
                self.servers[server].is_up() && !self.stops.contains(server)
            }
            _ => true,
        }
    }

    /// Lets a fault begin; false if it cannot happen now.
    pub fn begin_fault(self: &Rc<Self>, kind: FaultKind) -> bool {
        match kind {
            FaultKind::CrashServer(server) | FaultKind::LosePower(server)
                if !self.crash_server(server) =>
            {
                return false;
            }
            FaultKind::CrashServer(_) | FaultKind::LosePower(_) | FaultKind::CrashDatabase => {
                self.crashes.set(self.crashes.get() + 1);
                if let FaultKind::CrashServer(server) = kind {
                    count_effects(FaultName::CrashServer, self.calls_under_way(server));
                }
            }
            FaultKind::StopServer(server) => {
                // It begins when this fault is noted.
                let world = self.clone();
                tokio::task::spawn_local(async move { world.begin_stop(server) });
            }
            FaultKind::FreezeServer(server) => self.servers[server].freeze(true),
            FaultKind::StepClock(server, micros) => {
                self.latest_step.set(Some(Instant::now()));
                self.servers[server].clock.step(micros);
            }
            FaultKind::CrashWorker(worker) => self.workers.crash(worker),
            FaultKind::StopWorker(worker) => self.workers.stop(worker),
            FaultKind::FreezeWorker(worker) => self.workers.freeze(worker, true),
            FaultKind::FullDisk => self.full_disk.update(FullDisk::begin),
            _ => {}
        }
        count_fault(kind.name());
        self.stops.note_fault(kind, self.servers.len(), true);
        self.storage.apply_fault(kind, true);
        if let Some(network) = &self.network {
            network.apply_fault(kind, true);
        }
        true
    }

    /// How many calls at a server have no reply yet.
    pub fn calls_under_way(&self, server: usize) -> usize {
        let history = self.history.borrow();
        history.calls.iter().filter(|call| call.server == server && call.end.is_none()).count()
    }

    /// Lets a fault end that began.
    pub fn end_fault(self: &Rc<Self>, kind: FaultKind) {
        if let FaultKind::StopServer(server) = kind {
            self.end_stop(server);
        }
        self.stops.note_fault(kind, self.servers.len(), false);
        self.storage.apply_fault(kind, false);
        if let Some(network) = &self.network {
            network.apply_fault(kind, false);
        }
        match kind {
            FaultKind::CrashServer(server) | FaultKind::LosePower(server) => {
                self.start_server(server);
            }
            FaultKind::StopServer(server) => {
                self.start_server(server);
            }
            FaultKind::FreezeServer(server) => {
                self.servers[server].freeze(false);
                // Only now it notices that its clock was set.
                self.latest_step.update(|step| step.map(|_| Instant::now()));
            }
            FaultKind::FreezeWorker(worker) => self.workers.freeze(worker, false),
            FaultKind::FullDisk => self.full_disk.update(FullDisk::end),
            FaultKind::CrashWorker(worker) | FaultKind::StopWorker(worker) => {
                self.start_worker(worker);
            }
            FaultKind::DiskErrors | FaultKind::ReadOnlyDisk => {
                self.storage.end_process();
                self.crashes.set(self.crashes.get() + 1);
                self.crash_server(0);
                self.start_server(0);
            }
            _ => {}
        }
    }
}

/// Sends the heartbeats of a server while it runs.
async fn send_heartbeats(world: Rc<World>, server: usize) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        if world.servers[server].is_running() {
            world.storage.heartbeat(server);
        }
    }
}

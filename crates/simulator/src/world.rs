//! Holds what the clients, servers and faults of a run share, and lets single faults begin and end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use taskyard_engine::Settings;
use taskyard_store::remote::HEARTBEAT;
use tokio::time::Instant;

use crate::clock::SimulatedClock;
use crate::faults::FaultKind;
use crate::history::History;
use crate::plan::Plan;
use crate::planted::PlantedFault;
use crate::server::SimulatedServer;
use crate::storage::Storage;

/// Everything of one run.
pub struct World {
    /// What the run does.
    pub plan: Plan,
    /// Its servers.
    pub servers: Vec<SimulatedServer>,
    /// What stores its tasks.
    pub storage: Storage,
    /// What its clients saw.
    pub history: RefCell<History>,
    /// How many crashes of servers and of the database happened.
    pub crashes: Cell<u64>,
    /// How many faults happened.
    pub faults: Cell<u64>,
    /// How many faults are not over yet.
    pub faults_left: Cell<usize>,
    planted: Option<PlantedFault>,
}

impl World {
    /// Prepares a run and starts its servers.
    pub fn start(plan: &Plan, planted: Option<PlantedFault>) -> Rc<Self> {
        let started = Instant::now();
        let server = |_| SimulatedServer::new(SimulatedClock::new(started, plan.start));
        let world = Rc::new(World {
            plan: plan.clone(),
            servers: (0..plan.servers).map(server).collect(),
            storage: Storage::new(plan, planted),
            history: RefCell::new(History::new(plan.start)),
            crashes: Cell::new(0),
            faults: Cell::new(0),
            faults_left: Cell::new(0),
            planted,
        });
        for server in 0..plan.servers {
            world.start_server(server);
            if !world.storage.shows_wall_time() {
                tokio::task::spawn_local(send_heartbeats(world.clone(), server));
            }
        }
        world
    }

    fn start_server(&self, server: usize) {
        let store = self.storage.open(server, self.planted);
        let settings = Settings { series_tubes_max: 0, workers_max: 0, ..Settings::default() };
        self.servers[server].start(store, settings);
    }

    /// Lets a fault begin; false if it cannot happen now.
    pub fn begin_fault(&self, kind: FaultKind) -> bool {
        match kind {
            FaultKind::CrashServer(server) if !self.servers[server].crash() => return false,
            FaultKind::CrashServer(_) | FaultKind::CrashDatabase => {
                self.crashes.set(self.crashes.get() + 1);
            }
            FaultKind::FreezeServer(server) => self.servers[server].freeze(true),
            FaultKind::StepClock(server, micros) => self.servers[server].clock.step(micros),
            _ => {}
        }
        self.faults.set(self.faults.get() + 1);
        self.storage.apply_fault(kind, true);
        true
    }

    /// Lets a fault end that began.
    pub fn end_fault(&self, kind: FaultKind) {
        match kind {
            FaultKind::CrashServer(server) => self.start_server(server),
            FaultKind::FreezeServer(server) => self.servers[server].freeze(false),
            _ => {}
        }
        self.storage.apply_fault(kind, false);
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

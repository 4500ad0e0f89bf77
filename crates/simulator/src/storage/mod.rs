//! Opens the stores of a scenario for its servers.
//!
//! A store in memory has one server, and so has the embedded store on a simulated disk. A shared one has several: `database` is
//! what they share, `shared` the connection of one of them.

mod database;
mod embedded;
mod shared;

use std::sync::{Arc, Mutex, PoisonError};

use taskyard_store::{MemoryStore, OpenError, Store};
use tokio::time::Instant;

use crate::disk::ProcessEnd;
use crate::faults::FaultKind;
use crate::history::SharedHistory;
use crate::plan::{Plan, Scenario};
use crate::planted::PlantedFault;
use crate::planted_store::PlantedStore;

pub use database::Database;
pub use embedded::EmbeddedStorage;
pub use shared::SharedStore;

/// Says until when something waits.
pub type BusyUntil = Box<dyn Fn() -> Option<Instant>>;

/// What stores the tasks of a run.
pub enum Storage {
    /// The store in memory of one server, which never crashes.
    Memory,
    /// The embedded store of one server, on a simulated disk.
    Embedded(EmbeddedStorage),
    /// A database that all servers share.
    Shared(Arc<Mutex<Database>>),
}

impl Storage {
    /// The storage of a run.
    pub fn new(plan: &Plan, history: &SharedHistory, planted: Option<PlantedFault>) -> Self {
        match plan.scenario {
            Scenario::Quiet | Scenario::Memory | Scenario::Estimates | Scenario::Pool => {
                Storage::Memory
            }
            Scenario::Embedded | Scenario::Crashes => {
                Storage::Embedded(EmbeddedStorage::new(plan, planted))
            }
            Scenario::Shared | Scenario::Network | Scenario::Workers => {
                Storage::Shared(Arc::new(Mutex::new(Database::new(plan, history, planted))))
            }
        }
    }

    /// Opens it for a server that starts.
    pub fn open(
        &self,
        server: usize,
        planted: Option<PlantedFault>,
    ) -> Result<Box<dyn Store>, OpenError> {
        let store: Box<dyn Store> = match self {
            Storage::Memory => Box::new(MemoryStore::default()),
            Storage::Embedded(storage) => storage.open()?,
            Storage::Shared(database) => Box::new(SharedStore::connect(database.clone(), server)),
        };
        Ok(match planted {
            Some(fault) => Box::new(PlantedStore::new(store, fault)),
            None => store,
        })
    }

    /// Leads the process of a server to its crash, if it is one of those that can be in the middle of a write. False if the crash does not
    /// happen.
    pub async fn lead_to_crash(&self, kind: FaultKind) -> bool {
        match (self, kind) {
            (Storage::Embedded(storage), FaultKind::CrashServer(_)) => {
                storage.crash(ProcessEnd::Kill).await
            }
            (Storage::Embedded(storage), FaultKind::LosePower(_)) => {
                storage.crash(ProcessEnd::PowerFailure).await
            }
            _ => true,
        }
    }

    /// Ends the process of a server between two batches.
    pub fn end_process(&self) {
        if let Storage::Embedded(storage) = self {
            storage.end_process();
        }
    }

    /// Ends the process of a server that has stopped.
    pub fn end_stopped_process(&self) {
        if let Storage::Embedded(storage) = self {
            storage.end_stopped_process();
        }
    }

    /// What says until when the engine of a server waits for its disk.
    pub fn busy_until(&self) -> BusyUntil {
        match self {
            Storage::Embedded(storage) => Box::new(storage.busy_until()),
            Storage::Memory | Storage::Shared(_) => Box::new(|| None),
        }
    }

    /// How many processes crashed while they started.
    pub fn start_crashes(&self) -> u64 {
        match self {
            Storage::Embedded(storage) => storage.start_crashes(),
            Storage::Memory | Storage::Shared(_) => 0,
        }
    }

    /// Whether the times in replies follow the wall clock of the server.
    pub fn shows_wall_time(&self) -> bool {
        matches!(self, Storage::Memory | Storage::Embedded(_))
    }

    /// Sends the heartbeat of a running server.
    pub fn heartbeat(&self, server: usize) {
        if let Storage::Shared(database) = self {
            database.lock().unwrap_or_else(PoisonError::into_inner).heartbeat(server);
        }
    }

    /// Lets a fault begin or end, if it is one of the storage.
    pub fn apply_fault(&self, kind: FaultKind, begins: bool) {
        match self {
            Storage::Memory => {}
            Storage::Embedded(storage) => storage.apply_fault(kind, begins),
            Storage::Shared(database) => {
                database.lock().unwrap_or_else(PoisonError::into_inner).apply_fault(kind, begins);
            }
        }
    }
}

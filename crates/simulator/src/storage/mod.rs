//! Opens the stores of a scenario for its servers.
//!
//! A store in memory has one server. A shared one has several: `database` is what they share, `shared` the connection of one of
//! them. The embedded store on a simulated disk will be a third variant.

mod database;
mod shared;

use std::sync::{Arc, Mutex, PoisonError};

use taskyard_store::{MemoryStore, Store};

use crate::faults::FaultKind;
use crate::plan::{Plan, Scenario};
use crate::planted::{PlantedFault, PlantedStore};

pub use database::Database;
pub use shared::SharedStore;

/// What stores the tasks of a run.
pub enum Storage {
    /// The store in memory of one server, which never crashes.
    Memory,
    /// A database that all servers share.
    Shared(Arc<Mutex<Database>>),
}

impl Storage {
    /// The storage of a run.
    pub fn new(plan: &Plan, planted: Option<PlantedFault>) -> Self {
        match plan.scenario {
            Scenario::Quiet | Scenario::Memory => Storage::Memory,
            Scenario::Shared => Storage::Shared(Arc::new(Mutex::new(Database::new(plan, planted)))),
        }
    }

    /// Opens it for a server that starts.
    pub fn open(&self, server: usize, planted: Option<PlantedFault>) -> Box<dyn Store> {
        let store: Box<dyn Store> = match self {
            Storage::Memory => Box::new(MemoryStore::default()),
            Storage::Shared(database) => Box::new(SharedStore::connect(database.clone(), server)),
        };
        match planted {
            Some(fault) => Box::new(PlantedStore::new(store, fault)),
            None => store,
        }
    }

    /// Whether the times in replies follow the wall clock of the server.
    pub fn shows_wall_time(&self) -> bool {
        matches!(self, Storage::Memory)
    }

    /// Sends the heartbeat of a running server.
    pub fn heartbeat(&self, server: usize) {
        if let Storage::Shared(database) = self {
            database.lock().unwrap_or_else(PoisonError::into_inner).heartbeat(server);
        }
    }

    /// Lets a fault begin or end, if it is one of the storage.
    pub fn apply_fault(&self, kind: FaultKind, begins: bool) {
        if let Storage::Shared(database) = self {
            database.lock().unwrap_or_else(PoisonError::into_inner).apply_fault(kind, begins);
        }
    }
}

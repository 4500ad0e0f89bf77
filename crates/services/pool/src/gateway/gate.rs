//! What all clients of a gateway share.

use std::collections::BTreeMap;
use std::sync::Arc;

use taskyard_core::limits::CONNECTIONS_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::files::Files;
use super::turns::Turns;
use super::yard::Yard;
use crate::config::{Config, Limits, Program};

/// In what pieces room for input is counted, in bytes.
const HELD_UNIT: usize = 1024;

/// A gateway: the programs that it offers, room for its clients, and the way to who runs them.
#[derive(Clone, Debug)]
pub struct Gate(pub(super) Arc<Parts>);

#[derive(Debug)]
pub(super) struct Parts {
    pub yard: Arc<dyn Yard>,
    pub programs: BTreeMap<String, Arc<Program>>,
    pub limits: Limits,
    /// One permit for each client that may still come.
    pub room: Arc<Semaphore>,
    /// One permit for each kibibyte of input that may still be held.
    pub held: Arc<Semaphore>,
    pub files: Files,
    pub turns: Turns,
}

/// The input of all clients together has no room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the input of those who wait has no room for more; try again later")]
pub struct HeldError;

impl Gate {
    /// A gateway to this pool.
    pub fn new(config: &Config, yard: Arc<dyn Yard>) -> Self {
        let programs = config.programs.iter();
        let programs = programs.map(|(name, program)| (name.clone(), Arc::new(program.clone())));
        let limits = config.limits.clone();
        Gate(Arc::new(Parts {
            yard,
            programs: programs.collect(),
            room: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            held: Arc::new(Semaphore::new(limits.held_bytes_max / HELD_UNIT)),
            files: Files::new(limits.restore_bytes_max),
            turns: Turns::new(config.client_tasks_max),
            limits,
        }))
    }

    /// Makes room for so much more input of a client; refused when all clients together hold too much. It is free
    /// again when what is answered is dropped.
    pub(super) fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit, HeldError> {
        let units = u32::try_from(bytes.div_ceil(HELD_UNIT)).map_err(|_| HeldError)?;
        self.0.held.clone().try_acquire_many_owned(units).map_err(|_| HeldError)
    }

    /// How many clients are connected by WebSocket.
    pub fn clients(&self) -> usize {
        CONNECTIONS_MAX - self.0.room.available_permits()
    }

    /// The names of the programs.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        self.0.programs.keys().map(String::as_str)
    }
}

//! State shared by all clients of a gateway: programs, limits, permits and caches.

use std::collections::BTreeMap;
use std::sync::Arc;

use taskyard_core::limits::CONNECTIONS_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client_limits::ClientLimits;
use super::file_cache::FileCache;
use super::handle::PoolHandle;
use crate::config::{Config, Limits, Program};

/// Granularity in which input is counted, in bytes.
const INPUT_UNIT: usize = 1024;

/// A gateway: its programs, its limits, and the pool that runs the tasks.
#[derive(Clone, Debug)]
pub struct Gateway(pub(super) Arc<GatewayState>);

#[derive(Debug)]
pub(super) struct GatewayState {
    pub pool: Arc<dyn PoolHandle>,
    pub programs: BTreeMap<String, Arc<Program>>,
    pub limits: Limits,
    /// One permit for each further client.
    pub client_permits: Arc<Semaphore>,
    /// One permit for each further kibibyte of input.
    pub input_permits: Arc<Semaphore>,
    pub file_cache: FileCache,
    pub client_limits: ClientLimits,
}

/// The input of all clients together has reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("input buffer full; try again later")]
pub struct InputBufferFull;

impl Gateway {
    /// A gateway to this pool.
    pub fn new(config: &Config, pool: Arc<dyn PoolHandle>) -> Self {
        let programs = config.programs.iter();
        let programs = programs.map(|(name, program)| (name.clone(), Arc::new(program.clone())));
        let limits = config.limits.clone();
        Gateway(Arc::new(GatewayState {
            pool,
            programs: programs.collect(),
            client_permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            input_permits: Arc::new(Semaphore::new(limits.held_bytes_max / INPUT_UNIT)),
            file_cache: FileCache::new(limits.restore_bytes_max),
            client_limits: ClientLimits::new(config.client_tasks_max),
            limits,
        }))
    }

    /// Reserves memory for more input of a client; refused when the input of all clients together exceeds its limit.
    /// Dropping the permit frees it.
    pub(super) fn reserve_input(
        &self,
        bytes: usize,
    ) -> Result<OwnedSemaphorePermit, InputBufferFull> {
        let units = u32::try_from(bytes.div_ceil(INPUT_UNIT)).map_err(|_| InputBufferFull)?;
        self.0.input_permits.clone().try_acquire_many_owned(units).map_err(|_| InputBufferFull)
    }

    /// Number of clients connected by WebSocket.
    pub fn clients(&self) -> usize {
        CONNECTIONS_MAX - self.0.client_permits.available_permits()
    }

    /// The names of the programs.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        self.0.programs.keys().map(String::as_str)
    }
}

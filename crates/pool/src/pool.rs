//! The three parts in one process.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use taskyard_core::limits::CONNECTIONS_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::backend::Backends;
use crate::config::{Config, ConfigError, Limits, Program};
use crate::gateway::{Files, Turns};
use crate::scheduler::{Scheduler, Status, Stopping};

/// In what pieces room for input is counted, in bytes.
const HELD_UNIT: usize = 1024;
/// How often a pool that stops is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long stopped programs, and clients that are told so, may take to be gone.
const END_MAX: Duration = Duration::from_secs(3);

/// A pool that runs. It ends, and everything that runs in it, when the last of its handles is dropped.
#[derive(Clone, Debug)]
pub struct Pool(pub(crate) Arc<Parts>);

#[derive(Debug)]
pub(crate) struct Parts {
    pub scheduler: Scheduler,
    pub backends: Backends,
    pub programs: BTreeMap<String, Arc<Program>>,
    pub limits: Limits,
    /// One permit for each client that may still come.
    pub room: Arc<Semaphore>,
    /// One permit for each kibibyte of input that may still be held.
    pub held: Arc<Semaphore>,
    pub files: Files,
    pub turns: Turns,
}

/// Why a pool does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The machine does not allow it.
    #[error("cannot start the backends: {0}")]
    Io(#[from] io::Error),
}

/// The input of all clients together has no room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the input of those who wait has no room for more; try again later")]
pub struct HeldError;

impl Pool {
    /// Starts all parts on the runtime this is called on.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let scheduler = Scheduler::start(&config)?;
        let backends = Backends::start(&config, scheduler.clone()).await?;
        for gap in backends.isolation().gaps() {
            tracing::warn!("{gap}");
        }
        let programs = config.programs.into_iter().map(|(name, program)| (name, Arc::new(program)));
        let (programs, limits) = (programs.collect(), config.limits);
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let held = Arc::new(Semaphore::new(limits.held_bytes_max / HELD_UNIT));
        let files = Files::new(limits.restore_bytes_max);
        let turns = Turns::new(config.client_tasks_max);
        let parts = Parts { scheduler, backends, programs, limits, room, held, files, turns };
        Ok(Pool(Arc::new(parts)))
    }

    /// Ends the pool: nothing new starts, what runs may go on for `grace`, then it is stopped and its
    /// clients are told.
    pub async fn stop(&self, grace: Duration) {
        let idle = async {
            let _ = self.0.scheduler.pause(true).await;
            while self.status().await.is_ok_and(|status| status.running > 0) {
                sleep(LOOK).await;
            }
        };
        let _ = timeout(grace, idle).await;
        self.0.scheduler.stop();
        let gone = async {
            while self.0.backends.folders() > 0 || self.clients() > 0 {
                sleep(LOOK).await;
            }
        };
        let _ = timeout(END_MAX, gone).await;
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.0.scheduler
    }

    /// The backends.
    pub fn backends(&self) -> &Backends {
        &self.0.backends
    }

    /// Makes room for so much more input of a client; refused when all clients together hold too much. It is free
    /// again when what is answered is dropped.
    pub(crate) fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit, HeldError> {
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

    /// How the pool is.
    pub async fn status(&self) -> Result<Status, Stopping> {
        self.0.scheduler.status().await
    }
}

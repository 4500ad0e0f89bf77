//! The three parts in one process.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::backend::Backends;
use crate::config::{Config, ConfigError};
use crate::gateway::Gate;
use crate::local::Local;
use crate::scheduler::{Scheduler, Status, Stopping};

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
    pub backends: Arc<Backends>,
    pub gate: Gate,
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

impl Pool {
    /// Starts all parts on the runtime this is called on.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let scheduler = Scheduler::start(&config)?;
        let backends = Arc::new(Backends::start(&config, scheduler.clone()).await?);
        for gap in backends.isolation().gaps() {
            tracing::warn!("{gap}");
        }
        let local = Local { scheduler: scheduler.clone(), backends: backends.clone() };
        let gate = Gate::new(&config, Arc::new(local));
        Ok(Pool(Arc::new(Parts { scheduler, backends, gate })))
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
        self.0.backends.close();
        let gone = async {
            while !self.0.backends.is_clear() || self.clients() > 0 {
                sleep(LOOK).await;
            }
        };
        let _ = timeout(END_MAX, gone).await;
    }

    /// The gateway.
    pub fn gate(&self) -> &Gate {
        &self.0.gate
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.0.scheduler
    }

    /// The backends.
    pub fn backends(&self) -> &Backends {
        &self.0.backends
    }

    /// How many clients are connected by WebSocket.
    pub fn clients(&self) -> usize {
        self.0.gate.clients()
    }

    /// The names of the programs.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        self.0.gate.programs()
    }

    /// How the pool is.
    pub async fn status(&self) -> Result<Status, Stopping> {
        self.0.scheduler.status().await
    }
}

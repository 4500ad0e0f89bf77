//! Assembles gateway, scheduler and backends in one process.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::backend::Backends;
use crate::config::{Config, ConfigError};
use crate::gateway::Gateway;
use crate::local_pool::LocalPool;
use crate::scheduler::{PoolStopping, Scheduler, Status};

/// How often a stopping pool checks whether it is empty.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long killed programs and connected clients may take to go away when the pool stops.
const STOP_MAX: Duration = Duration::from_secs(3);

/// A running pool. It stops, and kills every program in it, when its last handle is dropped.
#[derive(Clone, Debug)]
pub struct Pool(pub(crate) Arc<PoolParts>);

#[derive(Debug)]
pub(crate) struct PoolParts {
    pub scheduler: Scheduler,
    pub backends: Arc<Backends>,
    pub gateway: Gateway,
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
    /// Starts all parts on the current runtime.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let scheduler = Scheduler::start(&config)?;
        let backends = Arc::new(Backends::start(&config, scheduler.clone()).await?);
        for gap in backends.isolation().gaps() {
            tracing::warn!("{gap}");
        }
        tracing::info!("{}", backends.isolation().memory_accounting());
        let handle = LocalPool { scheduler: scheduler.clone(), backends: backends.clone() };
        let gateway = Gateway::new(&config, Arc::new(handle));
        Ok(Pool(Arc::new(PoolParts { scheduler, backends, gateway })))
    }

    /// Stops the pool: nothing new starts, running programs may continue for `grace`, then they are killed and their
    /// clients receive a final frame.
    pub async fn stop(&self, grace: Duration) {
        let idle = async {
            let _ = self.0.scheduler.pause(true).await;
            while self.status().await.is_ok_and(|status| status.running > 0) {
                sleep(POLL_INTERVAL).await;
            }
        };
        let _ = timeout(grace, idle).await;
        self.0.scheduler.stop();
        self.0.backends.close();
        let gone = async {
            while !self.0.backends.is_empty() || self.clients() > 0 {
                sleep(POLL_INTERVAL).await;
            }
        };
        let _ = timeout(STOP_MAX, gone).await;
    }

    /// The gateway.
    pub fn gateway(&self) -> &Gateway {
        &self.0.gateway
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.0.scheduler
    }

    /// The backends.
    pub fn backends(&self) -> &Backends {
        &self.0.backends
    }

    /// Number of clients connected by WebSocket.
    pub fn clients(&self) -> usize {
        self.0.gateway.clients()
    }

    /// The names of the programs.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        self.0.gateway.programs()
    }

    /// The current status.
    pub async fn status(&self) -> Result<Status, PoolStopping> {
        self.0.scheduler.status().await
    }
}

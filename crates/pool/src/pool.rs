//! The three parts in one process.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::backend::Backends;
use crate::config::{Config, ConfigError, Limits, Program};
use crate::scheduler::{Scheduler, Status, Stopping};

/// A pool that runs. It ends, and everything that runs in it, when the last of its handles is dropped.
#[derive(Clone, Debug)]
pub struct Pool(pub(crate) Arc<Parts>);

#[derive(Debug)]
pub(crate) struct Parts {
    pub scheduler: Scheduler,
    pub backends: Backends,
    pub programs: BTreeMap<String, Arc<Program>>,
    pub limits: Limits,
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
        let backends = Backends::start(&config, scheduler.clone()).await?;
        for gap in backends.isolation().gaps() {
            tracing::warn!("{gap}");
        }
        let programs = config.programs.into_iter().map(|(name, program)| (name, Arc::new(program)));
        let (programs, limits) = (programs.collect(), config.limits);
        Ok(Pool(Arc::new(Parts { scheduler, backends, programs, limits })))
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.0.scheduler
    }

    /// The backends.
    pub fn backends(&self) -> &Backends {
        &self.0.backends
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

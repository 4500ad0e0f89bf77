//! The pool over Redis: gateways, schedulers and backends on many machines.
//!
//! Every change of more than one key is one function inside Redis (`lua/`), so whoever dies between two calls leaves nothing
//! half done. Who runs and who waits is decided by the same [`crate::scheduler::Desk`] as in one process: the scheduler that
//! leads carries events from Redis to it and its orders back, each with the number of its lead. Messages are hints: who
//! misses one finds the same by looking.
//!
//! Start reading at `docs/pool-redis.md` (every key), then `leader` (the scheduler), `bay` (a backend) and `stay` (one task
//! as its gateway sees it).

mod bay;
mod dial;
mod door;
mod events;
mod gateway;
mod leader;
mod look;
mod orders;
mod session;
mod stay;
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use taskyard_redis::{Failure, Library, Place, Reach};

pub use bay::{Bay, BayOptions};
pub use dial::Trust;
pub use gateway::RedisGateway;
pub use leader::Leader;
pub use look::{bring, look};
pub use tls::Identity;
pub use wire::{Moment, Watch, Wire};

/// How many words are said within each lease.
const WORDS_IN_LEASE: u32 = 3;
/// How much longer than a backend may take to say a word nothing starts after Redis lost everything, so that all have
/// said what they run.
const RETURN_SPARE: Duration = Duration::from_millis(700);
/// How often everybody looks for what messages did not tell.
const LOOK: Duration = Duration::from_secs(1);
/// How long a gateway may take to come for the task that a backend has claimed.
const MEET_MAX: Duration = Duration::from_secs(5);
/// The time of a task that did not say one, in microseconds: longer than any class, and exact in Lua.
const NO_WISH: u64 = 1 << 52;

/// Why a part of the pool does not start.
#[derive(Debug, thiserror::Error)]
pub enum RedisError {
    /// The URL cannot be used.
    #[error("{0}")]
    Url(String),
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(#[from] crate::ConfigError),
    /// Redis does not do what is asked.
    #[error("Redis: {0}")]
    Redis(String),
    /// A certificate or a key cannot be used.
    #[error("{0}")]
    Tls(String),
    /// The machine does not allow it.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl From<Failure> for RedisError {
    fn from(failure: Failure) -> Self {
        RedisError::Redis(failure.text())
    }
}

/// Where a pool is: a Redis, and what its keys begin with.
#[derive(Clone)]
pub struct Site {
    reach: Arc<Reach>,
    base: String,
    watch: Option<Watch>,
}

impl Site {
    /// Reads a URL. Keys have the names of the document unless it says `prefix=`; on a cluster they have one hash tag.
    pub fn parse(url: &str, role: &str) -> Result<Self, RedisError> {
        let place = Place::parse(url).map_err(RedisError::Url)?;
        let prefix = url.contains("prefix=").then(|| place.prefix.clone());
        let base = match prefix {
            _ if place.cluster => format!("{{{}}}", prefix.as_deref().unwrap_or("pool")),
            Some(prefix) => format!("{prefix}:"),
            None => String::new(),
        };
        let files = [
            include_str!("lua/keys.lua"),
            include_str!("lua/task.lua"),
            include_str!("lua/leader.lua"),
            include_str!("lua/backend.lua"),
        ];
        let library = Library::new("taskyard_pool", &files);
        let name = format!("taskyard-pool-{role}");
        let reach = Reach::new(place, name, library).map_err(RedisError::Url)?;
        Ok(Site { reach: Arc::new(reach), base, watch: None })
    }

    /// The same place for one that is told of each call, which is then made by itself: so that a test can end a part of
    /// the pool at every step that it takes.
    pub fn watched(self, watch: Watch) -> Self {
        Site { watch: Some(watch), ..self }
    }
}

/// A word that nobody guesses.
fn secret() -> String {
    let mut bytes = [0; 16];
    // Without chance there are no secrets, and so no pool.
    getrandom::fill(&mut bytes).expect("the system has chance");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

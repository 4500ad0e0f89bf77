//! Distributes a pool over machines: gateways, schedulers and backends that share a Redis.
//!
//! Every change of more than one key is one function inside Redis (`lua/`), so a part that dies between two calls
//! leaves nothing half done. Scheduling is decided by the same [`crate::scheduler::SchedulerState`] as in one
//! process: the leading scheduler passes events from Redis to it and its actions back, each with the number of its
//! lead. Published messages are hints: a part that misses one finds the same state by polling.
//!
//! Start reading at `scheduler`, then `backend_host` (backends) and `task` (one task as its gateway sees it).
//!
//! # Path of a task
//!
//! Each step is one function inside Redis. Counts are never stored: the number of running tasks is the number of
//! entries in `queue.executing`. `docs/pool.md` lists all keys.
//!
//! | step | part | what happens |
//! |---|---|---|
//! | submitted | gateway | writes `task:ID` and its files, appends ID to `queue.incoming` |
//! | queued | scheduler | moves it to `queue`, publishes its estimate |
//! | offered | scheduler | removes it from `queue`, writes its allocation to `queue.executing`, adds it to `queue.outcoming` |
//! | claimed | a free backend | takes it from the stream, writes itself to `queue.processing` and its address with a token to `task:ID:backend`, and starts the program |
//! | running | gateway and backend | the gateway connects to the address and receives the frames. Before the client sees the first output the gateway marks the task as seen, which Redis refuses for a run that is not the task's current one |
//! | ended | backend | removes the allocation; the gateway removes the rest when the client has received the last frame |
//!
//! Messages (`PUBLISH`) are hints: `scheduler.wake`, `backend.wake`, and `gateway:NAME` for each gateway, with
//! messages for its tasks (`backend`, `queue`, `control`, `waits`, `end`). Schedulers and backends also poll once a
//! second; gateways as often as they renew their leases, and at once when their subscription was interrupted, or was
//! silent for two seconds and a test got no answer for two more.
//!
//! If a connection to Redis breaks, calls are repeated. A scheduler that cannot know whether a call was executed
//! reads the state again under a new number of its lead, so that no run has the name of an earlier one; a backend
//! whose claim was not answered creates a new token. The name of the Lua library contains a fingerprint of its text,
//! so that two versions do not replace each other's functions; it is loaded when it is missing.
//!
//! # Data loss
//!
//! Everything in Redis is also known to another part: gateways have their clients and the files, backends their runs.
//! So incomplete data is discarded and reported again:
//!
//! 1. Each incarnation of Redis has a name, `pool.life`: when it began, and the run id of the Redis process. Another name
//!    means that data was lost: Redis was emptied or restarted (also with data from disk, which may be old), or a replica
//!    took over (which may miss the latest changes). The first call in a new incarnation names it and removes queues,
//!    allocations and the lead. Numbers of tasks, backends and leads begin with the time in microseconds, so that none is
//!    issued twice.
//! 2. A part that knows another name reports all it has before it does anything else: gateways submit their tasks again
//!    under their old ids, waiting ones to the queue, running ones without; backends report their running and just ended
//!    runs. Gateways check the name each second, backends with every heartbeat.
//! 3. Nothing starts until the incarnation is settled; Redis itself refuses starts before. It is settled when it is as old
//!    as the lease of a backend: a backend that has not reported by then counts as dead as always. If no part knows an
//!    earlier incarnation it is a new pool, and settled after a third of that plus 0.7 s. The call that settles it lists
//!    all reported runs, so that the scheduler knows each of them.
//! 4. Once it is settled, backends cannot report runs any more. A late one has lost its slot: its program is stopped, and its
//!    task is requeued if its client has seen no output, otherwise the client receives an error. So allocations never
//!    exceed a limit.
//! 5. Output is held back while its backend may still have to report; a run that ended meanwhile is reported too, so that
//!    its client receives the end and it does not run twice. A task whose backend did not report is requeued if its
//!    client has seen no output, otherwise the client receives an error.
//!
//! How often a task was requeued is not restored.

mod action_calls;
mod backend_connection;
mod backend_host;
mod client;
mod events;
mod gateway;
mod scheduler;
mod session;
mod status;
mod task;
mod tls;
mod token_listener;

use std::sync::Arc;
use std::time::Duration;

use taskyard_redis::{Connector, Failure, Library, RedisDialer, RedisUrl};

pub use backend_connection::{BackendDialer, BackendStream, BackendTrust};
pub use backend_host::{BackendHost, BackendHostOptions};
pub use client::{CallObserver, CallStage, RedisClient};
pub use gateway::RedisGateway;
pub use scheduler::RedisScheduler;
pub use status::{enqueue_unattended, read_status};
pub use tls::Identity;

/// How often a lease is renewed within its duration.
const REFRESHES_PER_LEASE: u32 = 3;
/// How much longer than the heartbeat interval of backends no task starts after a data loss of Redis, so that all
/// have reported what they run.
const REPORT_SPARE: Duration = Duration::from_millis(700);
/// Interval at which every part polls for state that messages did not announce.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a gateway may take to connect for a task that a backend has claimed.
const GATEWAY_CONNECT_MAX: Duration = Duration::from_secs(5);
/// The duration of a task that did not ask for one, in microseconds: longer than any class, and exact in Lua.
const NO_DURATION: u64 = 1 << 52;

/// Why a part of the pool does not start.
#[derive(Debug, thiserror::Error)]
pub enum RedisError {
    /// The URL cannot be used.
    #[error("{0}")]
    Url(String),
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(#[from] crate::ConfigError),
    /// Redis failed or refused a call.
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

/// The address of a pool: a Redis and the prefix of its keys.
#[derive(Clone)]
pub struct PoolAddress {
    reach: Arc<Connector>,
    base: String,
    observer: Option<CallObserver>,
}

impl PoolAddress {
    /// Parses a URL. Keys have no prefix unless it has `prefix=`; on a cluster they have one hash tag.
    pub fn parse(url: &str, role: &str) -> Result<Self, RedisError> {
        let (reach, base) = Self::connector(url, role)?;
        Ok(PoolAddress { reach: Arc::new(reach), base, observer: None })
    }

    /// The same for a Redis that is reached by this dialer instead of TCP.
    pub fn with_dialer(
        url: &str,
        role: &str,
        dialer: Arc<dyn RedisDialer>,
    ) -> Result<Self, RedisError> {
        let (reach, base) = Self::connector(url, role)?;
        Ok(PoolAddress { reach: Arc::new(reach.with_dialer(dialer)), base, observer: None })
    }

    fn connector(url: &str, role: &str) -> Result<(Connector, String), RedisError> {
        let place = RedisUrl::parse(url).map_err(RedisError::Url)?;
        let prefix = url.contains("prefix=").then(|| place.prefix.clone());
        let base = match prefix {
            _ if place.cluster => format!("{{{}}}", prefix.as_deref().unwrap_or("pool")),
            Some(prefix) => format!("{prefix}:"),
            None => String::new(),
        };
        let files = [
            include_str!("lua/keys.lua"),
            include_str!("lua/task.lua"),
            include_str!("lua/scheduler.lua"),
            include_str!("lua/backend.lua"),
        ];
        let library = Library::new("taskyard_pool", &files);
        let name = format!("taskyard-pool-{role}");
        let reach = Connector::new(place, name, library).map_err(RedisError::Url)?;
        Ok((reach, base))
    }

    /// Calls `observer` for each call, which is then made separately: so that a test can end a part of the pool at
    /// every step it takes.
    pub fn observed(self, observer: CallObserver) -> Self {
        PoolAddress { observer: Some(observer), ..self }
    }
}

/// A random token of 128 bits.
fn random_token() -> String {
    let mut bytes = [0; 16];
    // Without randomness there are no secrets, and so no pool.
    getrandom::fill(&mut bytes).expect("the system provides randomness");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

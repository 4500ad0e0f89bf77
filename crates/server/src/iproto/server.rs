//! The state that all iproto connections share.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use taskyard_core::limits::PENDING_BYTES_MAX;
use taskyard_core::{Command, Error, Execute, Reply, Result as CoreResult, TubeName};
use taskyard_engine::Engine;
use tokio::sync::Semaphore;

use super::config::{IprotoConfig, RandomSource};
use super::counters::Counters;
use super::goodbye::goodbye_frame;
use super::leave_retries::LeaveRetries;
use crate::audit::Audit;
use crate::auth_throttle::AuthThrottle;
use crate::tls_listener::TlsListener;
use crate::tube_quota::{OwnerRecords, TubeQuota};
use crate::users::UsersHandle;
use crate::worker_origins::WorkerOrigins;

/// Most variables that expressions of a user may set.
const VARIABLES_MAX: usize = 1_000;
/// Most variables of all users.
const VARIABLES_TOTAL_MAX: usize = 100 * VARIABLES_MAX;
/// Most connections at once that get a goodbye frame because of the limit.
const GOODBYES_MAX: usize = 64;

/// The answer to a client that does not encrypt its connection.
const PLAIN_REFUSAL: &str = "this address speaks TLS only; use iprotos:// in the URL, or a client \
                             that can encrypt connections";

/// The state that all iproto connections share.
pub(crate) struct IprotoServer {
    /// Runs the commands.
    pub engine: Engine,
    /// The name with which all functions begin.
    pub prefix: String,
    /// The users and their rights.
    pub users: UsersHandle,
    /// Largest frame, in bytes.
    pub frame_bytes_max: usize,
    /// Most unanswered requests of one connection.
    pub in_flight_max: usize,
    /// Counts requests and connections.
    pub counters: Counters,
    /// The identity of this server in greetings.
    pub instance: [u8; 16],
    /// Encrypts connections, if they must be.
    pub tls: Option<Arc<TlsListener>>,
    /// How long a large frame may make no progress.
    pub stall_max: Duration,
    /// Most connections.
    pub connections_max: usize,
    /// One permit for each connection that may get a goodbye frame now.
    pub goodbyes: Semaphore,
    /// How many tubes each user created.
    pub tubes: Arc<TubeQuota>,
    /// Sessions that could not be left yet.
    pub leave_retries: LeaveRetries,
    /// Addresses with too many failed logins.
    pub throttle: Arc<AuthThrottle>,
    /// What operators and administrators did.
    pub audit: Arc<Audit>,
    /// Where named workers connect from.
    pub worker_origins: Arc<WorkerOrigins>,
    /// Draws salts and identities of sessions.
    pub random: Arc<dyn RandomSource>,
    /// When the server was started.
    pub started: Instant,
    connections: Quota,
    in_flight: Quota,
    arriving: Quota,
    unsent: Quota,
    /// The tubes that expressions of each user stored in variables.
    variables: Mutex<HashMap<String, HashMap<String, TubeName>>>,
}

/// A counter with a limit.
struct Quota {
    used: AtomicUsize,
    most: usize,
}

/// The part of a shared limit that one connection uses. It is given back on drop.
pub(crate) struct LimitShare {
    server: Arc<IprotoServer>,
    of: SharedLimit,
    amount: usize,
}

/// A limit that all connections share.
#[derive(Clone, Copy)]
pub(crate) enum SharedLimit {
    /// Connections.
    Connections,
    /// Unanswered requests.
    InFlight,
    /// Bytes of incomplete frames.
    Arriving,
    /// Bytes of unsent answers.
    Unsent,
}

impl IprotoServer {
    /// Creates the state from the configuration.
    pub fn new(
        config: IprotoConfig,
        engine: Engine,
        instance: [u8; 16],
        throttle: Arc<AuthThrottle>,
    ) -> Self {
        let quota = |most| Quota { used: AtomicUsize::new(0), most };
        let tls = config.tls.map(|tls| {
            let answer = goodbye_frame(instance, PLAIN_REFUSAL.into());
            Arc::new(TlsListener::new(tls, config.handshake_limits, answer))
        });
        let records = OwnerRecords::in_store(engine.capabilities());
        IprotoServer {
            engine,
            prefix: config.prefix,
            users: UsersHandle::new(config.users, None),
            frame_bytes_max: config.frame_bytes_max,
            in_flight_max: config.in_flight_max,
            counters: Counters::default(),
            instance,
            tls,
            stall_max: config.stall_max.max(Duration::from_millis(1)),
            connections_max: config.connections_max,
            goodbyes: Semaphore::new(GOODBYES_MAX),
            tubes: Arc::new(TubeQuota::new(config.tubes_per_user_max, records)),
            leave_retries: LeaveRetries::default(),
            throttle,
            audit: Arc::default(),
            worker_origins: Arc::default(),
            random: config.random,
            started: Instant::now(),
            connections: quota(config.connections_max),
            in_flight: quota(config.in_flight_total_max),
            arriving: quota(config.arriving_bytes_max.max(config.frame_bytes_max)),
            unsent: quota(PENDING_BYTES_MAX),
            variables: Mutex::default(),
        }
    }

    /// Runs one command, whose rights were checked.
    pub async fn execute_one(&self, command: Command) -> CoreResult<Reply> {
        let reply = self.engine.execute(vec![command]).await.pop();
        reply.unwrap_or_else(|| Err(Error::Store("the engine returned no reply".into())))
    }

    /// The tube that an expression of this user, on any connection, stored in this variable.
    pub fn variable(&self, user: &str, variable: &str) -> Option<TubeName> {
        let variables = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        variables.get(user)?.get(variable).cloned()
    }

    /// Stores a tube in a variable of this user. Other users have their own, so that none can change where the tasks of another
    /// go.
    pub fn set_variable(&self, user: &str, variable: String, tube: TubeName) {
        let mut variables = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = variables.values().map(HashMap::len).sum();
        let own = variables.entry(user.to_owned()).or_default();
        let has_room = own.len() < VARIABLES_MAX && total < VARIABLES_TOTAL_MAX;
        if has_room || own.contains_key(&variable) {
            own.insert(variable, tube);
        }
    }

    fn quota(&self, of: SharedLimit) -> &Quota {
        match of {
            SharedLimit::Connections => &self.connections,
            SharedLimit::InFlight => &self.in_flight,
            SharedLimit::Arriving => &self.arriving,
            SharedLimit::Unsent => &self.unsent,
        }
    }
}

impl LimitShare {
    /// A share of nothing.
    pub fn new(server: Arc<IprotoServer>, of: SharedLimit) -> Self {
        LimitShare { server, of, amount: 0 }
    }

    /// Its size.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Adds this much, if all connections together stay within the limit.
    pub fn grow(&mut self, by: usize) -> bool {
        let quota = self.server.quota(self.of);
        let before = quota.used.fetch_add(by, Ordering::Relaxed);
        if before.saturating_add(by) > quota.most {
            quota.used.fetch_sub(by, Ordering::Relaxed);
            return false;
        }
        self.amount += by;
        true
    }

    /// Sets the size, if all connections together stay within the limit.
    pub fn resize(&mut self, to: usize) -> bool {
        if to > self.amount {
            return self.grow(to - self.amount);
        }
        self.shrink(self.amount - to);
        true
    }

    /// Gives everything back.
    pub fn clear(&mut self) {
        self.shrink(self.amount);
    }

    fn shrink(&mut self, by: usize) {
        if by > 0 {
            self.server.quota(self.of).used.fetch_sub(by, Ordering::Relaxed);
            self.amount -= by;
        }
    }

    /// Moves all of it into another share.
    pub fn split(&mut self) -> LimitShare {
        let amount = std::mem::take(&mut self.amount);
        LimitShare { server: self.server.clone(), of: self.of, amount }
    }
}

impl fmt::Debug for LimitShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").field("amount", &self.amount).finish_non_exhaustive()
    }
}

impl Drop for LimitShare {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use taskyard_engine::{Settings, SystemClock};
    use taskyard_store::MemoryStore;

    use super::*;

    fn server() -> Arc<IprotoServer> {
        let clock = Arc::new(SystemClock::new());
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, clock, Settings::default());
        let mut config = IprotoConfig::new(([127, 0, 0, 1], 0).into());
        config.in_flight_total_max = 3;
        Arc::new(IprotoServer::new(config, engine, [0; 16], Arc::new(AuthThrottle::new())))
    }

    /// Whether this much is free.
    fn one_of(server: &Arc<IprotoServer>, amount: usize) -> bool {
        LimitShare::new(server.clone(), SharedLimit::InFlight).grow(amount)
    }

    #[test]
    fn shares_stay_within_the_limit_and_are_given_back() {
        let server = server();
        let mut one = LimitShare::new(server.clone(), SharedLimit::InFlight);
        let mut two = LimitShare::new(server.clone(), SharedLimit::InFlight);
        assert!(one.grow(2) && !two.grow(2) && two.grow(1));
        let handed_over = one.split();
        assert_eq!((one.amount(), handed_over.amount()), (0, 2));
        drop(one);
        assert!(!two.grow(1));
        drop(handed_over);
        assert!(two.grow(2) && !two.grow(1));
        two.clear();
        assert!(two.grow(3));
        assert!(two.resize(1) && one_of(&server, 2) && two.resize(3) && !two.resize(4));
        assert!(
            LimitShare::new(server, SharedLimit::Arriving).grow(1_000),
            "the other limit is another one"
        );
    }

    #[test]
    fn variables_are_limited() {
        let server = server();
        let tube = |name| TubeName::new(name).unwrap();
        for number in 0..VARIABLES_MAX {
            server.set_variable("ann", number.to_string(), tube("a"));
        }
        server.set_variable("ann", "one more".into(), tube("a"));
        server.set_variable("ann", "7".into(), tube("b"));
        assert_eq!(server.variable("ann", "one more"), None);
        assert_eq!(server.variable("ann", "7"), Some(tube("b")));
        // A user could redirect the tasks of all others by setting their variables.
        server.set_variable("bob", "7".into(), tube("c"));
        assert_eq!(server.variable("ann", "7"), Some(tube("b")));
        assert_eq!(server.variable("bob", "8"), None);
    }
}

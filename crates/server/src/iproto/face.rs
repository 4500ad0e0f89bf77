//! What all iproto connections share.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use taskyard_core::TubeName;
use taskyard_core::limits::PENDING_BYTES_MAX;
use taskyard_engine::Engine;
use tokio::sync::Semaphore;

use super::config::IprotoConfig;
use super::counters::Counters;
use super::leaving::Leaving;
use super::tls::Tls;
use super::users::Users;
use crate::auth_throttle::AuthThrottle;
use crate::tube_quota::TubeQuota;

/// Most tubes that expressions may remember by name.
const REMEMBERED_MAX: usize = 1_000;
/// Most connections at once that are told that there is no room for them.
const FAREWELLS_MAX: usize = 64;

/// What all iproto connections share.
pub(crate) struct Face {
    /// Who runs the commands.
    pub engine: Engine,
    /// What the names of all functions begin with.
    pub prefix: String,
    /// Who may do what.
    pub users: Users,
    /// Largest frame, in bytes.
    pub frame_bytes_max: usize,
    /// Most requests of one connection that are not answered yet.
    pub in_flight_max: usize,
    /// What was asked so far.
    pub counters: Counters,
    /// The identity of this server in greetings.
    pub instance: [u8; 16],
    /// How connections are encrypted, if they are.
    pub tls: Option<Tls>,
    /// How long a large frame may make no progress.
    pub stall_max: Duration,
    /// Most connections.
    pub connections_max: usize,
    /// One permit for each that may still be told that there is no room.
    pub farewells: Semaphore,
    /// Which users created how many tubes.
    pub tubes: Arc<TubeQuota>,
    /// Sessions that could not be left yet.
    pub leaving: Leaving,
    /// Whose logins failed too often.
    pub throttle: Arc<AuthThrottle>,
    /// When it began to serve.
    pub started: Instant,
    connections: Quota,
    in_flight: Quota,
    arriving: Quota,
    unsent: Quota,
    remembered: Mutex<HashMap<String, TubeName>>,
}

/// A number that may not pass its limit.
struct Quota {
    used: AtomicUsize,
    most: usize,
}

/// A share of what all connections may have together. It is free again when this is dropped.
pub(crate) struct Share {
    face: Arc<Face>,
    of: Of,
    amount: usize,
}

/// What is shared.
#[derive(Clone, Copy)]
pub(crate) enum Of {
    /// Connections.
    Connections,
    /// Requests that are not answered yet.
    InFlight,
    /// Bytes of frames that are not complete yet.
    Arriving,
    /// Bytes of answers that are not sent yet.
    Unsent,
}

impl Face {
    /// What the configuration says.
    pub fn new(
        config: IprotoConfig,
        engine: Engine,
        instance: [u8; 16],
        throttle: Arc<AuthThrottle>,
    ) -> Self {
        let quota = |most| Quota { used: AtomicUsize::new(0), most };
        Face {
            engine,
            prefix: config.prefix,
            users: config.users,
            frame_bytes_max: config.frame_bytes_max,
            in_flight_max: config.in_flight_max,
            counters: Counters::default(),
            instance,
            tls: config.tls,
            stall_max: config.stall_max.max(Duration::from_millis(1)),
            connections_max: config.connections_max,
            farewells: Semaphore::new(FAREWELLS_MAX),
            tubes: Arc::new(TubeQuota::new(config.tubes_per_user_max)),
            leaving: Leaving::default(),
            throttle,
            started: Instant::now(),
            connections: quota(config.connections_max),
            in_flight: quota(config.in_flight_total_max),
            arriving: quota(config.arriving_bytes_max.max(config.frame_bytes_max)),
            unsent: quota(PENDING_BYTES_MAX),
            remembered: Mutex::default(),
        }
    }

    /// The tube that an expression of any connection has put into this variable.
    pub fn remembered(&self, variable: &str) -> Option<TubeName> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.get(variable).cloned()
    }

    /// Puts a tube into a variable.
    pub fn remember(&self, variable: String, tube: TubeName) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() < REMEMBERED_MAX || remembered.contains_key(&variable) {
            remembered.insert(variable, tube);
        }
    }

    fn quota(&self, of: Of) -> &Quota {
        match of {
            Of::Connections => &self.connections,
            Of::InFlight => &self.in_flight,
            Of::Arriving => &self.arriving,
            Of::Unsent => &self.unsent,
        }
    }
}

impl Share {
    /// Nothing yet.
    pub fn new(face: Arc<Face>, of: Of) -> Self {
        Share { face, of, amount: 0 }
    }

    /// How much it is.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Takes this much more, if all connections together stay within the limit.
    pub fn grow(&mut self, by: usize) -> bool {
        let quota = self.face.quota(self.of);
        let before = quota.used.fetch_add(by, Ordering::Relaxed);
        if before.saturating_add(by) > quota.most {
            quota.used.fetch_sub(by, Ordering::Relaxed);
            return false;
        }
        self.amount += by;
        true
    }

    /// Makes it this much, if all connections together stay within the limit.
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
            self.face.quota(self.of).used.fetch_sub(by, Ordering::Relaxed);
            self.amount -= by;
        }
    }

    /// Hands all of it over to another holder.
    pub fn split(&mut self) -> Share {
        let amount = std::mem::take(&mut self.amount);
        Share { face: self.face.clone(), of: self.of, amount }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").field("amount", &self.amount).finish_non_exhaustive()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use taskyard_engine::{Settings, SystemClock};
    use taskyard_store::MemoryStore;

    use super::*;

    fn face() -> Arc<Face> {
        let clock = Arc::new(SystemClock::new());
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, clock, Settings::default());
        let mut config = IprotoConfig::new(([127, 0, 0, 1], 0).into());
        config.in_flight_total_max = 3;
        Arc::new(Face::new(config, engine, [0; 16], Arc::new(AuthThrottle::new())))
    }

    /// Whether there is room for this much.
    fn one_of(face: &Arc<Face>, amount: usize) -> bool {
        Share::new(face.clone(), Of::InFlight).grow(amount)
    }

    #[test]
    fn shares_stay_within_the_limit_and_come_back() {
        let face = face();
        let mut one = Share::new(face.clone(), Of::InFlight);
        let mut two = Share::new(face.clone(), Of::InFlight);
        assert!(one.grow(2) && !two.grow(2) && two.grow(1));
        let handed_over = one.split();
        assert_eq!((one.amount(), handed_over.amount()), (0, 2));
        drop(one);
        assert!(!two.grow(1));
        drop(handed_over);
        assert!(two.grow(2) && !two.grow(1));
        two.clear();
        assert!(two.grow(3));
        assert!(two.resize(1) && one_of(&face, 2) && two.resize(3) && !two.resize(4));
        assert!(Share::new(face, Of::Arriving).grow(1_000), "the other limit is another one");
    }

    #[test]
    fn variables_are_limited() {
        let face = face();
        let tube = |name| TubeName::new(name).unwrap();
        for number in 0..REMEMBERED_MAX {
            face.remember(number.to_string(), tube("a"));
        }
        face.remember("one more".into(), tube("a"));
        face.remember("7".into(), tube("b"));
        assert_eq!(face.remembered("one more"), None);
        assert_eq!(face.remembered("7"), Some(tube("b")));
    }
}

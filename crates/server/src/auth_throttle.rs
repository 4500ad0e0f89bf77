//! Slows down failed logins by client address.
//!
//! Every address has a bucket of attempts that refills with time. An address without attempts left
//! is refused before its credentials are checked, unless a client there has logged in within the
//! last minutes: several clients may share an address, and one that guesses must not lock out the
//! others.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use taskyard_core::limits::LOGIN_PEERS_MAX;

/// How many logins may fail at once, and how long it takes until one more may.
const FAILURES_MAX: u32 = 20;
const REFILL_EVERY: Duration = Duration::from_secs(1);
/// How long a successful login protects its address from being refused.
const PROVEN_FOR: Duration = Duration::from_secs(600);
/// The failures of one address are logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The failed logins of all addresses. Every method gets the time as an argument.
#[derive(Debug)]
pub(crate) struct AuthThrottle {
    peers: Mutex<HashMap<IpAddr, Peer>>,
    /// The number of known addresses; nothing is locked while it is 0.
    known: AtomicUsize,
    failures: AtomicU64,
    peers_max: usize,
}

/// The state of one address.
#[derive(Debug)]
struct Peer {
    /// The end of the used part of the bucket: each failure moves it by the time one attempt takes
    /// to refill.
    used_until: Instant,
    proven_until: Option<Instant>,
    failures: u64,
    logged: Option<Instant>,
    seen: Instant,
}

impl AuthThrottle {
    /// A throttle without any addresses.
    pub fn new() -> Self {
        AuthThrottle::of(LOGIN_PEERS_MAX)
    }

    fn of(peers_max: usize) -> Self {
        let peers = Mutex::default();
        AuthThrottle { peers, known: AtomicUsize::new(0), failures: AtomicU64::new(0), peers_max }
    }

    /// Whether an attempt from this address may be checked; otherwise how long to wait.
    pub fn admit(&self, peer: IpAddr, now: Instant) -> Result<(), Duration> {
        if self.known.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        match self.peers().get(&network(peer)) {
            Some(peer) => peer.admit(now),
            None => Ok(()),
        }
    }

    /// Records a failed login. The first one of an address is logged, then one from time to time.
    pub fn failed(&self, peer: IpAddr, now: Instant) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let failures = self.update(peer, now, |known| {
            let used_until = known.used_until.max(now) + REFILL_EVERY;
            known.used_until = used_until.min(now + REFILL_EVERY * FAILURES_MAX);
            known.failures += 1;
            let due = known.logged.is_none_or(|logged| logged + LOG_EVERY <= now);
            if due {
                known.logged = Some(now);
            }
            due.then_some(known.failures)
        });
        if let Some(failures) = failures {
            tracing::warn!(%peer, failures, "login failed: wrong credentials");
        }
    }

    /// Records a successful login; once for each connection is enough.
    pub fn succeeded(&self, peer: IpAddr, now: Instant) {
        self.update(peer, now, |known| known.proven_until = Some(now + PROVEN_FOR));
    }

    /// The number of failed logins so far.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<IpAddr, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update<T>(&self, peer: IpAddr, now: Instant, change: impl FnOnce(&mut Peer) -> T) -> T {
        let mut peers = self.peers();
        let key = network(peer);
        if peers.len() >= self.peers_max && !peers.contains_key(&key) {
            forget_some(&mut peers, now);
        }
        let known = peers.entry(key).or_insert_with(|| Peer::new(now));
        known.seen = now;
        let answer = change(known);
        self.known.store(peers.len(), Ordering::Relaxed);
        answer
    }
}

impl Peer {
    fn new(now: Instant) -> Self {
        Peer { used_until: now, proven_until: None, failures: 0, logged: None, seen: now }
    }

    fn admit(&self, now: Instant) -> Result<(), Duration> {
        let used = self.used_until.saturating_duration_since(now);
        let most = REFILL_EVERY * (FAILURES_MAX - 1);
        if used <= most || self.is_proven(now) { Ok(()) } else { Err(used - most) }
    }

    fn is_proven(&self, now: Instant) -> bool {
        self.proven_until.is_some_and(|until| now < until)
    }

    /// Whether forgetting it would change nothing.
    fn is_idle(&self, now: Instant) -> bool {
        self.used_until <= now && !self.is_proven(now)
    }
}

/// Removes idle addresses, or else the one not seen for longest.
fn forget_some(peers: &mut HashMap<IpAddr, Peer>, now: Instant) {
    let before = peers.len();
    peers.retain(|_, peer| !peer.is_idle(now));
    if peers.len() == before {
        let oldest = peers.iter().min_by_key(|(_, peer)| peer.seen).map(|(key, _)| *key);
        oldest.map(|key| peers.remove(&key));
    }
}

/// The address; for IPv6 the /64 network, which usually belongs to one customer.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    // A token could be guessed as fast as the network allowed, and nothing was logged.
    #[test]
    fn an_address_that_fails_too_often_has_to_wait() {
        let (throttle, start) = (AuthThrottle::new(), Instant::now());
        let (guesser, other) = (ip("10.0.0.1"), ip("10.0.0.2"));
        for _ in 0..FAILURES_MAX {
            assert_eq!(throttle.admit(guesser, start), Ok(()));
            throttle.failed(guesser, start);
        }
        assert_eq!(throttle.admit(guesser, start), Err(REFILL_EVERY));
        assert_eq!(throttle.admit(other, start), Ok(()), "others are not locked out");
        assert_eq!(throttle.admit(guesser, start + REFILL_EVERY), Ok(()), "one more is due");
        throttle.failed(guesser, start + REFILL_EVERY);
        assert_eq!(throttle.admit(guesser, start + REFILL_EVERY), Err(REFILL_EVERY));
        let later = start + REFILL_EVERY * (FAILURES_MAX + 1);
        assert_eq!(throttle.admit(guesser, later), Ok(()));
        assert_eq!(throttle.failures(), u64::from(FAILURES_MAX) + 1);
    }

    #[test]
    fn clients_that_share_an_address_with_a_guesser_go_on() {
        let (throttle, start) = (AuthThrottle::new(), Instant::now());
        let shared = ip("10.0.0.1");
        throttle.succeeded(shared, start);
        for now in [start, start + PROVEN_FOR] {
            for _ in 0..1_000 {
                throttle.failed(shared, now);
            }
            assert_eq!(throttle.admit(shared, now).is_ok(), now == start);
        }
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        assert_eq!(network(ip("2001:db8::1")), network(ip("2001:db8::ffff:1:2")));
        assert_ne!(network(ip("2001:db8::1")), network(ip("2001:db8:0:1::1")));
        assert_eq!(network(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
    }

    #[test]
    fn the_table_is_bounded_and_keeps_what_matters() {
        let (throttle, start) = (AuthThrottle::of(3), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        throttle.failed(ip("10.0.0.3"), at(0));
        for _ in 0..FAILURES_MAX {
            throttle.failed(ip("10.0.0.1"), at(2_000));
        }
        throttle.succeeded(ip("10.0.0.2"), at(2_100));
        // The bucket of the third is full again, so it is removed first.
        throttle.failed(ip("10.0.0.4"), at(2_500));
        assert_eq!(throttle.peers().len(), 3);
        assert!(throttle.admit(ip("10.0.0.1"), at(2_500)).is_err());
        throttle.failed(ip("10.0.0.5"), at(2_500));
        assert_eq!(throttle.peers().len(), 3);
        assert_eq!(throttle.admit(ip("10.0.0.1"), at(2_500)), Ok(()), "then the oldest");
    }
}

//! Slows down failed logins by client address and user name.
//!
//! Every address, and every user name tried from it, has a bucket of attempts that refills with
//! time. An address without attempts left is refused before its credentials are checked. Several
//! clients may share an address, and one that guesses must not lock out the others: a user that has
//! logged in from there within the last minutes is never refused, and meanwhile the attempts of
//! another user name are limited by the bucket of that name alone. A successful login of one user
//! therefore does not allow guessing the password of another.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use taskyard_core::limits::{LOGIN_PEERS_MAX, LOGIN_USERS_PER_PEER_MAX};

/// How many logins may fail at once, and how long it takes until one more may.
const FAILURES_MAX: u32 = 20;
const REFILL_EVERY: Duration = Duration::from_secs(1);
/// How long a successful login protects its user name at its address from being refused.
const PROVEN_FOR: Duration = Duration::from_secs(600);
/// The failures of one address are logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The failed logins of all addresses. Every method gets the time as an argument; the user is
/// `None` for the token.
#[derive(Debug)]
pub(crate) struct AuthThrottle {
    table: Mutex<Table>,
    /// The number of known users at all addresses; nothing is locked while it is 0.
    known: AtomicUsize,
    failures: AtomicU64,
    users_max: usize,
    hasher: RandomState,
}

/// The known addresses.
#[derive(Debug, Default)]
struct Table {
    peers: HashMap<IpAddr, Peer>,
    /// The number of users at all addresses; each address has at least one.
    users: usize,
}

/// The state of one address.
#[derive(Debug)]
struct Peer {
    bucket: Bucket,
    users: Vec<PeerUser>,
    /// The failures of user names for which `users` has no room.
    others: Bucket,
    failures: u64,
    logged: Option<Instant>,
    seen: Instant,
}

/// The state of one user name, or of the token, at one address.
#[derive(Debug)]
struct PeerUser {
    /// A hash with a secret key, because the name may be long and is chosen by the client.
    hash: u64,
    bucket: Bucket,
    proven_until: Option<Instant>,
}

/// Attempts that refill with time: each failure moves the end of the used part by the time that one
/// attempt takes to refill.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    used_until: Instant,
}

impl AuthThrottle {
    /// A throttle without any addresses.
    pub fn new() -> Self {
        AuthThrottle::of(LOGIN_PEERS_MAX)
    }

    fn of(users_max: usize) -> Self {
        AuthThrottle {
            table: Mutex::default(),
            known: AtomicUsize::new(0),
            failures: AtomicU64::new(0),
            users_max,
            hasher: RandomState::new(),
        }
    }

    /// Whether an attempt from this address may be checked; otherwise how long to wait.
    pub fn admit(&self, peer: IpAddr, user: Option<&str>, now: Instant) -> Result<(), Duration> {
        if self.known.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        match self.table().peers.get(&network(peer)) {
            Some(peer) => peer.admit(self.hasher.hash_one(user), now),
            None => Ok(()),
        }
    }

    /// Records a failed login. The first one of an address is logged, then one from time to time.
    pub fn failed(&self, peer: IpAddr, user: Option<&str>, now: Instant) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let failures = self.update(peer, user, now, |known, hash| {
            known.bucket.fail(now);
            known.bucket_of(hash, now).fail(now);
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
    pub fn succeeded(&self, peer: IpAddr, user: Option<&str>, now: Instant) {
        self.update(peer, user, now, |known, hash| known.prove(hash, now));
    }

    /// The number of failed logins so far.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update<T>(
        &self,
        peer: IpAddr,
        user: Option<&str>,
        now: Instant,
        change: impl FnOnce(&mut Peer, u64) -> T,
    ) -> T {
        let mut table = self.table();
        let (key, hash) = (network(peer), self.hasher.hash_one(user));
        let is_known = table.peers.get(&key).is_some_and(|peer| peer.user(hash).is_some());
        if table.users >= self.users_max && !is_known {
            table.forget_some(key, now);
        }
        let known = table.peers.entry(key).or_insert_with(|| Peer::new(now));
        known.seen = now;
        let before = known.users.len();
        let answer = change(known, hash);
        let after = known.users.len();
        table.users = table.users + after - before;
        self.known.store(table.users, Ordering::Relaxed);
        answer
    }
}

impl Table {
    /// Removes idle addresses, or else the one not seen for longest, but never `kept`.
    fn forget_some(&mut self, kept: IpAddr, now: Instant) {
        let before = self.peers.len();
        self.peers.retain(|key, peer| *key == kept || !peer.is_idle(now));
        if self.peers.len() == before {
            let others = self.peers.iter().filter(|(key, _)| **key != kept);
            let oldest = others.min_by_key(|(_, peer)| peer.seen).map(|(key, _)| *key);
            oldest.map(|key| self.peers.remove(&key));
        }
        self.users = self.peers.values().map(|peer| peer.users.len()).sum();
    }
}

impl Peer {
    fn new(now: Instant) -> Self {
        let empty = Bucket { used_until: now };
        let (users, others) = (Vec::new(), empty);
        Peer { bucket: empty, users, others, failures: 0, logged: None, seen: now }
    }

    fn admit(&self, hash: u64, now: Instant) -> Result<(), Duration> {
        match self.user(hash) {
            Some(user) if user.is_proven(now) => Ok(()),
            _ if !self.is_proven(now) => self.bucket.admit(now),
            Some(user) => user.bucket.admit(now),
            None => self.others.admit(now),
        }
    }

    fn user(&self, hash: u64) -> Option<&PeerUser> {
        self.users.iter().find(|user| user.hash == hash)
    }

    /// The place of a user, which is added if there is room for it.
    fn place_of(&mut self, hash: u64, now: Instant) -> Option<usize> {
        if let Some(place) = self.users.iter().position(|user| user.hash == hash) {
            return Some(place);
        }
        if self.users.len() >= LOGIN_USERS_PER_PEER_MAX {
            self.users.retain(|user| !user.is_idle(now));
        }
        (self.users.len() < LOGIN_USERS_PER_PEER_MAX).then(|| {
            let bucket = Bucket { used_until: now };
            self.users.push(PeerUser { hash, bucket, proven_until: None });
            self.users.len() - 1
        })
    }

    fn bucket_of(&mut self, hash: u64, now: Instant) -> &mut Bucket {
        match self.place_of(hash, now) {
            Some(place) => &mut self.users[place].bucket,
            None => &mut self.others,
        }
    }

    /// Records that the user logged in. Without room it replaces a user that has not logged in, or
    /// else the one whose proof ends first; the failures of that one go on to count for the others.
    fn prove(&mut self, hash: u64, now: Instant) {
        let proven_until = Some(now + PROVEN_FOR);
        if let Some(place) = self.place_of(hash, now) {
            self.users[place].proven_until = proven_until;
        } else if let Some(replaced) =
            self.users.iter_mut().min_by_key(|user| (user.proven_until, user.bucket.used_until))
        {
            let used_until = self.others.used_until.max(replaced.bucket.used_until);
            self.others = Bucket { used_until };
            *replaced = PeerUser { hash, bucket: Bucket { used_until: now }, proven_until };
        }
    }

    /// Whether any user has logged in from there.
    fn is_proven(&self, now: Instant) -> bool {
        self.users.iter().any(|user| user.is_proven(now))
    }

    /// Whether forgetting it would change nothing. The bucket of the address counts the failures of
    /// all users.
    fn is_idle(&self, now: Instant) -> bool {
        self.bucket.is_full(now) && !self.is_proven(now)
    }
}

impl PeerUser {
    fn is_proven(&self, now: Instant) -> bool {
        self.proven_until.is_some_and(|until| now < until)
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.bucket.is_full(now) && !self.is_proven(now)
    }
}

impl Bucket {
    fn admit(self, now: Instant) -> Result<(), Duration> {
        let used = self.used_until.saturating_duration_since(now);
        let most = REFILL_EVERY * (FAILURES_MAX - 1);
        if used <= most { Ok(()) } else { Err(used - most) }
    }

    fn fail(&mut self, now: Instant) {
        let used_until = self.used_until.max(now) + REFILL_EVERY;
        self.used_until = used_until.min(now + REFILL_EVERY * FAILURES_MAX);
    }

    fn is_full(self, now: Instant) -> bool {
        self.used_until <= now
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
            assert_eq!(throttle.admit(guesser, None, start), Ok(()));
            throttle.failed(guesser, None, start);
        }
        assert_eq!(throttle.admit(guesser, None, start), Err(REFILL_EVERY));
        assert_eq!(throttle.admit(other, None, start), Ok(()), "others are not locked out");
        assert_eq!(throttle.admit(guesser, None, start + REFILL_EVERY), Ok(()), "one more is due");
        throttle.failed(guesser, None, start + REFILL_EVERY);
        assert_eq!(throttle.admit(guesser, None, start + REFILL_EVERY), Err(REFILL_EVERY));
        let later = start + REFILL_EVERY * (FAILURES_MAX + 1);
        assert_eq!(throttle.admit(guesser, None, later), Ok(()));
        assert_eq!(throttle.failures(), u64::from(FAILURES_MAX) + 1);
    }

    #[test]
    fn clients_that_share_an_address_with_a_guesser_go_on() {
        let (throttle, start) = (AuthThrottle::new(), Instant::now());
        let shared = ip("10.0.0.1");
        throttle.succeeded(shared, None, start);
        for now in [start, start + PROVEN_FOR] {
            for _ in 0..1_000 {
                throttle.failed(shared, None, now);
            }
            assert_eq!(throttle.admit(shared, None, now).is_ok(), now == start);
        }
    }

    // One successful login exempted its address for every user: a user with few rights could try
    // any number of passwords of an administrator.
    #[test]
    fn a_user_that_logged_in_cannot_guess_the_password_of_another() {
        let (throttle, start) = (AuthThrottle::new(), Instant::now());
        let (shared, guesser, guessed) = (ip("10.0.0.1"), Some("clerk"), Some("admin"));
        for secret in [guessed, None] {
            throttle.succeeded(shared, guesser, start);
            for _ in 0..FAILURES_MAX {
                assert_eq!(throttle.admit(shared, secret, start), Ok(()), "{secret:?}");
                throttle.failed(shared, secret, start);
            }
            assert_eq!(throttle.admit(shared, secret, start), Err(REFILL_EVERY), "{secret:?}");
        }
        assert_eq!(throttle.admit(shared, guesser, start), Ok(()), "it logged in");
        assert_eq!(throttle.admit(shared, Some("ann"), start), Ok(()), "she is not delayed");
        let later = start + REFILL_EVERY;
        assert_eq!(throttle.admit(shared, guessed, later), Ok(()), "one more is due");
        throttle.failed(shared, guessed, later);
        assert_eq!(throttle.admit(shared, guessed, later), Err(REFILL_EVERY));
    }

    #[test]
    fn many_user_names_neither_fill_the_table_nor_reset_a_bucket() {
        let (throttle, start) = (AuthThrottle::new(), Instant::now());
        let (shared, other) = (ip("10.0.0.1"), ip("10.0.0.2"));
        throttle.succeeded(other, Some("ann"), start);
        throttle.succeeded(shared, Some("clerk"), start);
        for _ in 0..FAILURES_MAX {
            throttle.failed(shared, Some("admin"), start);
        }
        for name in 0..1_000 {
            throttle.failed(shared, Some(&format!("name {name}")), start);
        }
        assert_eq!(throttle.table().users, LOGIN_USERS_PER_PEER_MAX + 1);
        assert!(throttle.admit(shared, Some("admin"), start).is_err(), "its failures are kept");
        assert!(throttle.admit(shared, Some("name 999"), start).is_err(), "the rest share one");
        // A correct login is recorded although there is no room; no bucket is reset by it.
        throttle.succeeded(shared, Some("boss"), start);
        assert_eq!(throttle.table().users, LOGIN_USERS_PER_PEER_MAX + 1);
        for user in ["boss", "clerk"] {
            assert_eq!(throttle.admit(shared, Some(user), start), Ok(()), "{user}");
        }
        assert!(throttle.admit(shared, Some("admin"), start).is_err());
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
        throttle.failed(ip("10.0.0.3"), None, at(0));
        for _ in 0..FAILURES_MAX {
            throttle.failed(ip("10.0.0.1"), None, at(2_000));
        }
        throttle.succeeded(ip("10.0.0.2"), None, at(2_100));
        // The bucket of the third is full again, so it is removed first.
        throttle.failed(ip("10.0.0.4"), None, at(2_500));
        assert_eq!(throttle.table().users, 3);
        assert!(throttle.admit(ip("10.0.0.1"), None, at(2_500)).is_err());
        throttle.failed(ip("10.0.0.5"), None, at(2_500));
        assert_eq!(throttle.table().users, 3);
        assert_eq!(throttle.admit(ip("10.0.0.1"), None, at(2_500)), Ok(()), "then the oldest");
    }
}

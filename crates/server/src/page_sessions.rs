//! The sessions of users who signed in on the page.
//!
//! A session begins with a token and is then proven by a random id in a cookie. It ends when the
//! user signs out, after a time without use, after a maximum time, when the user is removed or gets
//! another secret, and with the server. Only the hash of an id is kept, in memory.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use taskyard_core::Timestamp;
use taskyard_core::limits::{PAGE_SESSION_SECS_MAX, PAGE_SESSIONS_MAX, PAGE_SESSIONS_PER_USER_MAX};
use taskyard_engine::{Clock, SystemClock};

use crate::users::{Principal, UsersHandle};

/// The default for how long a session lasts without use.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// Random bytes of an id, and of the value that actions must send.
const RANDOM_BYTES: usize = 32;

/// How long sessions of the page last.
#[derive(Clone)]
pub struct PageSessionConfig {
    /// How long a session lasts without use.
    pub idle_max: Duration,
    /// The clock by which sessions end.
    pub clock: Arc<dyn Clock>,
}

/// All sessions.
#[derive(Debug)]
pub(crate) struct PageSessions {
    config: PageSessionConfig,
    limits: PageSessionLimits,
    table: Mutex<HashMap<SessionHash, PageSession>>,
}

/// How many sessions there may be, in total and for each user.
#[derive(Clone, Copy, Debug)]
struct PageSessionLimits {
    total: usize,
    per_user: usize,
}

/// The hash of the id of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionHash([u8; 32]);

/// The id of a new session, for its cookie. It is never printed.
pub(crate) struct SessionId(String);

/// What actions must send beside the cookie. It is never printed.
#[derive(Clone, PartialEq)]
pub(crate) struct CsrfValue(Arc<str>);

#[derive(Debug)]
struct PageSession {
    principal: Principal,
    /// What actions must send beside the cookie.
    csrf: CsrfValue,
    opened: Timestamp,
    used: Timestamp,
}

/// What the page may know about its session.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PageSessionInfo {
    /// What actions must send beside the cookie.
    pub csrf: CsrfValue,
    /// How long the session lasts without use.
    pub idle_max: Duration,
    /// When it ends if it is not used any more, from now.
    pub ends_in: Duration,
}

impl PageSessions {
    /// No sessions yet.
    pub fn new(config: PageSessionConfig) -> Self {
        let (total, per_user) = (PAGE_SESSIONS_MAX, PAGE_SESSIONS_PER_USER_MAX);
        PageSessions::limited(config, PageSessionLimits { total, per_user })
    }

    fn limited(config: PageSessionConfig, limits: PageSessionLimits) -> Self {
        PageSessions { config, limits, table: Mutex::default() }
    }

    /// Begins a session of this user. If there are too many, the one that was not used for longest
    /// ends.
    pub fn open(&self, principal: Principal) -> io::Result<(SessionId, Principal)> {
        let (id, csrf) = (SessionId(random_text()?), CsrfValue(random_text()?.into()));
        let (hash, now) = (SessionHash::of(&id.0), self.config.clock.now());
        let mut table = self.table();
        table.retain(|_, session| !self.ends_in(session, now).is_zero());
        let of_user = |session: &PageSession| session.principal.is_same_user(&principal);
        drop_oldest(&mut table, self.limits.per_user, of_user);
        drop_oldest(&mut table, self.limits.total, |_| true);
        let principal = principal.in_session(hash);
        let session = PageSession { principal: principal.clone(), csrf, opened: now, used: now };
        table.insert(hash, session);
        Ok((id, principal))
    }

    /// The user of the session with this id, with current rights. `renews` says whether this is a
    /// use of the session.
    pub fn find(&self, users: &UsersHandle, id: &str, renews: bool) -> Option<Principal> {
        let (hash, now) = (SessionHash::of(id), self.config.clock.now());
        let mut table = self.table();
        let session = table.get_mut(&hash)?;
        let is_over = self.ends_in(session, now).is_zero();
        if is_over || !users.refresh(&mut session.principal) {
            table.remove(&hash);
            return None;
        }
        if renews {
            session.used = now;
        }
        Some(session.principal.clone())
    }

    /// Whether this session goes on: a socket may be open for longer.
    pub fn is_open(&self, session: &SessionHash) -> bool {
        self.info(session).is_some()
    }

    /// The session, unless it has ended.
    pub fn info(&self, session: &SessionHash) -> Option<PageSessionInfo> {
        let now = self.config.clock.now();
        let table = self.table();
        let session = table.get(session)?;
        let ends_in = self.ends_in(session, now);
        let info =
            PageSessionInfo { csrf: session.csrf.clone(), idle_max: self.config.idle_max, ends_in };
        (!ends_in.is_zero()).then_some(info)
    }

    /// Whether this is the value that actions of the session must send.
    pub fn has_csrf(&self, session: &SessionHash, value: &[u8]) -> bool {
        let info = self.info(session);
        info.is_some_and(|info| bool::from(info.csrf.text().as_bytes().ct_eq(value)))
    }

    /// Ends a session; whether there was one.
    pub fn end(&self, session: &SessionHash) -> bool {
        self.table().remove(session).is_some()
    }

    fn ends_in(&self, session: &PageSession, now: Timestamp) -> Duration {
        let left = |most: Duration, since: Timestamp| {
            most.saturating_sub(Duration::from(now.since(since)))
        };
        let whole = left(Duration::from_secs(PAGE_SESSION_SECS_MAX), session.opened);
        left(self.config.idle_max, session.used).min(whole)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<SessionHash, PageSession>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes room for one more session among those that are counted.
fn drop_oldest(
    table: &mut HashMap<SessionHash, PageSession>,
    most: usize,
    is_counted: impl Fn(&PageSession) -> bool,
) {
    let counted = || table.iter().filter(|(_, session)| is_counted(session));
    if counted().count() < most {
        return;
    }
    let oldest = counted().min_by_key(|(hash, session)| (session.used, session.opened, hash.0));
    let oldest = oldest.map(|(hash, _)| *hash);
    if let Some(oldest) = oldest {
        table.remove(&oldest);
    }
}

fn random_text() -> io::Result<String> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

impl SessionHash {
    /// The hash of this id.
    pub fn of(id: &str) -> Self {
        SessionHash(Sha256::digest(id).into())
    }
}

impl SessionId {
    /// The text in the cookie.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl CsrfValue {
    /// The text in the header.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for CsrfValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CsrfValue(..)")
    }
}

impl Default for PageSessionConfig {
    fn default() -> Self {
        PageSessionConfig { idle_max: IDLE_MAX, clock: Arc::new(SystemClock::new()) }
    }
}

impl fmt::Debug for PageSessionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageSessionConfig")
            .field("idle_max", &self.idle_max)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId(..)")
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::Span;
    use taskyard_engine::ManualClock;

    use super::*;
    use crate::users::{Grants, User, Users};

    const MINUTE: u64 = 60;

    struct SessionTest {
        clock: Arc<ManualClock>,
        users: UsersHandle,
        sessions: PageSessions,
    }

    impl SessionTest {
        /// A table with these limits, and the users `ann` and `bob`.
        fn new(total: usize, per_user: usize) -> Self {
            let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
            let config = PageSessionConfig {
                idle_max: Duration::from_secs(30 * MINUTE),
                clock: clock.clone(),
            };
            let sessions = PageSessions::limited(config, PageSessionLimits { total, per_user });
            SessionTest { clock, users: UsersHandle::new(users(&["ann", "bob"]), None), sessions }
        }

        fn sign_in(&self, name: &str) -> SessionId {
            let token = format!("token-of-{name}");
            let hash = crate::users::TokenHash::of(token.as_bytes());
            self.sessions.open(self.users.with_secret(&hash).unwrap()).unwrap().0
        }

        fn name(&self, id: &SessionId, renews: bool) -> Option<String> {
            self.sessions.find(&self.users, id.text(), renews).map(|user| user.name().into())
        }

        fn is_live(&self, id: &SessionId) -> bool {
            self.name(id, false).is_some()
        }

        fn pass(&self, minutes: u64) {
            self.clock.advance(Span::from_secs(minutes * MINUTE));
        }
    }

    fn users(names: &[&str]) -> Users {
        let user = |name: &&str| User::with_token(name, &format!("token-of-{name}"), Grants::All);
        Users::new(names.iter().map(user).collect())
    }

    #[test]
    fn a_session_has_an_id_that_is_random_and_not_kept() {
        let test = SessionTest::new(10, 10);
        let (id, other) = (test.sign_in("ann"), test.sign_in("ann"));
        assert_ne!(id.text(), other.text());
        assert_eq!(BASE64_URL_SAFE_NO_PAD.decode(id.text()).unwrap().len(), RANDOM_BYTES);
        let kept = format!("{:?}", test.sessions);
        assert!(!kept.contains(id.text()), "only the hash is kept");
        assert_eq!(format!("{id:?}"), "SessionId(..)");
        assert_eq!(test.name(&id, false).as_deref(), Some("ann"));
        let hash = SessionHash::of(id.text());
        let of_other = test.sessions.info(&SessionHash::of(other.text())).unwrap().csrf;
        let csrf = test.sessions.info(&hash).unwrap().csrf;
        assert!(test.sessions.has_csrf(&hash, csrf.text().as_bytes()));
        assert!(!test.sessions.has_csrf(&hash, of_other.text().as_bytes()));
        assert!(!test.sessions.has_csrf(&hash, b""));
        assert_ne!(csrf.text(), id.text());
        // The hash that is kept does not open the session.
        let hex: String = hash.0.iter().map(|byte| format!("{byte:02x}")).collect();
        for wrong in ["", &hex, &BASE64_URL_SAFE_NO_PAD.encode(hash.0)] {
            assert!(test.sessions.find(&test.users, wrong, false).is_none());
        }
    }

    #[test]
    fn a_session_ends_without_use() {
        let test = SessionTest::new(10, 10);
        let (used, looked_at) = (test.sign_in("ann"), test.sign_in("bob"));
        test.pass(29);
        assert!(test.name(&used, true).is_some() && test.name(&looked_at, false).is_some());
        let left = test.sessions.info(&SessionHash::of(looked_at.text())).unwrap();
        assert_eq!(left.ends_in, Duration::from_secs(MINUTE));
        test.pass(1);
        assert!(test.is_live(&used));
        assert!(!test.sessions.is_open(&SessionHash::of(looked_at.text())));
        assert!(!test.is_live(&looked_at), "a request that is no use does not renew it");
        assert_eq!(test.sessions.table().len(), 1);
    }

    #[test]
    fn a_session_that_is_used_ends_at_the_maximum() {
        let test = SessionTest::new(10, 10);
        let id = test.sign_in("ann");
        let turns = PAGE_SESSION_SECS_MAX / (20 * MINUTE) - 1;
        for _ in 0..turns {
            test.pass(20);
            assert!(test.name(&id, true).is_some());
        }
        let left = test.sessions.info(&SessionHash::of(id.text())).unwrap().ends_in;
        assert_eq!(left, Duration::from_secs(20 * MINUTE));
        test.pass(20);
        assert!(test.name(&id, true).is_none());
    }

    #[test]
    fn the_session_that_was_not_used_for_longest_makes_room() {
        let test = SessionTest::new(3, 2);
        let first = test.sign_in("ann");
        test.pass(1);
        let second = test.sign_in("ann");
        test.pass(1);
        assert!(test.name(&first, true).is_some());
        let third = test.sign_in("ann");
        assert!(test.is_live(&first) && !test.is_live(&second) && test.is_live(&third));
        test.pass(1);
        let of_bob = test.sign_in("bob");
        assert!(test.is_live(&first) && test.is_live(&third), "the limit of a user is its own");
        let newest = test.sign_in("bob");
        assert_eq!(test.sessions.table().len(), 3);
        assert!(test.is_live(&of_bob) && test.is_live(&newest));
    }

    #[test]
    fn there_are_as_many_sessions_as_the_limits_say() {
        let test = SessionTest::new(PAGE_SESSIONS_MAX, PAGE_SESSIONS_PER_USER_MAX);
        for _ in 0..=PAGE_SESSIONS_PER_USER_MAX {
            test.sign_in("ann");
        }
        assert_eq!(test.sessions.table().len(), PAGE_SESSIONS_PER_USER_MAX);
        let config = PageSessionConfig::default();
        let standard = PageSessions::new(config).limits;
        assert_eq!(standard.total, PAGE_SESSIONS_MAX);
        assert_eq!(standard.per_user, PAGE_SESSIONS_PER_USER_MAX);
    }

    #[test]
    fn expired_sessions_do_not_count() {
        let test = SessionTest::new(2, 2);
        let (old, kept) = (test.sign_in("ann"), test.sign_in("bob"));
        test.pass(20);
        assert!(test.name(&kept, true).is_some());
        test.pass(15);
        let new = test.sign_in("ann");
        assert!(!test.is_live(&old) && test.is_live(&kept) && test.is_live(&new));
    }

    #[test]
    fn a_session_ends_with_its_user_or_the_secret_and_follows_the_rights() {
        let test = SessionTest::new(10, 10);
        let (ann, bob) = (test.sign_in("ann"), test.sign_in("bob"));
        let less = User::with_token("ann", "token-of-ann", Grants::List(Vec::new()));
        let changed = User::with_token("bob", "another-token", Grants::All);
        test.users.replace(Users::new(vec![less, changed]));
        let found = test.sessions.find(&test.users, ann.text(), false).unwrap();
        assert!(!found.permissions().allows_anything(), "the rights are the new ones");
        assert!(!test.is_live(&bob), "the secret is another one");
        test.users.replace(users(&["bob"]));
        assert!(!test.is_live(&ann));
        test.users.replace(users(&["ann", "bob"]));
        assert!(!test.is_live(&ann), "an ended session does not begin again");
        assert_eq!(test.sessions.table().len(), 0);
    }

    #[test]
    fn a_session_that_was_signed_out_is_over() {
        let test = SessionTest::new(10, 10);
        let (id, other) = (test.sign_in("ann"), test.sign_in("ann"));
        let hash = SessionHash::of(id.text());
        assert!(test.sessions.end(&hash) && !test.sessions.end(&hash));
        assert!(!test.is_live(&id) && test.is_live(&other));
    }
}

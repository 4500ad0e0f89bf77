//! The current list of users, which can be replaced while the server runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use taskyard_core::access::Permissions;
use tokio::sync::watch;

use super::{GUEST, LoginFailed, NONE, TokenHash, User, Users, UsersChange};
use crate::auth::Token;
use crate::page_sessions::SessionHash;
use crate::tube_quota::TubeCreator;

/// The current list of users. Copies refer to the same list.
#[derive(Clone, Debug, Default)]
pub struct UsersHandle(Arc<CurrentUsers>);

#[derive(Debug, Default)]
struct CurrentUsers {
    users: RwLock<Arc<Users>>,
    /// Changes with every list.
    generation: AtomicU64,
    /// The token of the server, whose user belongs to every list.
    token: Option<Token>,
    /// Wakes requests that wait, after every new list.
    changes: watch::Sender<()>,
}

/// The user that sends a request, with its rights.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    permissions: Arc<Permissions>,
    /// `None` is the guest.
    user: Option<Arc<User>>,
    generation: u64,
    /// The session of the page that the request belongs to.
    session: Option<SessionHash>,
}

/// Identifies a user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UserKey {
    name: String,
    /// A user of the list may have the name of the server's own.
    is_listed: bool,
}

#[cfg(test)]
impl UserKey {
    /// A user of the list.
    pub fn listed(name: &str) -> Self {
        UserKey { name: name.into(), is_listed: true }
    }
}

impl UsersHandle {
    /// A list that begins with these users, and the user of the token.
    pub(crate) fn new(users: Users, token: Option<Token>) -> Self {
        let handle = UsersHandle(Arc::new(CurrentUsers { token, ..CurrentUsers::default() }));
        handle.replace(users);
        handle
    }

    /// Replaces the list. Clients that are connected get the rights of the new list with their next
    /// request; a user that is gone, or has another secret, has none. Returns what has changed.
    pub fn replace(&self, users: Users) -> UsersChange {
        let users = match &self.0.token {
            Some(token) => users.with_token(token),
            None => users,
        };
        let mut current = self.0.users.write().unwrap_or_else(PoisonError::into_inner);
        let change = UsersChange::between(&current, &users);
        *current = Arc::new(users);
        self.0.generation.fetch_add(1, Ordering::Release);
        drop(current);
        self.0.changes.send_replace(());
        change
    }

    /// Changes with every list from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// The names of the users, in order.
    pub fn names(&self) -> Vec<String> {
        self.current().names()
    }

    /// Whether no user is listed, so that every client has all rights.
    pub(crate) fn is_empty(&self) -> bool {
        self.current().is_empty()
    }

    fn current(&self) -> Arc<Users> {
        self.0.users.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// A client that did not authenticate.
    pub(crate) fn guest(&self) -> Principal {
        let generation = self.generation();
        Principal::guest(self.current().guest(), generation)
    }

    /// The user with this token.
    pub(crate) fn with_secret(&self, token: &TokenHash) -> Option<Principal> {
        let generation = self.generation();
        let users = self.current();
        users.with_secret(token).map(|user| Principal::of(user.clone(), generation))
    }

    /// The user that a scramble proves to be there.
    pub(crate) fn authenticate(
        &self,
        name: &str,
        scramble: Option<&[u8; 20]>,
        salt: &[u8],
    ) -> Result<Principal, LoginFailed> {
        let generation = self.generation();
        let users = self.current();
        Ok(match users.authenticate(name, scramble, salt)? {
            Some(user) => Principal::of(user, generation),
            None => Principal::guest(users.guest(), generation),
        })
    }

    /// Updates the rights of a client to the current list. Returns whether this list has its user;
    /// one that was removed before has no rights.
    pub(crate) fn refresh(&self, principal: &mut Principal) -> bool {
        let generation = self.generation();
        if principal.generation == generation {
            return true;
        }
        principal.generation = generation;
        let users = self.current();
        let Some(known) = &principal.user else {
            principal.permissions = users.guest();
            return true;
        };
        if known.is_fixed {
            return true;
        }
        let found = users.find(known.name()).filter(|found| {
            // Otherwise the user that logged in is not the one that is listed now.
            (found.token, &found.password) == (known.token, &known.password)
        });
        match found {
            Some(found) => {
                let session = principal.session;
                *principal = Principal { session, ..Principal::of(found.clone(), generation) };
                true
            }
            None => {
                principal.withdraw();
                false
            }
        }
    }
}

impl Principal {
    fn of(user: Arc<User>, generation: u64) -> Self {
        let permissions = user.permissions.clone();
        Principal { permissions, user: Some(user), generation, session: None }
    }

    fn guest(permissions: Arc<Permissions>, generation: u64) -> Self {
        Principal { permissions, user: None, generation, session: None }
    }

    /// The same user in a session of the page.
    pub fn in_session(self, session: SessionHash) -> Self {
        Principal { session: Some(session), ..self }
    }

    /// The session of the page that the request belongs to.
    pub fn session(&self) -> Option<&SessionHash> {
        self.session.as_ref()
    }

    /// Removes all rights.
    pub fn withdraw(&mut self) {
        self.permissions = NONE.clone();
    }

    /// The name of the user.
    pub fn name(&self) -> &str {
        self.user.as_ref().map_or(GUEST, |user| user.name())
    }

    /// Whether it is a user of the list, and not the guest or the user of the server's own token.
    pub fn is_listed(&self) -> bool {
        self.user.as_ref().is_some_and(|user| !user.is_fixed)
    }

    /// Whether both are the same user.
    pub fn is_same_user(&self, other: &Principal) -> bool {
        (self.name(), self.is_listed()) == (other.name(), other.is_listed())
    }

    /// Identifies the user. All clients that do not authenticate are the same one.
    pub fn key(&self) -> UserKey {
        UserKey { name: self.name().into(), is_listed: self.is_listed() }
    }

    /// Its rights.
    pub fn permissions(&self) -> &Permissions {
        &self.permissions
    }

    /// The user as the creator of tubes.
    pub fn creator(&self) -> TubeCreator<'_> {
        let is_admin = *self.permissions == Permissions::All && self.user.is_some();
        TubeCreator { name: self.name(), is_admin }
    }
}

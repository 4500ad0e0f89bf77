//! The current list of users, which can be replaced while the server runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use taskyard_core::access::Permissions;

use super::{GUEST, LoginFailed, NONE, TokenHash, User, Users};
use crate::auth::Token;
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
}

/// The user that sends a request, with its rights.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    permissions: Arc<Permissions>,
    /// `None` is the guest.
    user: Option<Arc<User>>,
    generation: u64,
}

impl UsersHandle {
    /// A list that begins with these users, and the user of the token.
    pub(crate) fn new(users: Users, token: Option<Token>) -> Self {
        let handle = UsersHandle(Arc::new(CurrentUsers { token, ..CurrentUsers::default() }));
        handle.replace(users);
        handle
    }

    /// Replaces the list. Clients that are connected get the rights of the new list with their next
    /// request; a user that is gone, or has another secret, has none.
    pub fn replace(&self, users: Users) {
        let users = match &self.0.token {
            Some(token) => users.with_token(token),
            None => users,
        };
        let mut current = self.0.users.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(users);
        self.0.generation.fetch_add(1, Ordering::Release);
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
        Principal { permissions: self.current().guest(), user: None, generation }
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
            None => Principal { permissions: users.guest(), user: None, generation },
        })
    }

    /// Updates the rights of a client to the current list.
    pub(crate) fn refresh(&self, principal: &mut Principal) {
        let generation = self.generation();
        if principal.generation == generation {
            return;
        }
        principal.generation = generation;
        let users = self.current();
        let Some(known) = &principal.user else {
            principal.permissions = users.guest();
            return;
        };
        if known.is_fixed {
            return;
        }
        let found = users.find(known.name()).filter(|found| {
            // Otherwise the user that logged in is not the one that is listed now.
            (found.token, &found.password) == (known.token, &known.password)
        });
        match found {
            Some(found) => *principal = Principal::of(found.clone(), generation),
            None => principal.permissions = NONE.clone(),
        }
    }
}

impl Principal {
    fn of(user: Arc<User>, generation: u64) -> Self {
        Principal { permissions: user.permissions.clone(), user: Some(user), generation }
    }

    /// The name of the user.
    pub fn name(&self) -> &str {
        self.user.as_ref().map_or(GUEST, |user| user.name())
    }

    /// Whether it is a user of the list, and not the guest or the user of the server's own token.
    pub fn is_listed(&self) -> bool {
        self.user.as_ref().is_some_and(|user| !user.is_fixed)
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

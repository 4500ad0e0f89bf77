//! The users of the server: secrets and rights, for both protocols.
//!
//! The operator lists them in a file (`entry`), with roles or with the grants of Tarantool's queue
//! (`grants`). The list can be replaced while the server runs (`shared`).

mod change;
mod entry;
mod grants;
mod new_secret;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use taskyard_core::access::Permissions;
use taskyard_iproto::auth;

pub use change::UsersChange;
pub use grants::{Grant, Grants, Verb};
pub use new_secret::NewSecret;
pub use shared::UsersHandle;
pub(crate) use shared::{Principal, UserKey};

use crate::auth::Token;
use crate::config::ADMIN;

/// The user of a client that did not authenticate.
pub(crate) const GUEST: &str = "guest";

/// How many bytes of the hash of a token find its user. The rest is compared in constant time.
const TOKEN_KEY_BYTES: usize = 16;

/// The rights of every client while no user is listed, and of a client without any.
static ALL: LazyLock<Arc<Permissions>> = LazyLock::new(|| Arc::new(Permissions::All));
static NONE: LazyLock<Arc<Permissions>> = LazyLock::new(|| Arc::new(Permissions::none()));

/// All users. If the list is empty, the guest may do everything; otherwise the guest may do what
/// its own entry allows.
#[derive(Clone, Debug, Default)]
pub struct Users {
    by_name: HashMap<Arc<str>, Arc<User>>,
    by_token: HashMap<[u8; TOKEN_KEY_BYTES], Arc<User>>,
}

/// A user that may connect.
#[derive(Clone, Debug)]
pub struct User {
    name: Arc<str>,
    token: Option<TokenHash>,
    password: Option<PasswordHash>,
    permissions: Arc<Permissions>,
    /// Whether it is not listed in a file, so that a new file does not change it.
    is_fixed: bool,
}

/// The SHA-256 of a token. It is never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenHash([u8; 32]);

/// The hash of a password, with which it can be checked but not used. It is never printed.
#[derive(Clone, PartialEq, Eq)]
struct PasswordHash([u8; 20]);

/// The user is unknown or the password is wrong. Clients cannot tell which, also not by the time it
/// takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoginFailed;

impl Users {
    /// These users. Of two with the same name or token the last one counts.
    pub fn new(users: Vec<User>) -> Self {
        users.into_iter().fold(Users::default(), Users::with)
    }

    /// These users, and a user with all rights whose token and password are `token`. A listed user
    /// of that name keeps the name over iproto.
    #[must_use]
    pub(crate) fn with_token(mut self, token: &Token) -> Self {
        let text = token.text();
        let admin = User {
            token: Some(TokenHash::of(text.as_bytes())),
            is_fixed: true,
            ..User::new(ADMIN, text, Grants::All)
        };
        match self.by_name.get(ADMIN) {
            None => self.with(admin),
            Some(_) => {
                self.insert_token(&Arc::new(admin));
                self
            }
        }
    }

    fn with(mut self, user: User) -> Self {
        let user = Arc::new(user);
        self.insert_token(&user);
        self.by_name.insert(user.name.clone(), user);
        self
    }

    fn insert_token(&mut self, user: &Arc<User>) {
        if let Some(token) = &user.token {
            self.by_token.insert(token.key(), user.clone());
        }
    }

    /// Whether no user is listed.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Whether a user has a password, so that the file must be kept secret.
    pub fn has_passwords(&self) -> bool {
        self.by_name.values().any(|user| user.password.is_some())
    }

    /// The rights of a client that did not authenticate.
    pub(crate) fn guest(&self) -> Arc<Permissions> {
        match self.find(GUEST) {
            _ if self.is_empty() => ALL.clone(),
            Some(guest) if guest.is_without_secret() => guest.permissions.clone(),
            _ => NONE.clone(),
        }
    }

    /// The user with this token. An unknown one takes as much work.
    pub(crate) fn with_secret(&self, token: &TokenHash) -> Option<&Arc<User>> {
        let found = self.by_token.get(&token.key());
        let stored = found.and_then(|user| user.token).unwrap_or(TokenHash([0; 32]));
        let is_equal = bool::from(stored.0.ct_eq(&token.0));
        found.filter(|_| is_equal)
    }

    /// The user of this name, if the scramble of the salt proves the password; `None` is the guest.
    /// An unknown user takes as much time as a wrong password.
    pub(crate) fn authenticate(
        &self,
        name: &str,
        scramble: Option<&[u8; 20]>,
        salt: &[u8],
    ) -> Result<Option<Arc<User>>, LoginFailed> {
        let (stored, user) = match self.find(name) {
            Some(user) if user.name() == GUEST && user.is_without_secret() => return Ok(None),
            None if name == GUEST => return Ok(None),
            Some(user) => (user.password.as_ref().map_or(&[0; 20], |hash| &hash.0), Some(user)),
            None => (&[0; 20], None),
        };
        let proven = auth::check(scramble.unwrap_or(&[0; 20]), salt, stored);
        match user {
            Some(user) if proven && scramble.is_some() && user.password.is_some() => {
                Ok(Some(user.clone()))
            }
            _ => Err(LoginFailed),
        }
    }

    /// The names of the listed users, in order.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.by_name.keys().map(|name| name.to_string()).collect();
        names.sort_unstable();
        names
    }

    fn find(&self, name: &str) -> Option<&Arc<User>> {
        self.by_name.get(name)
    }
}

impl User {
    /// A user with a password, for iproto.
    pub fn new(name: &str, password: &str, grants: Grants) -> Self {
        let password = Some(PasswordHash(auth::hash_password(password)));
        User { password, ..User::without_secret(name, &grants) }
    }

    /// A user with a token, for HTTP.
    pub fn with_token(name: &str, token: &str, grants: Grants) -> Self {
        let token = Some(TokenHash::of(token.as_bytes()));
        User { token, ..User::without_secret(name, &grants) }
    }

    /// The guest, with these grants.
    pub fn guest(grants: Grants) -> Self {
        User::without_secret(GUEST, &grants)
    }

    fn without_secret(name: &str, grants: &Grants) -> Self {
        let permissions = Arc::new(grants.permissions());
        User { name: name.into(), token: None, password: None, permissions, is_fixed: false }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether another user of this name has the same secrets and rights.
    fn is_same(&self, other: &User) -> bool {
        (self.token, &self.password, &self.permissions)
            == (other.token, &other.password, &other.permissions)
    }

    fn is_without_secret(&self) -> bool {
        self.token.is_none() && self.password.is_none()
    }
}

impl TokenHash {
    /// The hash of a token.
    pub fn of(token: &[u8]) -> Self {
        TokenHash(Sha256::digest(token).into())
    }

    /// One hash for several tokens that were sent together; that of a single one is its own.
    pub fn all(tokens: &[TokenHash]) -> Option<Self> {
        match tokens {
            [] => None,
            [one] => Some(*one),
            many => Some(TokenHash::of(&many.iter().flat_map(|token| token.0).collect::<Vec<_>>())),
        }
    }

    fn key(&self) -> [u8; TOKEN_KEY_BYTES] {
        let mut key = [0; TOKEN_KEY_BYTES];
        key.copy_from_slice(&self.0[..TOKEN_KEY_BYTES]);
        key
    }

    /// A number and a text that differ for different tokens and do not reveal them, for the
    /// addresses that fail too often.
    pub fn fingerprint(&self) -> (u64, String) {
        let text = self.0[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let number = self.0[..8].iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        (number, text)
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

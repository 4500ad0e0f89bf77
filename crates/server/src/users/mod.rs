//! The users of the iproto server: passwords and grants.

use std::collections::HashSet;
use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use taskyard_core::TubeName;
use taskyard_core::names::unfit_char;
use taskyard_iproto::auth;

use super::pattern::Pattern;
use crate::tube_owners::is_owners;

/// The user of a client that did not authenticate.
pub(crate) const GUEST: &str = "guest";

/// All users, as the operator's file lists them. If the list is empty, the guest may do everything;
/// otherwise the guest may do what its own entry allows.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "UserList")]
pub struct Users {
    users: Vec<User>,
}

/// The file of users, as the operator writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserList {
    users: Vec<User>,
}

impl TryFrom<UserList> for Users {
    type Error = String;

    fn try_from(list: UserList) -> Result<Self, String> {
        let mut names = HashSet::new();
        for User { name, .. } in &list.users {
            if name.is_empty() {
                return Err("a user has an empty name".into());
            }
            if let Some(bad) = unfit_char(name) {
                return Err(format!("the name of user {name:?} must not contain {bad:?}"));
            }
            if !names.insert(name.as_str()) {
                return Err(format!("user '{name}' is listed twice; keep one of the two"));
            }
        }
        Ok(Users { users: list.users })
    }
}

/// A user that may connect.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "UserEntry")]
pub struct User {
    name: String,
    password: Option<PasswordHash>,
    grants: Grants,
}

/// The hash of a password, with which it can be checked but not used. It is never printed.
#[derive(Clone)]
struct PasswordHash([u8; 20]);

/// What a user may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grants {
    /// Everything.
    All,
    /// What at least one of these allows.
    List(Vec<Grant>),
}

/// Allows verbs on tubes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The tubes; `*` stands for any part of a name. By default all tubes.
    #[serde(default)]
    tube: Pattern,
    /// The verbs; by default those of producers and consumers.
    #[serde(default = "Verb::default_verbs")]
    verbs: Vec<Verb>,
}

/// A verb that can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the method of that name")]
pub enum Verb {
    Put,
    Take,
    Ack,
    Release,
    Touch,
    Bury,
    Kick,
    Peek,
    Delete,
    Truncate,
    ReleaseAll,
    Create,
    Drop,
    Cfg,
    Eval,
    Execute,
}

/// The user is unknown or the password is wrong. Clients cannot tell which, also not by the time it
/// takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoginFailed;

impl Verb {
    /// The verb that the method of this name needs.
    pub(crate) fn of_method(method: &str) -> Option<Verb> {
        Some(match method {
            "put" | "put_many" => Verb::Put,
            "take" | "take_many" => Verb::Take,
            "ack" | "ack_many" => Verb::Ack,
            "release" | "fail" => Verb::Release,
            "touch" => Verb::Touch,
            "bury" => Verb::Bury,
            "kick" => Verb::Kick,
            "peek" | "list" => Verb::Peek,
            "delete" => Verb::Delete,
            "truncate" => Verb::Truncate,
            "release_all" => Verb::ReleaseAll,
            "drop" => Verb::Drop,
            _ => return None,
        })
    }

    /// The verbs that producers and consumers need.
    fn default_verbs() -> Vec<Verb> {
        use Verb::{Ack, Bury, Delete, Kick, Peek, Put, Release, Take, Touch};
        vec![Put, Take, Ack, Release, Touch, Bury, Kick, Peek, Delete]
    }
}

impl Users {
    /// These users.
    pub fn new(users: Vec<User>) -> Self {
        Users { users }
    }

    /// Whether no user is listed.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// The grants of a client that did not authenticate.
    pub(crate) fn guest(&self) -> Grants {
        match self.find(GUEST) {
            _ if self.is_empty() => Grants::All,
            Some(guest) if guest.password.is_none() => guest.grants.clone(),
            _ => Grants::List(Vec::new()),
        }
    }

    /// The grants of a user, if the scramble of the salt proves the password. An unknown user takes
    /// as much time as a wrong password.
    pub(crate) fn authenticate(
        &self,
        name: &str,
        scramble: Option<&[u8; 20]>,
        salt: &[u8],
    ) -> Result<Grants, LoginFailed> {
        let (stored, grants) = match self.find(name) {
            Some(User { password: Some(stored), grants, .. }) => (&stored.0, Some(grants)),
            Some(User { password: None, grants, .. }) => return Ok(grants.clone()),
            None if name == GUEST => return Ok(self.guest()),
            None => (&[0; 20], None),
        };
        let proven = auth::check(scramble.unwrap_or(&[0; 20]), salt, stored);
        match grants {
            Some(grants) if proven && scramble.is_some() => Ok(grants.clone()),
            _ => Err(LoginFailed),
        }
    }

    fn find(&self, name: &str) -> Option<&User> {
        self.users.iter().find(|user| user.name == name)
    }
}

impl User {
    /// A user with a password.
    pub fn new(name: &str, password: &str, grants: Grants) -> Self {
        let password = Some(PasswordHash(auth::hash_password(password)));
        User { name: name.into(), password, grants }
    }

    /// The guest, with these grants.
    pub fn guest(grants: Grants) -> Self {
        User { name: GUEST.into(), password: None, grants }
    }
}

impl Grants {
    /// Whether this verb is allowed on this tube.
    pub(crate) fn allows(&self, verb: Verb, tube: &str) -> bool {
        self.any(|grant| grant.allows(verb, tube))
    }

    /// Whether one of these verbs is allowed on this tube.
    pub(crate) fn allows_any(&self, verbs: &[Verb], tube: &TubeName) -> bool {
        verbs.iter().any(|verb| self.allows(*verb, tube.as_str()))
    }

    /// Whether this verb is allowed on at least one tube; for verbs without a tube.
    pub(crate) fn allows_on_any_tube(&self, verb: Verb) -> bool {
        self.any(|grant| grant.verbs.contains(&verb))
    }

    /// Whether this verb is allowed on all tubes.
    pub(crate) fn allows_on_all_tubes(&self, verb: Verb) -> bool {
        self.any(|grant| grant.verbs.contains(&verb) && grant.tube.matches_all())
    }

    /// Whether this tube is visible: any verb is allowed on it.
    pub(crate) fn can_see(&self, tube: &str) -> bool {
        self.any(|grant| grant.covers(tube))
    }

    /// Whether all tubes are visible.
    pub(crate) fn can_see_all(&self) -> bool {
        self.any(|grant| grant.tube.matches_all())
    }

    /// Whether anything is allowed.
    pub(crate) fn allows_anything(&self) -> bool {
        self.any(|_| true)
    }

    fn any(&self, allows: impl FnMut(&Grant) -> bool) -> bool {
        match self {
            Grants::All => true,
            Grants::List(grants) => grants.iter().any(allows),
        }
    }
}

impl Grant {
    /// Allows these verbs on the tubes whose names match the pattern.
    pub fn new(tube: &str, verbs: &[Verb]) -> Self {
        Grant { tube: Pattern::new(tube), verbs: verbs.into() }
    }

    fn allows(&self, verb: Verb, tube: &str) -> bool {
        self.verbs.contains(&verb) && self.covers(tube)
    }

    /// Whether the tube is one of this grant. No pattern includes the tubes that store how many
    /// tubes a user has.
    fn covers(&self, tube: &str) -> bool {
        self.tube.matches(tube) && !is_owners(tube)
    }
}

/// A user, as the operator writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserEntry {
    name: String,
    password: Option<String>,
    password_hash: Option<String>,
    grants: Grants,
}

impl TryFrom<UserEntry> for User {
    type Error = String;

    fn try_from(entry: UserEntry) -> Result<Self, String> {
        let UserEntry { name, password, password_hash, grants } = entry;
        let password = match (password, password_hash) {
            (Some(password), None) => Some(auth::hash_password(&password)),
            (None, Some(hash)) => Some(stored_hash(&name, &hash)?),
            (None, None) if name == GUEST => None,
            _ => return Err(format!("user '{name}' needs either password or password_hash")),
        };
        Ok(User { name, password: password.map(PasswordHash), grants })
    }
}

fn stored_hash(name: &str, text: &str) -> Result<[u8; 20], String> {
    let bytes = BASE64_STANDARD.decode(text.trim()).ok();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
        format!(
            "password_hash of user '{name}' is not what Tarantool stores: the base64 of \
             SHA1(SHA1(password)), 28 characters"
        )
    })
}

impl<'de> Deserialize<'de> for Grants {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(GrantsVisitor)
    }
}

struct GrantsVisitor;

impl<'de> Visitor<'de> for GrantsVisitor {
    type Value = Grants;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the word all, or a list of grants with tube and verbs")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Grants, E> {
        match text {
            "all" => Ok(Grants::All),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Grants, A::Error> {
        let mut grants = Vec::new();
        while let Some(grant) = list.next_element()? {
            grants.push(grant);
        }
        Ok(Grants::List(grants))
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn users(list: serde_json::Value) -> Result<Users, String> {
        serde_json::from_value(json!({ "users": list })).map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_lists_users_and_grants() {
        let hash = BASE64_STANDARD.encode(auth::hash_password("secret"));
        let users = users(json!([
            { "name": "boss", "password": "secret", "grants": "all" },
            { "name": "copy", "password_hash": hash, "grants": [{}] },
            { "name": "lim", "password": "x", "grants": [
                { "tube": "mail*", "verbs": ["put", "drop"] },
            ]},
        ]));
        let users = users.unwrap();
        let salt = [7; 32];
        let shown = auth::scramble("secret", &salt);
        let boss = users.authenticate("boss", Some(&shown), &salt).unwrap();
        assert_eq!(boss, Grants::All);
        let copy = users.authenticate("copy", Some(&shown), &salt).unwrap();
        assert!(copy.allows(Verb::Take, "any") && !copy.allows(Verb::Drop, "any"));
        let wrong = users.authenticate("lim", Some(&shown), &salt);
        assert_eq!(wrong, Err(LoginFailed));
        assert_eq!(users.authenticate("lim", None, &salt), Err(LoginFailed));
        assert_eq!(users.authenticate("who", Some(&shown), &salt), Err(LoginFailed));
        let shown = auth::scramble("x", &salt);
        let lim = users.authenticate("lim", Some(&shown), &salt).unwrap();
        assert!(lim.allows(Verb::Put, "mails") && lim.allows(Verb::Drop, "mail"));
        assert!(!lim.allows(Verb::Take, "mail") && !lim.allows(Verb::Put, "post"));
        assert!(lim.can_see("mail") && !lim.can_see_all() && lim.allows_anything());
        assert!(!users.guest().allows_anything());
    }

    // With a grant for all tubes a user could have removed the entries that count the user's tubes.
    #[test]
    fn the_stored_owners_of_tubes_are_for_administrators() {
        let tube = crate::tube_owners::owner_tube("ann");
        let all = Grants::List(vec![Grant::new("*", &[Verb::Put, Verb::Take, Verb::Truncate])]);
        assert!(all.allows(Verb::Truncate, "taskyard.other"));
        assert!(!all.allows(Verb::Truncate, tube.as_str()) && !all.can_see(tube.as_str()));
        assert!(Grants::All.allows(Verb::Truncate, tube.as_str()));
    }

    #[test]
    fn the_guest_may_do_everything_only_without_listed_users() {
        assert_eq!(Users::default().guest(), Grants::All);
        let some = vec![Grant::new("open", &[Verb::Put])];
        let users = Users::new(vec![User::guest(Grants::List(some.clone()))]);
        assert_eq!(users.guest(), Grants::List(some));
    }

    #[test]
    fn errors_in_the_file_are_reported() {
        for (entry, said) in [
            (json!({ "name": "a", "grants": "all" }), "either password"),
            (json!({ "name": "a", "password": "x", "grants": "most" }), "the word all"),
            (json!({ "name": "a", "password": "x", "grants": [{ "verbs": ["fly"] }] }), "fly"),
            (json!({ "name": "a", "password_hash": "abc", "grants": "all" }), "28 characters"),
            (json!({ "name": "a", "password": "x", "grant": "all" }), "grant"),
        ] {
            let refused = users(json!([entry])).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
    }

    // The first of two users of one name was used silently, and the other could not log in.
    #[test]
    fn a_name_is_listed_once() {
        let user = |name| json!({ "name": name, "password": "x", "grants": "all" });
        assert!(users(json!([user("a"), user("b")])).is_ok());
        let refused = users(json!([user("a"), user("b"), user("a")])).unwrap_err();
        assert!(refused.contains("'a' is listed twice"), "{refused}");
        assert!(users(json!([user("")])).unwrap_err().contains("empty"));
    }

    // A name with a character that turns the direction of writing shows as another one in the log.
    #[test]
    fn a_name_shows_as_it_is_written() {
        let user = |name| json!([{ "name": name, "password": "x", "grants": "all" }]);
        assert!(users(user("пользователь")).is_ok());
        for name in ["ssob\u{202e}", "a\u{2066}b", "\u{200f}a", "a\nb"] {
            let refused = users(user(name)).unwrap_err();
            assert!(refused.contains("must not contain"), "{refused}");
        }
    }

    #[test]
    fn passwords_are_not_printed() {
        let user = User::new("a", "secret", Grants::All);
        assert!(format!("{user:?}").contains("PasswordHash(..)"));
    }
}

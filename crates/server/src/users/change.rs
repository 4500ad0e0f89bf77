//! Compares two lists of users by name, without showing secrets.

use std::fmt;
use std::sync::Arc;

use super::{User, Users};

/// The names of the users that a new list has added, removed or changed, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsersChange {
    /// Names that were not listed.
    pub added: Vec<String>,
    /// Names that are not listed any more.
    pub removed: Vec<String>,
    /// Users with another secret or other rights.
    pub changed: Vec<String>,
}

impl UsersChange {
    /// The change from one list to another.
    pub(super) fn between(before: &Users, after: &Users) -> Self {
        let names = |users: &Users, is_part: &dyn Fn(&Arc<User>) -> bool| {
            let found = users.by_name.values().filter(|user| is_part(user));
            let mut names: Vec<_> = found.map(|user| user.name().to_owned()).collect();
            names.sort_unstable();
            names
        };
        UsersChange {
            added: names(after, &|user| before.find(user.name()).is_none()),
            removed: names(before, &|user| after.find(user.name()).is_none()),
            changed: names(after, &|user| {
                before.find(user.name()).is_some_and(|known| !known.is_same(user))
            }),
        }
    }

    /// Whether both lists are the same.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

impl fmt::Display for UsersChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts =
            [("changed", &self.changed), ("removed", &self.removed), ("added", &self.added)];
        let given = || parts.iter().filter(|(_, names)| !names.is_empty());
        // The numbers come first, and users with other rights before new ones: a long list is cut in
        // an audit entry.
        let numbers: Vec<_> =
            given().map(|(what, names)| format!("{} {what}", names.len())).collect();
        f.write_str(&numbers.join(", "))?;
        given().try_for_each(|(what, names)| write!(f, "; {what}: {}", names.join(", ")))
    }
}

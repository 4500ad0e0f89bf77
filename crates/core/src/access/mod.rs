//! Which requests a user may send: roles, name patterns and the table of verbs and roles.
//!
//! [`AccessVerb`] is a row of the table and [`Role`] a column; [`Permissions`] are the rights of one
//! user, and check a command. Both interfaces of the server use this table and no other.
//! [`audited_action`] says which commands get an audit entry.

mod audited;
mod needs;
mod pattern;
mod permissions;
mod verb;

pub use audited::{AuditedAction, audited_action, changed_tasks};
pub use needs::{AccessTarget, for_each_need};
pub use pattern::{NamePattern, PatternError};
pub use permissions::{Denied, Permission, Permissions};
pub use verb::{AccessVerb, Role, VerbSet};

/// The prefix of the tubes that store how many tubes each user has. No pattern includes them: only a
/// user with all rights may use them.
pub const RESERVED_PREFIX: &str = "taskyard.owners.";

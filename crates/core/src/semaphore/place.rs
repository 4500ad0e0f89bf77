//! Where a task stands in a semaphore, and which steps there are.

use std::cmp::Reverse;

use crate::time::Timestamp;

use super::key::{Grant, Priority};

/// What everybody sees of where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// In line.
    Wait,
    /// Yielded, and not in line again yet.
    Delayed,
    /// Holds a grant.
    Acquired,
    /// Holds a grant and was asked to release it.
    TryRelease,
}

impl Status {
    /// All of them.
    pub const ALL: [Status; 4] =
        [Status::Wait, Status::Delayed, Status::Acquired, Status::TryRelease];

    /// The status's name on every face. A grant that is held is `granted`: it may still move until the event `acquired`
    /// tells of it.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Wait => "waiting",
            Status::Delayed => "delayed",
            Status::Acquired => "granted",
            Status::TryRelease => "try_release",
        }
    }

    /// The status's name where it is written down.
    pub const fn stored_name(self) -> &'static str {
        match self {
            Status::Wait => "wait",
            Status::Delayed => "delayed",
            Status::Acquired => "acquired",
            Status::TryRelease => "try_release",
        }
    }

    /// The status of this name.
    pub fn from_name(name: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.name() == name)
    }

    /// The status that is written down under this name.
    pub fn from_stored_name(name: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.stored_name() == name)
    }
}

/// Every step a task may take, and what makes it; `None` is not there.
pub const TRANSITIONS: &[(Option<Status>, &str, Option<Status>)] = &[
    (None, "enqueue", Some(Status::Wait)),
    (Some(Status::Wait), "release", None),
    (Some(Status::Wait), "admit", Some(Status::Acquired)),
    (Some(Status::Delayed), "release", None),
    (Some(Status::Delayed), "tick", Some(Status::Wait)),
    (Some(Status::Acquired), "release", None),
    (Some(Status::Acquired), "yield", Some(Status::Wait)),
    (Some(Status::Acquired), "yield", Some(Status::Delayed)),
    (Some(Status::Acquired), "revoke", Some(Status::TryRelease)),
    // Nobody was told of the grant yet, so nobody needs to be told that it is gone.
    (Some(Status::Acquired), "revoke", Some(Status::Wait)),
    (Some(Status::Acquired), "expire", Some(Status::Wait)),
    (Some(Status::Acquired), "expire", Some(Status::Delayed)),
    (Some(Status::Acquired), "expire", None),
    (Some(Status::TryRelease), "release", None),
    (Some(Status::TryRelease), "yield", Some(Status::Wait)),
    (Some(Status::TryRelease), "yield", Some(Status::Delayed)),
    (Some(Status::TryRelease), "decline", Some(Status::Acquired)),
    (Some(Status::TryRelease), "keep", Some(Status::Acquired)),
    (Some(Status::TryRelease), "force", Some(Status::Wait)),
    (Some(Status::TryRelease), "force", Some(Status::Delayed)),
    (Some(Status::TryRelease), "expire", Some(Status::Wait)),
    (Some(Status::TryRelease), "expire", Some(Status::Delayed)),
    (Some(Status::TryRelease), "expire", None),
];

/// A task in a semaphore, as it is kept and written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// How important it is.
    pub priority: Priority,
    /// Its number in the order of arrival, which decides between equals.
    pub seq: u64,
    /// When it came.
    pub enqueued: Timestamp,
    /// In line, or holding a grant.
    pub stand: Stand,
}

/// In line, or holding a grant. Most wait, so what only holders have stands apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stand {
    /// In line.
    Wait,
    /// In line again at this moment.
    Delayed(Timestamp),
    /// Holds a grant.
    Held(Box<Hold>),
}

/// A grant that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its number.
    pub grant: Grant,
    /// Since when.
    pub granted: Timestamp,
    /// When it ends by itself.
    pub lease_until: Timestamp,
    /// When it ends because nobody acknowledged it.
    pub ack_by: Timestamp,
    /// Asked to release, and when that is repeated or enforced.
    pub revoke_at: Option<Timestamp>,
    /// Declined to release: not asked again as long as that request would stand.
    pub pinned: bool,
}

/// The order of a line: the best first.
pub(super) type Rank = (Reverse<Priority>, u64);

impl Place {
    /// Where it stands, as everybody sees it.
    pub fn status(&self) -> Status {
        match &self.stand {
            Stand::Wait => Status::Wait,
            Stand::Delayed(_) => Status::Delayed,
            Stand::Held(hold) if hold.revoke_at.is_some() => Status::TryRelease,
            Stand::Held(_) => Status::Acquired,
        }
    }

    /// The grant it holds.
    pub fn hold(&self) -> Option<&Hold> {
        match &self.stand {
            Stand::Held(hold) => Some(hold),
            Stand::Wait | Stand::Delayed(_) => None,
        }
    }

    /// Its place among those of the same status.
    pub(super) fn rank(&self) -> Rank {
        (Reverse(self.priority), self.seq)
    }

    /// When time alone next changes something about it.
    pub(super) fn deadline(&self) -> Timestamp {
        match &self.stand {
            Stand::Wait => Timestamp::NEVER,
            Stand::Delayed(until) => *until,
            Stand::Held(hold) => {
                let asked = hold.revoke_at.unwrap_or(Timestamp::NEVER);
                hold.lease_until.min(hold.ack_by).min(asked)
            }
        }
    }
}

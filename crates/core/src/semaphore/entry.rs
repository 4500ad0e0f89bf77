//! The entry of a task in a semaphore, and its transitions.

use std::cmp::Reverse;

use crate::time::Timestamp;

use super::key::{Grant, Priority};

/// The visible status of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Waiting.
    Wait,
    /// Yielded, and not queued again yet.
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

    /// The name of the status in all interfaces. A held grant is `granted`: it may still be
    /// withdrawn until the event `acquired` is sent.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Wait => "waiting",
            Status::Delayed => "delayed",
            Status::Acquired => "granted",
            Status::TryRelease => "try_release",
        }
    }

    /// The name of the status in storage.
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

    /// The status with this name in storage.
    pub fn from_stored_name(name: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.stored_name() == name)
    }
}

/// Every transition of a task, and its cause; `None` is absent.
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
    // The grant was not sent yet, so its withdrawal need not be sent either.
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

/// A task in a semaphore, as it is kept and stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// Its priority.
    pub priority: Priority,
    /// Its number in the order of arrival, which decides between equal priorities.
    pub seq: u64,
    /// When it was enqueued.
    pub enqueued: Timestamp,
    /// Waiting, or holding a grant.
    pub state: EntryState,
}

/// Waiting, or holding a grant. Most tasks wait, so the data of holders is boxed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// Waiting.
    Wait,
    /// Queued again at this moment.
    Delayed(Timestamp),
    /// Holds a grant.
    Held(Box<HeldGrant>),
}

/// A held grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldGrant {
    /// Its number.
    pub grant: Grant,
    /// When it was granted.
    pub granted: Timestamp,
    /// When its lease expires.
    pub lease_until: Timestamp,
    /// When it ends because it was not acknowledged.
    pub ack_by: Timestamp,
    /// Set if the holder was asked to release: when that is repeated or enforced.
    pub revoke_at: Option<Timestamp>,
    /// Declined to release: not asked again as long as that request would hold.
    pub pinned: bool,
}

/// The order of the queue: the best first.
pub(super) type Rank = (Reverse<Priority>, u64);

impl QueueEntry {
    /// Its visible status.
    pub fn status(&self) -> Status {
        match &self.state {
            EntryState::Wait => Status::Wait,
            EntryState::Delayed(_) => Status::Delayed,
            EntryState::Held(hold) if hold.revoke_at.is_some() => Status::TryRelease,
            EntryState::Held(_) => Status::Acquired,
        }
    }

    /// The grant it holds.
    pub fn hold(&self) -> Option<&HeldGrant> {
        match &self.state {
            EntryState::Held(hold) => Some(hold),
            EntryState::Wait | EntryState::Delayed(_) => None,
        }
    }

    /// Its rank among tasks of the same status.
    pub(super) fn rank(&self) -> Rank {
        (Reverse(self.priority), self.seq)
    }

    /// When its next change is due.
    pub(super) fn deadline(&self) -> Timestamp {
        match &self.state {
            EntryState::Wait => Timestamp::NEVER,
            EntryState::Delayed(until) => *until,
            EntryState::Held(hold) => {
                let asked = hold.revoke_at.unwrap_or(Timestamp::NEVER);
                hold.lease_until.min(hold.ack_by).min(asked)
            }
        }
    }
}

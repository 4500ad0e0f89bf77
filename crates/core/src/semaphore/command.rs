//! The commands of semaphores and their replies.

use std::fmt;

use crate::error::{Error, Result};
use crate::limits::BATCH_TASKS_MAX;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};
use crate::tube::TubeName;

use super::entry::Status;
use super::gated::OWN_TASK_MAX;
use super::key::{Grant, MemberCursor, Priority, SemaphoreKey};
use super::options::{SemaphoreChange, SemaphoreOptions};

/// A command to a semaphore: it takes effect as a whole or, when the reply is an error, not at all.
#[derive(Clone, Debug, PartialEq)]
pub enum SemaphoreCommand {
    /// Creates a semaphore or changes it. Replies with [`SemaphoreReply::Semaphores`] with that
    /// one.
    Configure {
        /// The semaphore.
        key: SemaphoreKey,
        /// The change, or how a new one differs from the defaults.
        change: Box<SemaphoreChange>,
        /// Leave an existing one unchanged; refused if a given option differs from it.
        only_new: bool,
    },
    /// Enqueues tasks, or changes the priority of tasks that wait or hold a grant. Replies with
    /// [`SemaphoreReply::MemberInfos`], in the order of the entries.
    Enqueue {
        /// The semaphore.
        key: SemaphoreKey,
        /// The tasks with their priorities.
        entries: Vec<EnqueueItem>,
    },
    /// Ends or extends grants. Replies with [`SemaphoreReply::Finished`] with an outcome for each
    /// item.
    Finish {
        /// The semaphore.
        key: SemaphoreKey,
        /// What to do with which grant.
        items: Vec<GrantItem>,
    },
    /// Shows the status of tasks; unknown ones are omitted. Replies with
    /// [`SemaphoreReply::MemberInfos`].
    Peek {
        /// The semaphore.
        key: SemaphoreKey,
        /// The tasks.
        tasks: Vec<TaskId>,
    },
    /// Shows the tasks that hold a grant or wait for one, the best first, one page at a time.
    /// Replies with [`SemaphoreReply::Members`].
    Members {
        /// The semaphore.
        key: SemaphoreKey,
        /// Holders or waiting tasks.
        part: MemberGroup,
        /// Only those behind this one: the end of the previous page.
        after: Option<MemberCursor>,
        /// Maximum number of tasks.
        count: usize,
    },
    /// Removes a semaphore with its events. Refused while it gates a tube and, unless forced, while
    /// tasks hold its grants or wait for them. No later semaphore of this key issues a grant with
    /// the same number. Replies with [`SemaphoreReply::Dropped`].
    Drop {
        /// The semaphore.
        key: SemaphoreKey,
        /// Even if tasks hold its grants or wait for them: they are removed without an event.
        force: bool,
    },
    /// Shows one semaphore or all, by key. Replies with [`SemaphoreReply::Semaphores`].
    List {
        /// The semaphore; `None` is all.
        key: Option<SemaphoreKey>,
    },
    /// Fetches due events, to be acknowledged; unacknowledged ones are sent again. Replies with
    /// [`SemaphoreReply::Events`].
    Events {
        /// The semaphore; `None` is all.
        key: Option<SemaphoreKey>,
        /// Maximum number of events.
        count: usize,
        /// How long to wait for the first event. The rules reply at once; the engine waits.
        wait: Span,
    },
    /// Acknowledges events. Replies with [`SemaphoreReply::Acknowledged`].
    Acknowledge {
        /// The events; unknown ones are ignored.
        events: Vec<EventId>,
    },
}

/// A task to enqueue, with its priority.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EnqueueItem {
    /// The task.
    pub task: TaskId,
    /// A larger number is more important. Not validated yet.
    pub priority: f64,
}

/// What to do with one grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantItem {
    /// The task.
    pub task: TaskId,
    /// The grant; `None` is the current one, or the task's entry in the queue.
    pub grant: Option<Grant>,
    /// What to do.
    pub finish: GrantFinish,
}

/// How a grant ends or continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantFinish {
    /// The task is done or no longer interested: remove it.
    Release,
    /// Let others go first: back into the queue, with the old priority and sequence number.
    Yield,
    /// Cannot release now: keep the grant. The holder is not asked again as long as this request
    /// would hold.
    Decline,
    /// Extend the grant to this long from now.
    Extend(Span),
}

impl GrantFinish {
    /// The name of the verb in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            GrantFinish::Release => "release",
            GrantFinish::Yield => "yield",
            GrantFinish::Decline => "decline",
            GrantFinish::Extend(_) => "extend",
        }
    }
}

/// The outcome of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantOutcome {
    /// Done.
    Done,
    /// The task exists, but the grant is not its current one.
    Stale,
    /// No such task in this semaphore.
    Missing,
    /// Nothing was declined: the holder was not asked to release.
    NotAsked,
}

impl GrantOutcome {
    /// The name of the outcome in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            GrantOutcome::Done => "done",
            GrantOutcome::Stale => "stale",
            GrantOutcome::Missing => "missing",
            GrantOutcome::NotAsked => "not_asked",
        }
    }
}

/// The status of a task after the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// The task.
    pub task: TaskId,
    /// Waiting, or holding a grant.
    pub status: Status,
    /// Its priority.
    pub priority: Priority,
    /// When it was enqueued.
    pub enqueued: Timestamp,
    /// When a task that yielded is queued again.
    pub not_before: Option<Timestamp>,
    /// The number of its grant.
    pub grant: Option<Grant>,
    /// Since when it holds the grant.
    pub granted: Option<Timestamp>,
    /// When the grant expires.
    pub lease_until: Option<Timestamp>,
    /// Whether it declined to release, and that request would still hold: it is not asked again
    /// meanwhile.
    pub pinned: bool,
}

/// The two groups of members of a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberGroup {
    /// Tasks that hold a grant.
    Holders,
    /// Tasks that wait for one.
    Waiting,
}

impl MemberGroup {
    /// All of them.
    pub const ALL: [MemberGroup; 2] = [MemberGroup::Holders, MemberGroup::Waiting];

    /// The name of the group in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            MemberGroup::Holders => "holders",
            MemberGroup::Waiting => "waiting",
        }
    }

    /// The group with this name.
    pub fn from_name(name: &str) -> Option<MemberGroup> {
        MemberGroup::ALL.into_iter().find(|part| part.name() == name)
    }
}

/// One task of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The tube of the task, if the semaphore gates one.
    pub tube: Option<TubeName>,
    /// Its status.
    pub info: MemberInfo,
}

/// One page of members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembersPage {
    /// The tasks, the best first.
    pub members: Vec<Member>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<MemberCursor>,
}

/// A semaphore, as replies show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreInfo {
    /// Its key.
    pub key: SemaphoreKey,
    /// Its options.
    pub options: SemaphoreOptions,
    /// The number of waiting tasks.
    pub waiting: u64,
    /// The number of tasks that yielded and are not queued again yet.
    pub delayed: u64,
    /// The number of holders that were not asked to release.
    pub acquired: u64,
    /// The number of holders that were asked to release.
    pub revoking: u64,
    /// The number of unacknowledged events.
    pub events: u64,
    /// When the next of them is sent, or could have been sent since.
    pub next_event: Option<Timestamp>,
}

/// The id of an event: never used twice by a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An event for the holder of a grant. Delivered at least once: (semaphore, task, grant, kind)
/// identifies repetitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreEvent {
    /// Its id, for the acknowledgement.
    pub id: EventId,
    /// The semaphore.
    pub semaphore: SemaphoreKey,
    /// The tube of the task, if the semaphore gates one.
    pub tube: Option<TubeName>,
    /// The task.
    pub task: TaskId,
    /// The grant.
    pub grant: Grant,
    /// What happened.
    pub kind: EventKind,
    /// The number of this delivery, from 1.
    pub attempt: u32,
}

/// What happened to a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// The task holds a grant now.
    Acquired,
    /// Better tasks wait: please release or yield.
    TryRelease,
    /// No need to release any more.
    Keep,
    /// The grant was revoked, because the grace period was over.
    Revoked,
    /// The grant has ended, because its lease expired or it was not acknowledged.
    Expired,
}

impl EventKind {
    /// All of them.
    pub const ALL: [EventKind; 5] = [
        EventKind::Acquired,
        EventKind::TryRelease,
        EventKind::Keep,
        EventKind::Revoked,
        EventKind::Expired,
    ];

    /// The name of the kind in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::Acquired => "acquired",
            EventKind::TryRelease => "try_release",
            EventKind::Keep => "keep",
            EventKind::Revoked => "revoked",
            EventKind::Expired => "expired",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The reply of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum SemaphoreReply {
    /// Reply to `Configure` and `List`.
    Semaphores(Vec<SemaphoreInfo>),
    /// Reply to `Enqueue` and `Peek`.
    MemberInfos(Vec<MemberInfo>),
    /// Reply to `Members`.
    Members(MembersPage),
    /// Reply to `Drop`.
    Dropped,
    /// Reply to `Finish`, in the order of the items.
    Finished(Vec<GrantOutcome>),
    /// Reply to `Events`: possibly none.
    Events(Vec<SemaphoreEvent>),
    /// Reply to `Acknowledge`: how many events existed.
    Acknowledged(u64),
}

impl SemaphoreCommand {
    /// The verb's name, for messages and metrics.
    pub const fn verb(&self) -> &'static str {
        match self {
            SemaphoreCommand::Configure { .. } => "semaphore_configure",
            SemaphoreCommand::Enqueue { .. } => "semaphore_enqueue",
            SemaphoreCommand::Finish { .. } => "semaphore_finish",
            SemaphoreCommand::Peek { .. } => "semaphore_peek",
            SemaphoreCommand::Members { .. } => "semaphore_members",
            SemaphoreCommand::Drop { .. } => "semaphore_drop",
            SemaphoreCommand::List { .. } => "semaphore_list",
            SemaphoreCommand::Events { .. } => "semaphore_events",
            SemaphoreCommand::Acknowledge { .. } => "semaphore_acknowledge",
        }
    }

    /// The number of tasks that the command affects.
    pub fn items(&self) -> usize {
        match self {
            SemaphoreCommand::Enqueue { entries, .. } => entries.len(),
            SemaphoreCommand::Finish { items, .. } => items.len(),
            SemaphoreCommand::Peek { tasks, .. } => tasks.len(),
            SemaphoreCommand::Acknowledge { events } => events.len(),
            SemaphoreCommand::Events { count, .. } | SemaphoreCommand::Members { count, .. } => {
                *count
            }
            SemaphoreCommand::Configure { .. }
            | SemaphoreCommand::List { .. }
            | SemaphoreCommand::Drop { .. } => 1,
        }
    }

    /// Refuses a reply that shows an existing semaphore with other options than requested: stores
    /// that do not run these rules leave an existing one unchanged, and call this.
    pub fn check_kept(&self, reply: &SemaphoreReply) -> Result<()> {
        match (self, reply) {
            (
                SemaphoreCommand::Configure { key, change, only_new: true },
                SemaphoreReply::Semaphores(infos),
            ) => infos.iter().try_for_each(|info| change.check_same(key, &info.options)),
            _ => Ok(()),
        }
    }

    /// Refuses what is invalid for any semaphore. Stores that do not run these rules call this
    /// first.
    pub fn check(&self) -> Result<()> {
        let size = self.items();
        if size > BATCH_TASKS_MAX {
            let (what, limit) = ("the number of tasks in one command", BATCH_TASKS_MAX);
            let advice = "send them in several commands";
            return Err(Error::TooLarge { what, size, limit, advice });
        }
        match self {
            SemaphoreCommand::Enqueue { entries, .. } => {
                check_tasks(entries.iter().map(|wish| wish.task))?;
                entries.iter().try_for_each(|wish| Priority::new(wish.priority).map(drop))
            }
            SemaphoreCommand::Finish { items, .. } => {
                check_tasks(items.iter().map(|item| item.task))
            }
            SemaphoreCommand::Peek { tasks, .. } => check_tasks(tasks.iter().copied()),
            SemaphoreCommand::Configure { change, .. } => change.check(),
            _ => Ok(()),
        }
    }
}

/// Refuses task numbers beyond those that callers may use.
fn check_tasks(mut tasks: impl Iterator<Item = TaskId>) -> Result<()> {
    match tasks.find(|task| task.0 > OWN_TASK_MAX) {
        Some(task) => {
            let text = format!("the number of a task may be at most {OWN_TASK_MAX}, not {task}");
            Err(Error::Invalid(text))
        }
        None => Ok(()),
    }
}

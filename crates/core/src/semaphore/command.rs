//! What can be asked of semaphores, and what they answer.

use std::fmt;

use crate::error::{Error, Result};
use crate::limits::BATCH_TASKS_MAX;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};
use crate::tube::TubeName;

use super::gated::OWN_TASK_MAX;
use super::key::{Grant, Priority, SemaphoreKey};
use super::options::{SemaphoreChange, SemaphoreOptions};
use super::place::Status;

/// One thing asked of a semaphore: it takes effect as a whole or, when it answers an error, not at all.
#[derive(Clone, Debug, PartialEq)]
pub enum SemaphoreCommand {
    /// Make a semaphore or change it. Answers [`SemaphoreReply::Semaphores`] with that one.
    Configure {
        /// Which one.
        key: SemaphoreKey,
        /// What to change, or how a new one differs from the defaults.
        change: Box<SemaphoreChange>,
        /// Leave one that is there as it is.
        only_new: bool,
    },
    /// Stand in line, or change the priority of who stands there or holds a grant already. Answers
    /// [`SemaphoreReply::Standings`], in the order of the wishes.
    Enqueue {
        /// Which semaphore.
        key: SemaphoreKey,
        /// Who, with which priority.
        wishes: Vec<Wish>,
    },
    /// End or prolong grants. Answers [`SemaphoreReply::Finished`] with an outcome for each item.
    Finish {
        /// Which semaphore.
        key: SemaphoreKey,
        /// What to do with which grant.
        items: Vec<GrantItem>,
    },
    /// Show where tasks stand; those that are not there are left out. Answers
    /// [`SemaphoreReply::Standings`].
    Look {
        /// Which semaphore.
        key: SemaphoreKey,
        /// Which tasks.
        tasks: Vec<TaskId>,
    },
    /// Show one semaphore or all, by key. Answers [`SemaphoreReply::Semaphores`].
    List {
        /// Which one; `None` is all.
        key: Option<SemaphoreKey>,
    },
    /// Fetch events that are due, to be acknowledged; what is not comes again. Answers
    /// [`SemaphoreReply::Events`].
    Events {
        /// Of which semaphore; `None` is all.
        key: Option<SemaphoreKey>,
        /// At most how many.
        count: usize,
        /// How long to wait for the first. The rules answer at once; who runs them waits.
        wait: Span,
    },
    /// Say that events have arrived. Answers [`SemaphoreReply::Acknowledged`].
    Acknowledge {
        /// Which ones; those that are not there do no harm.
        events: Vec<EventId>,
    },
}

/// Who wants to hold a grant, and how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    /// Which task.
    pub task: TaskId,
    /// Larger is more important. As it came from outside: not checked yet.
    pub priority: f64,
}

/// What to do with one grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantItem {
    /// Which task.
    pub task: TaskId,
    /// Which of its grants; `None` is the current one, or its place in line.
    pub grant: Option<Grant>,
    /// What to do.
    pub finish: GrantFinish,
}

/// How a grant ends or goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantFinish {
    /// Done with it, or no longer interested: leave.
    Release,
    /// Let others go first: back into the line, with the old priority and seniority.
    Yield,
    /// Cannot release now: keep it. Not asked again as long as this request would stand.
    Decline,
    /// Let the grant last this long from now.
    Extend(Span),
}

impl GrantFinish {
    /// The verb's name on every face.
    pub const fn name(self) -> &'static str {
        match self {
            GrantFinish::Release => "release",
            GrantFinish::Yield => "yield",
            GrantFinish::Decline => "decline",
            GrantFinish::Extend(_) => "extend",
        }
    }
}

/// What became of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantOutcome {
    /// It was done.
    Done,
    /// The task is there, but the grant is not its current one.
    Stale,
    /// No such task in this semaphore.
    Missing,
    /// Nothing was declined: the holder was not asked to release.
    NotAsked,
}

impl GrantOutcome {
    /// The outcome's name on every face.
    pub const fn name(self) -> &'static str {
        match self {
            GrantOutcome::Done => "done",
            GrantOutcome::Stale => "stale",
            GrantOutcome::Missing => "missing",
            GrantOutcome::NotAsked => "not_asked",
        }
    }
}

/// Where a task stands after the command that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which task.
    pub task: TaskId,
    /// In line, or holding a grant.
    pub status: Status,
    /// How important it is.
    pub priority: Priority,
    /// When it came.
    pub enqueued: Timestamp,
    /// When it stands in line again, for one that yielded.
    pub not_before: Option<Timestamp>,
    /// The number of its grant.
    pub grant: Option<Grant>,
    /// Since when it holds the grant.
    pub granted: Option<Timestamp>,
    /// When the grant ends by itself.
    pub lease_until: Option<Timestamp>,
    /// Whether it declined to release, and that request would still stand: it is not asked again meanwhile.
    pub pinned: bool,
}

/// A semaphore as answers show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreInfo {
    /// Its key.
    pub key: SemaphoreKey,
    /// What it does.
    pub options: SemaphoreOptions,
    /// How many stand in line.
    pub waiting: u64,
    /// How many yielded and will stand in line again.
    pub delayed: u64,
    /// How many hold a grant and were not asked to release.
    pub acquired: u64,
    /// How many hold a grant and were asked to release.
    pub revoking: u64,
    /// How many events are not acknowledged yet.
    pub events: u64,
    /// When the next of them is handed out, or could have been since.
    pub next_event: Option<Timestamp>,
}

/// The number of an event: never used twice by a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a holder is told. Delivered at least once: (semaphore, task, grant, kind) tells repetitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreEvent {
    /// Its number, to be acknowledged.
    pub id: EventId,
    /// Of which semaphore.
    pub semaphore: SemaphoreKey,
    /// The tube of the task, where the semaphore is before a tube.
    pub tube: Option<TubeName>,
    /// For which task.
    pub task: TaskId,
    /// About which grant.
    pub grant: Grant,
    /// What happened.
    pub kind: EventKind,
    /// The how-manieth delivery this is, from 1.
    pub attempt: u32,
}

/// What happened to a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// The task may go on: it holds a grant now.
    Acquired,
    /// Better tasks wait: please release or yield.
    TryRelease,
    /// No need to release any more.
    Keep,
    /// The grant was taken away, because the grace was over.
    Revoked,
    /// The grant has ended, because its lease was over or nobody acknowledged it.
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

    /// The kind's name on every face.
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

/// What a command answers.
#[derive(Clone, Debug, PartialEq)]
pub enum SemaphoreReply {
    /// To `Configure` and `List`.
    Semaphores(Vec<SemaphoreInfo>),
    /// To `Enqueue` and `Look`.
    Standings(Vec<Standing>),
    /// To `Finish`, in the order of the items.
    Finished(Vec<GrantOutcome>),
    /// To `Events`: perhaps none.
    Events(Vec<SemaphoreEvent>),
    /// To `Acknowledge`: how many were there.
    Acknowledged(u64),
}

impl SemaphoreCommand {
    /// The verb's name, for messages and metrics.
    pub const fn verb(&self) -> &'static str {
        match self {
            SemaphoreCommand::Configure { .. } => "semaphore_configure",
            SemaphoreCommand::Enqueue { .. } => "semaphore_enqueue",
            SemaphoreCommand::Finish { .. } => "semaphore_finish",
            SemaphoreCommand::Look { .. } => "semaphore_look",
            SemaphoreCommand::List { .. } => "semaphore_list",
            SemaphoreCommand::Events { .. } => "semaphore_events",
            SemaphoreCommand::Acknowledge { .. } => "semaphore_acknowledge",
        }
    }

    /// How many tasks the command is about.
    pub fn items(&self) -> usize {
        match self {
            SemaphoreCommand::Enqueue { wishes, .. } => wishes.len(),
            SemaphoreCommand::Finish { items, .. } => items.len(),
            SemaphoreCommand::Look { tasks, .. } => tasks.len(),
            SemaphoreCommand::Acknowledge { events } => events.len(),
            SemaphoreCommand::Events { count, .. } => *count,
            SemaphoreCommand::Configure { .. } | SemaphoreCommand::List { .. } => 1,
        }
    }

    /// Refuses what is wrong whatever the semaphore is like. Stores that do not run the rules themselves ask this
    /// first.
    pub fn check(&self) -> Result<()> {
        let size = self.items();
        if size > BATCH_TASKS_MAX {
            let (what, limit) = ("the number of tasks in one command", BATCH_TASKS_MAX);
            let advice = "send them in several commands";
            return Err(Error::TooLarge { what, size, limit, advice });
        }
        match self {
            SemaphoreCommand::Enqueue { wishes, .. } => {
                check_tasks(wishes.iter().map(|wish| wish.task))?;
                wishes.iter().try_for_each(|wish| Priority::new(wish.priority).map(drop))
            }
            SemaphoreCommand::Finish { items, .. } => {
                check_tasks(items.iter().map(|item| item.task))
            }
            SemaphoreCommand::Look { tasks, .. } => check_tasks(tasks.iter().copied()),
            SemaphoreCommand::Configure { change, .. } => change.check(),
            _ => Ok(()),
        }
    }
}

/// Refuses numbers beyond those that callers may give.
fn check_tasks(mut tasks: impl Iterator<Item = TaskId>) -> Result<()> {
    match tasks.find(|task| task.0 > OWN_TASK_MAX) {
        Some(task) => {
            let text = format!("the number of a task may be at most {OWN_TASK_MAX}, not {task}");
            Err(Error::Invalid(text))
        }
        None => Ok(()),
    }
}

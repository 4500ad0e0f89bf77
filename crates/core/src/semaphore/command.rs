//! What can be asked of semaphores, and what they answer.

use std::fmt;

use crate::error::{Error, Result};
use crate::limits::BATCH_TASKS_MAX;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};
use crate::tube::TubeName;

use super::gated::OWN_TASK_MAX;
use super::key::{Grant, LineCursor, Priority, SemaphoreKey};
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
        /// Leave one that is there as it is; refused where a named option differs from it.
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
    /// Show the tasks that hold a grant or wait for one, the best first, a page at a time. Answers [`SemaphoreReply::Members`].
    Members {
        /// Which semaphore.
        key: SemaphoreKey,
        /// Whom to show.
        part: LinePart,
        /// Only those behind this one: where the page before ended.
        after: Option<LineCursor>,
        /// At most how many.
        count: usize,
    },
    /// Remove a semaphore with its events. Refused while a tube is behind it and, unless forced, while tasks hold its grants
    /// or wait for them. No later semaphore of this key gives a grant of the same number. Answers
    /// [`SemaphoreReply::Dropped`].
    Drop {
        /// Which semaphore.
        key: SemaphoreKey,
        /// Although tasks hold its grants or wait for them: they are removed without an event.
        force: bool,
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

/// Which part of a line to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinePart {
    /// Tasks that hold a grant.
    Holders,
    /// Tasks that wait for one.
    Waiting,
}

impl LinePart {
    /// All of them.
    pub const ALL: [LinePart; 2] = [LinePart::Holders, LinePart::Waiting];

    /// The part's name on every face.
    pub const fn name(self) -> &'static str {
        match self {
            LinePart::Holders => "holders",
            LinePart::Waiting => "waiting",
        }
    }

    /// The part of this name.
    pub fn from_name(name: &str) -> Option<LinePart> {
        LinePart::ALL.into_iter().find(|part| part.name() == name)
    }
}

/// One task of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The tube of the task, where the semaphore is before a tube.
    pub tube: Option<TubeName>,
    /// Where it stands.
    pub standing: Standing,
}

/// A part of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembersPage {
    /// The tasks, the best first.
    pub members: Vec<Member>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<LineCursor>,
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
    /// To `Members`.
    Members(MembersPage),
    /// To `Drop`.
    Dropped,
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
            SemaphoreCommand::Members { .. } => "semaphore_members",
            SemaphoreCommand::Drop { .. } => "semaphore_drop",
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
            SemaphoreCommand::Events { count, .. } | SemaphoreCommand::Members { count, .. } => {
                *count
            }
            SemaphoreCommand::Configure { .. }
            | SemaphoreCommand::List { .. }
            | SemaphoreCommand::Drop { .. } => 1,
        }
    }

    /// Refuses an answer that shows a semaphore which was to be made and is another: stores that do not run the rules
    /// themselves leave one that is there as it is, and ask this.
    pub fn check_kept(&self, reply: &SemaphoreReply) -> Result<()> {
        match (self, reply) {
            (
                SemaphoreCommand::Configure { key, change, only_new: true },
                SemaphoreReply::Semaphores(infos),
            ) => infos.iter().try_for_each(|info| change.check_same(key, &info.options)),
            _ => Ok(()),
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

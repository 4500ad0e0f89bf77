//! What can be asked of a queue, and what it answers.
//!
//! The machine applies commands, stores take batches of them, the wire encodes them.

use std::sync::Arc;

use crate::lease::Lease;
use crate::semaphore::{Priority, SemaphoreCommand, SemaphoreReply};
use crate::session::SessionId;
use crate::state::State;
use crate::stats::TubeStats;
use crate::task::{Body, Task, TaskId};
use crate::time::{Span, Timestamp};
use crate::tube::{TubeChange, TubeName, TubeOptions};

/// One thing asked of the queue. A command is atomic: it takes effect as a whole or, when it
/// answers an error, not at all.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Make a tube. Answers [`Reply::Created`].
    CreateTube {
        /// Its name.
        tube: TubeName,
        /// What it does.
        options: TubeOptions,
        /// Leave an existing tube of that name as it is instead of answering an error.
        if_not_exists: bool,
    },
    /// Change a tube, pause it or resume it. Answers [`Reply::Tubes`] with that tube.
    AlterTube {
        /// Which tube.
        tube: TubeName,
        /// What to change.
        change: TubeChange,
    },
    /// Give a tube another name, perhaps the one it has, and, if it has none yet, its permanent number. Its tasks
    /// stay, taken ones too. Answers [`Reply::Tubes`] with that tube.
    NameTube {
        /// Which tube.
        tube: TubeName,
        /// What it is called from now on.
        name: TubeName,
        /// The number of the queue that it is; `None` leaves it as it is.
        queue_num: Option<u32>,
    },
    /// Remove a tube with its tasks; refused while tasks are taken. Answers [`Reply::Nothing`].
    DropTube {
        /// Which tube.
        tube: TubeName,
    },
    /// Show one tube or all, by name. Answers [`Reply::Tubes`].
    Tubes {
        /// Which tube; `None` is all.
        tube: Option<TubeName>,
    },
    /// Add tasks: all or none. Answers [`Reply::Put`].
    Put {
        /// Where to.
        tube: TubeName,
        /// What to add.
        tasks: Vec<NewTask>,
        /// How long to wait for room in a full tube. The machine answers at once; who runs it waits.
        wait: Span,
    },
    /// Deliver tasks. Answers [`Reply::Taken`].
    Take(Take),
    /// End or prolong deliveries. Answers [`Reply::Finished`] with an outcome for each item.
    Finish {
        /// Which tube.
        tube: TubeName,
        /// What to do with which delivery.
        items: Vec<FinishItem>,
        /// Whether the outcomes show the tasks.
        show: bool,
    },
    /// Bring buried tasks back, lowest (pri, id) first. Answers [`Reply::Kicked`].
    Kick {
        /// Which tube.
        tube: TubeName,
        /// At most how many.
        count: u64,
    },
    /// Remove tasks, whoever holds them. Answers [`Reply::Finished`].
    Delete {
        /// Which tube.
        tube: TubeName,
        /// Which tasks.
        ids: Vec<TaskId>,
        /// Whether the outcomes show the tasks.
        show: bool,
    },
    /// Show tasks; those that are not there are left out. Answers [`Reply::Tasks`].
    Peek {
        /// Which tube.
        tube: TubeName,
        /// Which tasks.
        ids: Vec<TaskId>,
    },
    /// Show who holds what, by id. Answers [`Reply::Tasks`] without bodies.
    Deliveries {
        /// Which tube.
        tube: TubeName,
        /// At most how many.
        count: usize,
    },
    /// Remove all tasks of a tube, taken ones too. Answers [`Reply::Nothing`].
    Truncate {
        /// Which tube.
        tube: TubeName,
    },
    /// Give back every taken task of a tube. Answers [`Reply::Nothing`].
    ReleaseAll {
        /// Which tube.
        tube: TubeName,
    },
    /// Begin a session, or join a live one: one more connection of it. Answers [`Reply::Session`].
    JoinSession {
        /// Which session. The caller chooses the identity of a new one.
        session: SessionId,
        /// Whether it may be new.
        create: bool,
    },
    /// One connection of a session is gone. With the last one its tasks are given back: at once, or
    /// when the time set by [`Command::ConfigureSessions`] has passed. Answers [`Reply::Nothing`].
    LeaveSession {
        /// Which session.
        session: SessionId,
    },
    /// How long a session without connections keeps its tasks. Answers [`Reply::Nothing`].
    ConfigureSessions {
        /// That long.
        ttr: Span,
    },
    /// Ask a semaphore. Answers [`Reply::Semaphore`].
    Semaphore(SemaphoreCommand),
    /// Let time do what is due: delays end, leases run out, tasks expire, sessions end.
    /// Answers [`Reply::Ticked`].
    Tick {
        /// At most how many tasks to move.
        limit: usize,
    },
}

/// A task to be added. What is `None` comes from the tube.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTask {
    /// What it carries.
    pub body: Body,
    /// Smaller goes first.
    pub pri: Option<u64>,
    /// Remove it when nobody took it in this time. A delay does not count.
    pub ttl: Option<Span>,
    /// Give it back when its holder does not answer in this time.
    pub ttr: Option<Span>,
    /// Not ready before this time has passed.
    pub delay: Option<Span>,
    /// Not ready before this moment; refused together with `delay`, and wins over the tube's.
    pub at: Option<Timestamp>,
    /// Its sub-queue, in tubes that have them.
    pub subqueue: Option<Arc<str>>,
    /// How important it is to the semaphore before the tube, instead of what `pri` says; larger goes first. Refused
    /// where the tube has none.
    pub semaphore_priority: Option<Priority>,
}

impl NewTask {
    /// A task with this body and the tube's defaults.
    pub fn new(body: Body) -> Self {
        NewTask {
            body,
            pri: None,
            ttl: None,
            ttr: None,
            delay: None,
            at: None,
            subqueue: None,
            semaphore_priority: None,
        }
    }
}

/// How to deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// From where.
    pub tube: TubeName,
    /// At most how many; at most one of each sub-queue.
    pub count: usize,
    /// Who takes: the tasks return when this session ends. Without a session only the lease time
    /// and the lease number guard a delivery.
    pub session: Option<SessionId>,
    /// How long the delivery may last, instead of each task's ttr.
    pub lease: Option<Span>,
    /// How long to wait for the first task. The machine answers at once; who runs it waits.
    pub wait: Span,
}

/// One delivery to end or prolong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishItem {
    /// Which task.
    pub id: TaskId,
    /// Who says so.
    pub holder: Holder,
    /// What to do.
    pub finish: Finish,
}

/// Who claims to hold a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Whoever knows the number of the current delivery.
    Lease(Lease),
    /// The session that took it.
    Session(SessionId),
    /// Anybody, as long as the task is taken. Bury accepts this in every state.
    Any,
}

/// How a delivery ends or goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Done: remove the task.
    Ack,
    /// Give it back.
    Release {
        /// Not ready before this time has passed; zero is ready at once.
        delay: Span,
        /// Whether this delivery counts as an attempt.
        counted: bool,
    },
    /// Put it aside.
    Bury,
    /// Ask for this much more time.
    Touch(Span),
}

/// What became of one item of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done; here is the task after it, if the command said `show`.
    Done(Option<Box<Task>>),
    /// The task is there, but the claimed delivery is not the current one.
    Stale,
    /// No such task.
    Missing,
}

/// A task that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its number in the tube.
    pub id: TaskId,
    /// Ready or delayed.
    pub state: State,
}

/// A tube as answers show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TubeInfo {
    /// Its name.
    pub name: TubeName,
    /// Its number in the store.
    pub number: u32,
    /// What it does.
    pub options: TubeOptions,
    /// What it has and what was done to it.
    pub stats: TubeStats,
    /// Ready tasks that could be delivered right now.
    pub takeable: u64,
    /// When time alone next changes something in it.
    pub next_wakeup: Option<Timestamp>,
    /// Since when the task waits that has been ready for longest of those that no other task of their sub-queue keeps
    /// waiting. At most [`OLDEST_LOOKED_MAX`](crate::limits::OLDEST_LOOKED_MAX) are looked at.
    pub oldest_ready: Option<Timestamp>,
}

/// What a command answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Done, nothing to tell.
    Nothing,
    /// To `CreateTube`: whether the tube is new.
    Created(bool),
    /// To `Tubes`, `AlterTube` and `NameTube`.
    Tubes(Vec<TubeInfo>),
    /// To `Put`, in the order of the tasks.
    Put(Vec<Placed>),
    /// To `Take`: perhaps none.
    Taken(Vec<Task>),
    /// To `Finish` and `Delete`, in the order of the items.
    Finished(Vec<Outcome>),
    /// To `Kick`: how many came back.
    Kicked(u64),
    /// To `Peek` and `Deliveries`.
    Tasks(Vec<Task>),
    /// To `JoinSession`.
    Session(SessionId),
    /// To `Semaphore`.
    Semaphore(SemaphoreReply),
    /// To `Tick`: how many tasks, sessions and semaphores moved.
    Ticked(usize),
}

impl Command {
    /// The verb's name, for messages and metrics.
    pub const fn verb(&self) -> &'static str {
        match self {
            Command::CreateTube { .. } => "create",
            Command::AlterTube { .. } => "alter",
            Command::NameTube { .. } => "name",
            Command::DropTube { .. } => "drop",
            Command::Tubes { .. } => "tubes",
            Command::Put { .. } => "put",
            Command::Take(_) => "take",
            Command::Finish { .. } => "finish",
            Command::Kick { .. } => "kick",
            Command::Delete { .. } => "delete",
            Command::Peek { .. } => "peek",
            Command::Deliveries { .. } => "deliveries",
            Command::Truncate { .. } => "truncate",
            Command::ReleaseAll { .. } => "release_all",
            Command::JoinSession { .. } => "join_session",
            Command::LeaveSession { .. } => "leave_session",
            Command::ConfigureSessions { .. } => "configure_sessions",
            Command::Semaphore(command) => command.verb(),
            Command::Tick { .. } => "tick",
        }
    }

    /// How many payload bytes the command carries.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Command::Put { tasks, .. } => tasks.iter().map(|task| task.body.footprint()).sum(),
            _ => 0,
        }
    }
}

//! The commands of a queue and their replies.
//!
//! The machine applies commands, stores execute batches of them, the wire encodes them.

use std::sync::Arc;

use crate::estimate::Position;
use crate::failure::stored_error;
use crate::key::{Key, KeyRequest};
use crate::lease::Lease;
use crate::search::{Found, Search};
use crate::semaphore::{Priority, SemaphoreCommand, SemaphoreReply};
use crate::session::SessionId;
use crate::state::{State, StateSet};
use crate::stats::TubeStats;
use crate::stored_schedule::{ScheduleCommand, ScheduleReply};
use crate::task::{Body, Task, TaskId};
use crate::time::{Span, Timestamp};
use crate::tube::{TubeChange, TubeName, TubeOptions};

/// A command to the queue. It is atomic: it takes effect as a whole or, when the reply is an error,
/// not at all.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Creates a tube. Replies with [`Reply::Created`].
    CreateTube {
        /// Its name.
        tube: TubeName,
        /// Its options.
        options: TubeOptions,
        /// Leave an existing tube of that name unchanged instead of replying with an error.
        if_not_exists: bool,
    },
    /// Changes, pauses or resumes a tube. Replies with [`Reply::Tubes`] with that tube.
    AlterTube {
        /// The tube.
        tube: TubeName,
        /// What to change.
        change: TubeChange,
    },
    /// Renames a tube, possibly to its current name, and sets its permanent queue number if it has
    /// none yet. Its tasks stay, taken ones too. Replies with [`Reply::Tubes`] with that tube.
    NameTube {
        /// The tube.
        tube: TubeName,
        /// Its new name.
        name: TubeName,
        /// The permanent queue number; `None` leaves it unchanged.
        queue_num: Option<u32>,
    },
    /// Removes a tube with its tasks; refused while tasks are taken. Replies with
    /// [`Reply::Nothing`].
    DropTube {
        /// The tube.
        tube: TubeName,
    },
    /// Shows one tube or all, by name. Replies with [`Reply::Tubes`].
    Tubes {
        /// The tube; `None` is all.
        tube: Option<TubeName>,
    },
    /// Adds tasks: all or none. Replies with [`Reply::Put`].
    Put {
        /// The tube.
        tube: TubeName,
        /// The tasks to add.
        tasks: Vec<NewTask>,
        /// How long to wait for capacity in a full tube. The machine replies at once; the engine
        /// waits.
        wait: Span,
    },
    /// Delivers tasks. Replies with [`Reply::Taken`].
    Take(Take),
    /// Ends or extends deliveries. Replies with [`Reply::Finished`] with an outcome for each item.
    Finish {
        /// The tube.
        tube: TubeName,
        /// What to do with which delivery.
        items: Vec<FinishItem>,
        /// Whether the outcomes show the tasks.
        show: bool,
    },
    /// Makes buried tasks ready again, lowest (pri, id) first. Replies with [`Reply::Kicked`].
    Kick {
        /// The tube.
        tube: TubeName,
        /// Maximum number of tasks.
        count: u64,
    },
    /// Makes these buried tasks ready again. Replies with [`Reply::Finished`]: a task that is not
    /// buried is [`Outcome::Stale`].
    KickTasks {
        /// The tube.
        tube: TubeName,
        /// The tasks.
        ids: Vec<TaskId>,
        /// Whether their attempts count from zero again.
        reset_attempts: bool,
    },
    /// Removes tasks in any state. Replies with [`Reply::Finished`].
    Delete {
        /// The tube.
        tube: TubeName,
        /// The tasks.
        ids: Vec<TaskId>,
        /// Whether the outcomes show the tasks.
        show: bool,
    },
    /// Shows tasks; unknown ones are omitted. Replies with [`Reply::Tasks`].
    Peek {
        /// The tube.
        tube: TubeName,
        /// The tasks.
        ids: Vec<TaskId>,
    },
    /// Shows taken tasks and their holders, by id. Replies with [`Reply::Tasks`] without bodies.
    Deliveries {
        /// The tube.
        tube: TubeName,
        /// Maximum number of tasks.
        count: usize,
    },
    /// Lists the tasks of a tube page by page. Replies with [`Reply::Listed`].
    List(List),
    /// Shows those of a range of tasks whose payloads have certain bytes. Replies with [`Reply::Found`].
    Search(Search),
    /// Shows where waiting tasks are in the queue, in the order of the ids; unknown tasks and those that
    /// do not wait are omitted. Replies with [`Reply::Positions`]; the engine adds the estimates.
    Positions {
        /// The tube.
        tube: TubeName,
        /// The tasks, at most [`POSITIONS_MAX`](crate::limits::POSITIONS_MAX).
        ids: Vec<TaskId>,
    },
    /// Removes all tasks of a tube, taken ones too. Replies with [`Reply::Nothing`].
    Truncate {
        /// The tube.
        tube: TubeName,
    },
    /// Releases every taken task of a tube. Replies with [`Reply::Nothing`].
    ReleaseAll {
        /// The tube.
        tube: TubeName,
    },
    /// Begins a session, or adds one more connection to a live one. Replies with
    /// [`Reply::Session`].
    JoinSession {
        /// The session. The caller chooses the identity of a new one.
        session: SessionId,
        /// Whether it may be new.
        create: bool,
    },
    /// One connection of a session has ended. With the last one its tasks are released: at once, or
    /// after the time set by [`Command::ConfigureSessions`]. Replies with [`Reply::Nothing`].
    LeaveSession {
        /// The session.
        session: SessionId,
    },
    /// Sets how long a session without connections keeps its tasks. Replies with
    /// [`Reply::Nothing`].
    ConfigureSessions {
        /// The time.
        ttr: Span,
    },
    /// A semaphore command. Replies with [`Reply::Semaphore`].
    Semaphore(SemaphoreCommand),
    /// A command for schedules. Replies with [`Reply::Schedule`].
    Schedule(Box<ScheduleCommand>),
    /// Processes what is due: delays end, leases expire, tasks expire, sessions end. Replies with
    /// [`Reply::Ticked`].
    Tick {
        /// Maximum number of tasks to move.
        limit: usize,
        /// A random number, for the delays of expired leases; see [`crate::retry`].
        seed: u32,
    },
}

/// A task to add. `None` fields take the defaults of the tube.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTask {
    /// Payload and meta.
    pub body: Body,
    /// Priority: a smaller number is delivered first.
    pub pri: Option<u64>,
    /// Time to live: the task is removed if it is not taken within this time. A delay does not
    /// count.
    pub ttl: Option<Span>,
    /// Time to run: the task is released if its holder does not finish it within this time.
    pub ttr: Option<Span>,
    /// Not ready before this time has passed.
    pub delay: Option<Span>,
    /// Not ready before this moment; refused together with `delay`, and wins over the tube's.
    pub at: Option<Timestamp>,
    /// Its sub-queue, in tubes that have them.
    pub subqueue: Option<Arc<str>>,
    /// Its priority in the semaphore of the tube, instead of one derived from `pri`; a larger
    /// number comes first. Refused if the tube has no semaphore.
    pub semaphore_priority: Option<Priority>,
    /// Its unique key. Boxed because it is rare.
    pub key: Option<Box<KeyRequest>>,
    /// Bury it instead of releasing it when this many deliveries have failed, instead of the
    /// tube's number.
    pub attempts_max: Option<u32>,
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
            key: None,
            attempts_max: None,
        }
    }
}

/// Parameters of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// The tube.
    pub tube: TubeName,
    /// Maximum number of tasks; at most one of each sub-queue.
    pub count: usize,
    /// The session that takes: its tasks are released when it ends. Without a session only the
    /// lease time and the lease number protect a delivery.
    pub session: Option<SessionId>,
    /// How long the delivery may last, instead of each task's ttr.
    pub lease: Option<Span>,
    /// The name of the worker that takes, at most
    /// [`WORKER_BYTES_MAX`](crate::limits::WORKER_BYTES_MAX) bytes.
    pub worker: Option<Arc<str>>,
    /// How long to wait for the first task. The machine replies at once; the engine waits.
    pub wait: Span,
}

/// One page of a list of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// The tube.
    pub tube: TubeName,
    /// Which tasks, in which order, after which of them.
    pub order: ListOrder,
    /// Maximum number of tasks, at least one and at most
    /// [`LIST_TASKS_MAX`](crate::limits::LIST_TASKS_MAX). A page has fewer only if no task follows.
    pub limit: usize,
    /// Only tasks with this key, in the order of ids.
    pub key: Option<Key>,
}

/// The order of a list. Each page begins after the last task of the page before, whether or not that
/// task still exists; so a task that exists during the whole listing is listed exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOrder {
    /// Tasks in these states, by id. Done tasks are those that the tube keeps.
    Id {
        /// The states.
        states: StateSet,
        /// Only tasks with a larger id; `None` begins with the first.
        after: Option<TaskId>,
    },
    /// Tasks that could be taken now, in the order in which they would be: by priority, then by id;
    /// of each idle sub-queue the first one. A paused tube is listed as if it were not.
    Queue {
        /// Only tasks after this priority and id; `None` begins with the first.
        after: Option<(u64, TaskId)>,
    },
}

/// A task of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedTask {
    /// Its id in the tube.
    pub id: TaskId,
    /// Its priority, which the next page in the order of the queue needs.
    pub pri: u64,
}

/// One delivery to end or extend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishItem {
    /// The task.
    pub id: TaskId,
    /// The claimed holder.
    pub holder: Holder,
    /// What to do.
    pub finish: Finish,
}

/// The claimed holder of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A caller that knows the number of the current delivery.
    Lease(Lease),
    /// The session that took it.
    Session(SessionId),
    /// Any caller, as long as the task is taken. Bury accepts this in every state.
    Any,
}

/// How a delivery ends or continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The task is done: remove it, or keep it as done if its tube keeps done tasks.
    Ack,
    /// The same with a result, which is kept with a done task; see [`Finish::ack_with`]. Boxed
    /// because it is rare.
    AckWithResult(Box<Body>),
    /// Release it.
    Release {
        /// Not ready before this time has passed; zero is ready at once.
        delay: Span,
        /// Whether this delivery counts as an attempt.
        counted: bool,
    },
    /// Bury it: set it aside until it is kicked.
    Bury,
    /// Extend the delivery by this time.
    Touch(Span),
    /// It failed: the error is stored. Boxed because it is rare.
    Fail(Box<Fail>),
}

impl Finish {
    /// A failed delivery with any error text. The task is tried again after the delay; without one it
    /// is buried.
    pub fn fail(error: &str, delay: Option<Span>) -> Self {
        let then = delay.map_or(AfterFailure::Bury, AfterFailure::Retry);
        Finish::Fail(Box::new(Fail { error: stored_error(error), then }))
    }

    /// A failed delivery with any error text, after which the retry policy of the tube decides with
    /// this random number. Without a policy the task is ready at once.
    pub fn fail_by_policy(error: &str, seed: u32) -> Self {
        let then = AfterFailure::Policy { seed, default_delay: Span::ZERO };
        Finish::Fail(Box::new(Fail { error: stored_error(error), then }))
    }
}

/// A delivery that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fail {
    /// What went wrong, as [`stored_error`](crate::failure::stored_error) returns it.
    pub error: Arc<str>,
    /// What happens to the task.
    pub then: AfterFailure,
}

/// What happens to a task after a failed delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// The delivery counts as an attempt. The task is ready again after this time, or buried if its
    /// attempts are used up.
    Retry(Span),
    /// It is buried, as by [`Finish::Bury`].
    Bury,
    /// As the retry policy of the tube says when the delivery ends; see [`crate::retry`].
    Policy {
        /// The random number for the jitter.
        seed: u32,
        /// The delay in a tube without a policy.
        default_delay: Span,
    },
}

impl AfterFailure {
    /// The delay before the next attempt in a tube without a retry policy; `None` if the task is
    /// buried.
    pub const fn delay(self) -> Option<Span> {
        match self {
            AfterFailure::Retry(delay) | AfterFailure::Policy { default_delay: delay, .. } => {
                Some(delay)
            }
            AfterFailure::Bury => None,
        }
    }
}

/// The outcome of one item of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; with the task after it, if the command said `show`.
    Done(Option<Box<Task>>),
    /// The task exists, but the claimed delivery is not the current one.
    Stale,
    /// No such task.
    Missing,
}

/// A task that was added, or that held the key of the put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its id in the tube.
    pub id: TaskId,
    /// Its state after the command. A task that was added is ready or delayed.
    pub state: State,
    /// Whether it held the key, so that nothing was added. It may have ended, and is done then.
    pub existing: bool,
}

/// A tube, as replies show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TubeInfo {
    /// Its name.
    pub name: TubeName,
    /// Its number in the store.
    pub number: u32,
    /// Its options.
    pub options: TubeOptions,
    /// Task counts and call counts.
    pub stats: TubeStats,
    /// Ready tasks that could be delivered now.
    pub takeable: u64,
    /// When the next change is due.
    pub next_wakeup: Option<Timestamp>,
    /// Since when the oldest takeable task has been ready. Tasks that wait for another task of
    /// their sub-queue do not count. At most
    /// [`OLDEST_LOOKED_MAX`](crate::limits::OLDEST_LOOKED_MAX) tasks are examined.
    pub oldest_ready: Option<Timestamp>,
}

/// The reply of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Done, without a result.
    Nothing,
    /// Reply to `CreateTube`: whether the tube is new.
    Created(bool),
    /// Reply to `Tubes`, `AlterTube` and `NameTube`.
    Tubes(Vec<TubeInfo>),
    /// Reply to `Put`, in the order of the tasks.
    Put(Vec<Placed>),
    /// Reply to `Take`: possibly none.
    Taken(Vec<Task>),
    /// Reply to `Finish`, `KickTasks` and `Delete`, in the order of the items.
    Finished(Vec<Outcome>),
    /// Reply to `Kick`: the number of kicked tasks.
    Kicked(u64),
    /// Reply to `Peek` and `Deliveries`.
    Tasks(Vec<Task>),
    /// Reply to `List`.
    Listed(Vec<ListedTask>),
    /// Reply to `Search`.
    Found(Found),
    /// Reply to `Positions`.
    Positions(Vec<Position>),
    /// Reply to `JoinSession`.
    Session(SessionId),
    /// Reply to `Semaphore`.
    Semaphore(SemaphoreReply),
    /// Reply to `Schedule`.
    Schedule(ScheduleReply),
    /// Reply to `Tick`: how many tasks, sessions and semaphores moved.
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
            Command::Kick { .. } | Command::KickTasks { .. } => "kick",
            Command::Delete { .. } => "delete",
            Command::Peek { .. } => "peek",
            Command::Deliveries { .. } => "deliveries",
            Command::List(_) => "list",
            Command::Search(_) => "search",
            Command::Positions { .. } => "positions",
            Command::Truncate { .. } => "truncate",
            Command::ReleaseAll { .. } => "release_all",
            Command::JoinSession { .. } => "join_session",
            Command::LeaveSession { .. } => "leave_session",
            Command::ConfigureSessions { .. } => "configure_sessions",
            Command::Semaphore(command) => command.verb(),
            Command::Schedule(command) => command.verb(),
            Command::Tick { .. } => "tick",
        }
    }

    /// How many payload bytes the command carries.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Command::Put { tasks, .. } => tasks.iter().map(|task| task.body.footprint()).sum(),
            Command::Finish { items, .. } => {
                items.iter().filter_map(|item| item.finish.result()).map(<[u8]>::len).sum()
            }
            Command::Schedule(command) => {
                command.tasks().iter().map(|task| task.body.footprint()).sum()
            }
            _ => 0,
        }
    }
}

impl Reply {
    /// The tasks that it shows, of which a store may load the bodies later.
    pub fn shown(&self) -> &[Task] {
        match self {
            Reply::Taken(tasks) | Reply::Tasks(tasks) => tasks,
            Reply::Found(found) => &found.tasks,
            _ => &[],
        }
    }

    /// The same, to be changed.
    pub fn shown_mut(&mut self) -> &mut [Task] {
        match self {
            Reply::Taken(tasks) | Reply::Tasks(tasks) => tasks,
            Reply::Found(found) => &mut found.tasks,
            _ => &mut [],
        }
    }

    /// Removes shown tasks without a body.
    pub fn remove_unloaded(&mut self) {
        match self {
            Reply::Taken(tasks) | Reply::Tasks(tasks) => tasks.retain(|task| task.body.is_some()),
            Reply::Found(found) => found.remove_unloaded(),
            _ => {}
        }
    }
}

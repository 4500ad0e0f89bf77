//! The rules of Taskyard, as pure state machines.
//!
//! Nothing here reads a clock, accesses a file or socket, spawns or logs: `now` is an argument, and
//! changes are return values. The tests compare every store with this crate.
//!
//! Start reading at [`command`] (all commands and replies), then [`state`] (the states of a task),
//! then [`machine`] (how commands take effect).

pub mod access;
pub mod classes;
pub mod command;
pub mod effects;
pub mod error;
pub mod estimate;
pub mod execute;
pub mod failure;
pub mod finished;
pub mod key;
pub mod lease;
pub mod limits;
pub mod machine;
pub mod names;
pub mod rate;
pub mod reason;
pub mod record;
pub mod retry;
pub mod schedule;
pub mod search;
pub mod semaphore;
pub mod service;
pub mod session;
pub mod state;
pub mod stats;
pub mod stored_schedule;
pub mod task;
pub mod time;
pub mod transfer;
pub mod tube;

// The tests' generator of random commands is written for users of this crate, and used inside it
// too.
#[cfg(test)]
extern crate self as taskyard_core;

mod chunks;
mod delayed_index;
mod done;
mod id_index;
mod index;
mod journal;
mod keys;
mod level_counts;
mod order;
mod ranked_set;
mod ready_set;
mod schedules;
mod slots;
mod steps;
mod subqueue;
mod tasks;

pub use command::{
    AfterFailure, Command, Fail, Finish, FinishItem, Holder, List, ListOrder, ListedTask, NewTask,
    Outcome, Placed, Reply, Take,
};
pub use effects::{Effects, NewEvents};
pub use error::{Error, Result};
pub use estimate::{
    Basis, Estimate, Forecast, NoEstimate, Position, SubqueuePosition, check_positions,
};
pub use execute::{BoxedReplies, DynExecute, Execute};
pub use failure::{Failure, Failures};
pub use finished::{Finished, check_results};
pub use journal::{Changes, KeyChange, TubeRecord};
pub use key::{EndedKey, HeldKey, Key, KeyRecord, KeyRequest, OnConflict};
pub use lease::Lease;
pub use machine::{Machine, check_tasks, no_semaphore, refuse_priorities, refuse_subqueues};
pub use rate::{Bucket, RateLimit};
pub use reason::Reason;
pub use record::{Change, Record, StoredState};
pub use retry::RetryPolicy;
pub use search::{Found, Search};
pub use semaphore::{
    EnqueueItem, EventId, EventKind, Grant, GrantFinish, GrantItem, GrantOutcome, Member,
    MemberCursor, MemberGroup, MemberInfo, MembersPage, Priority, SemaphoreChange,
    SemaphoreCommand, SemaphoreEvent, SemaphoreInfo, SemaphoreKey, SemaphoreOptions,
    SemaphoreReply, Status,
};
pub use session::SessionId;
pub use state::{Event, State, StateSet};
pub use stats::{Calls, Counts, TubeStats};
pub use stored_schedule::{
    CatchUp, Overlap, ScheduleCommand, ScheduleName, ScheduleReply, StoredSchedule, check_fire,
    checked_list_limit,
};
pub use task::{Body, Task, TaskId};
pub use time::{Span, Timestamp};
pub use tube::{Kind, TubeChange, TubeName, TubeOptions, check_queue_num};

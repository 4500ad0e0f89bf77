//! Priority semaphores: of all enqueued tasks only the best `active` hold a grant at a time.
//!
//! A task is enqueued with a priority. The best tasks get a *grant*; when better ones arrive, the
//! worst holders are asked to release. Every change takes effect at once: nothing polls.
//!
//! Start reading at [`command`] (the commands), then `entry` (the states of a task in a semaphore),
//! then `admission` (which tasks get a grant and which holders are asked to release). `outbox`
//! keeps the events until they are acknowledged, `batch` lets a store write a batch or undo it.

mod admission;
mod batch;
pub mod command;
mod configure;
mod enqueue;
mod entry;
mod events;
mod finish;
pub(crate) mod gated;
mod journal;
mod key;
mod options;
mod outbox;
mod queue;
mod record;
mod semaphores;
#[cfg(test)]
mod tests;
mod tick;
mod transfer;

pub use command::{
    EnqueueItem, EventId, EventKind, GrantFinish, GrantItem, GrantOutcome, Member, MemberGroup,
    MemberInfo, MembersPage, SemaphoreCommand, SemaphoreEvent, SemaphoreInfo, SemaphoreReply,
};
pub use entry::{EntryState, HeldGrant, QueueEntry, Status, TRANSITIONS};
pub use gated::OWN_TASK_MAX;
pub use key::{Grant, MemberCursor, Priority, SemaphoreKey};
pub use options::{SemaphoreChange, SemaphoreOptions, tail_too_long};
pub use record::{EventRecord, QueueEntryRecord, Row, SemaphoreChanges, SemaphoreRecord};
pub use semaphores::Semaphores;

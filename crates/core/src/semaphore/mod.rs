//! Priority semaphores: of all who stand in line only the best `active` may go on at a time.
//!
//! Whoever wants to go on enqueues with a priority. The best get a *grant*; when better ones come, the
//! worst holders are asked to release. Everything that makes a change possible makes it: there is no
//! round that looks from time to time.
//!
//! Start reading at [`command`] (what can be asked), then `place` (where a task may stand), then `settle`
//! (who gets in and who is asked to leave). `outbox` keeps the events until they are acknowledged, `batch`
//! lets a store write a batch down or undo it.

mod batch;
mod book;
pub mod command;
mod configure;
mod enqueue;
mod events;
mod finish;
pub(crate) mod gated;
mod journal;
mod key;
mod line;
mod options;
mod outbox;
mod place;
mod record;
mod settle;
#[cfg(test)]
mod tests;
mod tick;
mod transfer;

pub use book::Semaphores;
pub use command::{
    EventId, EventKind, GrantFinish, GrantItem, GrantOutcome, LinePart, Member, MembersPage,
    SemaphoreCommand, SemaphoreEvent, SemaphoreInfo, SemaphoreReply, Standing, Wish,
};
pub use gated::OWN_TASK_MAX;
pub use key::{Grant, LineCursor, Priority, SemaphoreKey};
pub use options::{SemaphoreChange, SemaphoreOptions, tail_too_long};
pub use place::{Hold, Place, Stand, Status, TRANSITIONS};
pub use record::{EventRecord, PlaceRecord, Row, SemaphoreChanges, SemaphoreRecord};

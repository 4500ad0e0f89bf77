//! The interface between the engine and the stores: batches of commands go in, replies and effects come out.
//!
//! [`Store`] is the trait, [`MemoryStore`] the simplest implementation, [`copy`] moves the content of one store to another, and
//! `remote` (feature) is what stores in databases share. The other stores are crates of their own in `crates/stores`. The rules
//! are not here: the memory and SQLite stores run the core's machine itself, and stores that decide inside a database are
//! compared with it by the suite in `crates/conformance`.
//!
//! Nothing here depends on a protocol, the engine or the server. The memory store never reads a clock: `now` is an argument.

mod capabilities;
pub mod copy;
mod error;
#[cfg(feature = "remote")]
pub mod lua;
mod memory;
mod options;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "remote")]
pub mod template;
mod transfer;

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use taskyard_core::{Body, Command, Effects, Error, Reply, Span, TaskId, Timestamp, TubeName};

pub use capabilities::Capabilities;
pub use error::OpenError;
pub use memory::{CAPABILITIES as MEMORY_CAPABILITIES, MemoryStore};
pub use options::OpenOptions;
pub use transfer::{Export, Exported, Import, refused};

/// A future of a store: boxed, so that a store can be chosen at run time.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A place where tasks live.
///
/// The engine is its only user and has at most one `execute` under way, or [`Store::batches_max`], so that what
/// arrives meanwhile forms the next batch. Embedded stores do their work on the calling thread.
pub trait Store: Send + Sync + 'static {
    /// Runs a batch at the moment `now`, in order. When it answers, what the replies say is durable,
    /// as far as the store is. If the batch cannot be made durable every reply is
    /// [`Error::Store`] and nothing has changed.
    ///
    /// A store beyond a network may be away: then every reply is [`Error::StoreUnavailable`] and nothing has
    /// changed. It may also be lost after the batch was sent and before it answered; then every reply
    /// is [`Error::OutcomeUnknown`], and either all of the batch was done or nothing. Who asked must look
    /// (an ack can be repeated: a task that is gone was acked) or accept that a repeated put is put
    /// twice. What such a batch took for a session, and the sessions it joined and left, the store
    /// undoes by itself; what it took without a session returns when its lease is over.
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed>;

    /// How many batches may be under way at the same time. They are done in the order in which they were begun; only what cannot be
    /// done at first, for reasons that pass, may be done after a later one.
    fn batches_max(&self) -> usize {
        1
    }

    /// Reads bodies that were left on disk, without disturbing `execute`: an answer for each key, in
    /// order. `None` is a task that is gone meanwhile. [`Error::Store`] is a body that cannot be
    /// read, and not by trying again either; any other error may pass.
    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>>;

    /// What the store can do, so that tests and users know what to expect.
    fn capabilities(&self) -> Capabilities;

    /// What becomes of acknowledged tasks when the machine fails, where that is not for the store to decide.
    fn durability(&self) -> Option<String> {
        None
    }

    /// Features that it does not have: commands that need them are refused.
    fn unsupported(&self) -> &'static [&'static str] {
        &[]
    }

    /// Asks to be told what other servers of a shared store do. Notices may be lost, which is what
    /// [`Store::poll_every`] is for. Stores of one server have nothing to tell.
    fn watch(&self, watcher: Watcher) {
        drop(watcher);
    }

    /// How often to look what others did, if there may be others.
    fn poll_every(&self) -> Option<Span> {
        None
    }

    /// Shows what is in it, to be moved to another store. Nothing is changed. Whoever has the store must not use it
    /// meanwhile. Refused where [`Capabilities::exports`] says so.
    fn export(&self, wanted: Export) -> Pending<'_, Result<Exported, Error>> {
        let _ = wanted;
        Box::pin(ready(Err(transfer::refused("be copied from"))))
    }

    /// Takes in what another store showed, as one atomic step that is durable when it answers. Refused where
    /// [`Capabilities::imports`] says so.
    fn import(&self, now: Timestamp, part: Import) -> Pending<'_, Result<(), Error>> {
        drop((now, part));
        Box::pin(ready(Err(transfer::refused("be copied to"))))
    }

    /// Whether it can do its work now, which includes writing: an error says why not. It is found out by trying, at
    /// most about once a second.
    fn health(&self, now: Timestamp) -> Pending<'_, Result<StoreHealth, Error>> {
        // Whether there is such a tube does not matter.
        let tube = TubeName::new("health").ok();
        Box::pin(async move {
            let executed = self.execute(now, vec![Command::Tubes { tube }]).await;
            match executed.replies.into_iter().next() {
                Some(Ok(_) | Err(Error::TubeNotFound(_))) => Ok(StoreHealth::default()),
                Some(Err(error)) => Err(error),
                None => Err(Error::Store("the store did not answer".into())),
            }
        })
    }

    /// What it knows of the time, if it goes by the `now` that it is given. That need not be wall time: it goes on evenly when
    /// the wall clock is set. `None` for a store that goes by a clock of its own, which is taken for wall time.
    fn time(&self) -> Option<StoreTime> {
        None
    }

    /// Says how far wall time is ahead of the `now` that it is given, in microseconds, from now on; durable when it answers.
    /// Answers show wall time, and tasks whose puts named a start time follow it.
    fn set_wall_ahead(&self, now: Timestamp, micros: i64) -> Pending<'_, Result<(), Error>> {
        let _ = (now, micros);
        Box::pin(ready(Ok(())))
    }

    /// Finishes everything under way. Nothing may be asked afterwards.
    fn close(&self) -> Pending<'_, Result<(), Error>>;
}

/// How a store is that can do its work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// What an operator should look at before it becomes a failure.
    pub warnings: Vec<String>,
    /// How long the store's log is, in bytes, where it has one of its own.
    pub log_bytes: Option<u64>,
}

/// What a store knows of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreTime {
    /// How far wall time is ahead of the moments it keeps, in microseconds.
    pub wall_ahead: i64,
    /// The latest moment at which one of its tasks was put.
    pub latest: Option<Timestamp>,
    /// The earliest one.
    pub earliest: Option<Timestamp>,
}

/// Called for each change that another server made.
pub type Watcher = Arc<dyn Fn(RemoteChange) + Send + Sync>;

/// A change that another server made to a shared store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteChange {
    /// Tasks may have become takeable, or room free, in this tube.
    Tube(TubeName),
    /// There may be new events of semaphores.
    Events,
    /// Anything may have happened.
    Anything,
}

/// What came of a batch.
#[derive(Debug)]
pub struct Executed {
    /// An answer for each command, in order.
    pub replies: Vec<Result<Reply, Error>>,
    /// What others may be waiting for.
    pub effects: Effects,
    /// Tasks in the replies whose bodies must be loaded before anybody sees them.
    pub unloaded: Vec<Unloaded>,
}

/// A task in a reply whose body is still on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unloaded {
    /// Which reply of the batch.
    pub reply: usize,
    /// Which task of that reply.
    pub item: usize,
    /// How to load it.
    pub key: BodyKey,
}

/// Where a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BodyKey {
    /// The tube's number.
    pub tube: u32,
    /// The task.
    pub id: TaskId,
}

/// Puts loaded bodies into their replies. A task that is gone meanwhile leaves its reply.
pub fn fill(
    replies: &mut [Result<Reply, Error>],
    unloaded: &[Unloaded],
    bodies: Vec<Option<Body>>,
) {
    for (place, body) in unloaded.iter().zip(bodies) {
        if let Ok(Reply::Taken(tasks) | Reply::Tasks(tasks)) = &mut replies[place.reply] {
            tasks[place.item].body = body;
        }
    }
    // Once for each reply, of which a batch may lack ten thousand bodies.
    for place in unloaded.chunk_by(|a, b| a.reply == b.reply).filter_map(<[_]>::first) {
        if let Ok(Reply::Taken(tasks) | Reply::Tasks(tasks)) = &mut replies[place.reply] {
            tasks.retain(|task| task.body.is_some());
        }
    }
}

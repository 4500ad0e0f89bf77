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
pub mod limits;
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

/// Stores tubes, tasks and semaphores, and executes commands on them.
///
/// The engine is the only caller. It has at most one `execute` in flight, or [`Store::batches_max`]; commands
/// that arrive meanwhile form the next batch. Embedded stores do their work on the calling thread.
pub trait Store: Send + Sync + 'static {
    /// Executes a batch at the moment `now`, in order. When the future resolves, the changes that the replies
    /// report are as durable as the store is.
    ///
    /// Each reply is about its own command. After [`Error::Store`] and [`Error::StoreUnavailable`] the command
    /// has changed nothing. After [`Error::OutcomeUnknown`] it was executed or not: the connection broke after
    /// the command was sent and before its reply arrived, or a write to the disk was not confirmed. The
    /// caller must check (an ack can be repeated: a task that does not exist was acked) or accept that a
    /// repeated put adds its tasks twice.
    ///
    /// An embedded store executes a batch as a whole: if it cannot be made durable, every reply is one of
    /// these errors. A store in a database may execute it in several steps. If the connection breaks between
    /// them, earlier commands have their replies, those in flight are unknown and later ones were not sent.
    /// A command about several tubes, such as the end of a session, may have been executed for some of them; a
    /// tick does the rest. Such a store reverts the deliveries of unknown commands to sessions, and the sessions that they joined
    /// and left; tasks that were taken without a session become ready when their lease ends.
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed>;

    /// Maximum number of batches in flight. They are executed in the order in which they were started; only a
    /// batch that fails at first with a transient error may be executed after a later one.
    fn batches_max(&self) -> usize {
        1
    }

    /// Reads bodies that are on disk only, concurrently with `execute`. The result has one entry for each
    /// key, in order. `None` is a task that was removed meanwhile. [`Error::Store`] is a body that is
    /// permanently unreadable; any other error is transient.
    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>>;

    /// The features and guarantees of the store.
    fn capabilities(&self) -> Capabilities;

    /// Describes what happens to acknowledged tasks when the machine fails, where the configuration of the
    /// database decides that.
    fn durability(&self) -> Option<String> {
        None
    }

    /// Features that the store does not have: commands that need them are refused.
    fn unsupported(&self) -> &'static [&'static str] {
        &[]
    }

    /// Registers a callback for changes that other servers of a shared store make. Notifications may be lost,
    /// so the engine also polls ([`Store::poll_every`]). Stores that only one server uses never call it.
    fn watch(&self, watcher: Watcher) {
        drop(watcher);
    }

    /// How often to poll for changes of other servers; `None` for a store that only one server uses.
    fn poll_every(&self) -> Option<Span> {
        None
    }

    /// Reads a part of the content, to copy it to another store. Changes nothing. The store must not be used
    /// meanwhile. Refused unless [`Capabilities::exports`] is set.
    fn export(&self, request: Export) -> Pending<'_, Result<Exported, Error>> {
        let _ = request;
        Box::pin(ready(Err(transfer::refused("be copied from"))))
    }

    /// Adds content of another store as one atomic step, which is durable when the future resolves. Refused
    /// unless [`Capabilities::imports`] is set.
    fn import(&self, now: Timestamp, part: Import) -> Pending<'_, Result<(), Error>> {
        drop((now, part));
        Box::pin(ready(Err(transfer::refused("be copied to"))))
    }

    /// Checks that the store works, including writes; the error is the reason if it does not. The store tries
    /// it, at most about once a second. A shared store may be asked while a batch is under way.
    fn health(&self, now: Timestamp) -> Pending<'_, Result<StoreHealth, Error>> {
        // The tube need not exist.
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

    /// The times that the store keeps, if it uses the `now` of its caller. That is not necessarily wall time:
    /// it advances evenly when the wall clock is set. `None` for a store with a clock of its own, which
    /// counts as wall time.
    fn time(&self) -> Option<StoreTime> {
        None
    }

    /// Sets how far wall time is ahead of the `now` of the caller from now on, in microseconds; durable when
    /// the future resolves. Replies show wall time, and tasks that were put with a start time follow it.
    fn set_wall_ahead(&self, now: Timestamp, micros: i64) -> Pending<'_, Result<(), Error>> {
        let _ = (now, micros);
        Box::pin(ready(Ok(())))
    }

    /// Begins a backup of everything that was acknowledged before, and possibly of newer commands; the time is for the file. Blocks
    /// the calling thread for a moment. Refused if the capabilities name something else to use.
    fn backup(&self, now: Timestamp) -> Result<Box<dyn StoreBackup>, Error> {
        let _ = now;
        Err(self.capabilities().missing("backups"))
    }

    /// Finishes all work in flight. No other call may follow.
    fn close(&self) -> Pending<'_, Result<(), Error>>;
}

/// A backup that is being made: the content of a store at one moment, which is read while the store is used. The store may end it,
/// for example before it closes. Dropping it ends it, too.
pub trait StoreBackup: Send {
    /// The next part of the file; `None` after the last one. Blocks the calling thread while it reads the disk.
    fn next_part(&mut self) -> Option<BackupPart>;
}

/// A part of a backup.
#[derive(Debug)]
pub struct BackupPart {
    /// The bytes that follow in the file.
    pub bytes: Vec<u8>,
    /// Why the backup cannot be completed; the bytes tell it to the reader of the file, and nothing follows.
    pub failure: Option<Error>,
}

/// The state of a working store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// Conditions that an operator should correct before they become a failure.
    pub warnings: Vec<String>,
    /// Size of the store's own log in bytes, if it has one.
    pub log_bytes: Option<u64>,
}

/// The times that a store keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreTime {
    /// How far wall time is ahead of the stored times, in microseconds.
    pub wall_ahead: i64,
    /// The latest time at which one of its tasks was put.
    pub latest: Option<Timestamp>,
    /// The earliest such time.
    pub earliest: Option<Timestamp>,
}

/// Called for each change that another server made.
pub type Watcher = Arc<dyn Fn(RemoteChange) + Send + Sync>;

/// A change that another server made to a shared store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteChange {
    /// Tasks may have become takeable, or capacity may have become free, in this tube.
    Tube(TubeName),
    /// There may be new events of semaphores.
    Events,
    /// Any change is possible.
    Anything,
}

/// The result of a batch.
#[derive(Debug)]
pub struct Executed {
    /// One reply for each command, in order.
    pub replies: Vec<Result<Reply, Error>>,
    /// Changes that waiting clients may be interested in.
    pub effects: Effects,
    /// Tasks in the replies whose bodies must be loaded before the replies are sent.
    pub unloaded: Vec<Unloaded>,
}

/// A task in a reply whose body is still on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unloaded {
    /// Index of the reply in the batch.
    pub reply: usize,
    /// Index of the task in that reply.
    pub item: usize,
    /// The key of its body.
    pub key: BodyKey,
}

/// Identifies a body on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BodyKey {
    /// The tube's number.
    pub tube: u32,
    /// The task.
    pub id: TaskId,
}

/// Inserts loaded bodies into their replies. A task that was removed meanwhile is removed from its reply.
pub fn fill(
    replies: &mut [Result<Reply, Error>],
    unloaded: &[Unloaded],
    bodies: Vec<Option<Body>>,
) {
    for (missing, body) in unloaded.iter().zip(bodies) {
        if let Ok(reply) = &mut replies[missing.reply]
            && let Some(task) = reply.shown_mut().get_mut(missing.item)
        {
            task.body = body;
        }
    }
    // Once for each reply, because a batch may lack ten thousand bodies.
    for missing in unloaded.chunk_by(|a, b| a.reply == b.reply).filter_map(<[_]>::first) {
        if let Ok(reply) = &mut replies[missing.reply] {
            reply.remove_unloaded();
        }
    }
}

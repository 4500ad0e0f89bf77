//! The default store: the machine in memory, every change in one SQLite file.
//!
//! A batch of commands is applied to the machine, what changed is made durable in one step, then
//! the batch is answered: the cost of a sync is shared by all who wait for it. A take changes
//! nothing on disk and waits for none, except the first after opening and one in a million later:
//! those reserve lease numbers. Payloads beyond a memory budget stay on disk.
//!
//! `folder` opens, `check` believes nothing, `writer` commits, `budget` says which payloads are in
//! memory, `reader` loads the others, `checkpoint` keeps the log short, `codec` knows the rows,
//! `salvage` saves what it can. Batches that only change tasks go to the `journal` first, from where `follow` brings
//! them into the database.

mod budget;
mod check;
mod checkpoint;
mod clock;
mod codec;
mod folder;
mod follow;
mod generation;
mod insert;
mod journal;
mod lock;
mod modes;
mod reader;
mod rows;
mod salvage;
mod seal;
mod semaphores;
mod transfer;
mod write_error;
mod writer;

use std::collections::VecDeque;
use std::future::ready;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{Body, Changes, Command, Error, Machine, Outcome, Reply, Span, Timestamp};

use taskyard_store::{
    BodyKey, Capabilities, Executed, Export, Exported, Import, OpenError, OpenOptions, Pending,
    Store, StoreHealth, StoreTime, Unloaded,
};

use budget::Budget;
use generation::Generations;
use lock::Lock;
use reader::Reader;
pub use writer::Fault;
use writer::Writer;

/// What it can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    durable: true,
    exports: true,
    imports: true,
    semaphores: true,
    gates: true,
    wakes: "at once, by the server itself",
    loses: &[
        (
            "the server is killed or stopped",
            "nothing that was answered; taken tasks are ready again",
        ),
        ("the machine fails", "nothing that was answered, if the disk keeps what it confirmed"),
        (
            "the disk fails",
            "everything since the last backup; damage to some pages is found and told",
        ),
    ],
    ..Capabilities::plain("sqlite")
};

/// The embedded durable store.
#[derive(Debug)]
pub struct SqliteStore {
    // Before the state, which has the lock of the folder: nobody reads when that is given up.
    reader: Reader,
    generations: Generations,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    machine: Machine,
    writer: Writer,
    budget: Budget,
    /// New tasks of batches that are in the journal only, so that their bodies must stay in memory.
    fresh: VecDeque<(u64, Vec<i64>)>,
    generations: Generations,
    /// Held while the store is open; the last to go.
    lock: Option<Lock>,
    /// When the disk last took something, or refused it with this error.
    latest_write: Option<(Timestamp, Result<(), Error>)>,
}

/// What was written, or refused, within this time need not be tried again to know how the disk is.
const PROBE_EVERY: Span = Span::from_secs(1);

impl SqliteStore {
    /// Opens the store in `folder`, making it if it is not there. Everything in it is read and
    /// checked first.
    pub fn open(folder: &Path, options: &OpenOptions) -> Result<SqliteStore, OpenError> {
        let mut open = folder::open(folder, options)?;
        let writer = Writer::start(folder, open.db, open.known)?;
        let reader = Reader::start(folder)?;
        open.lock.watch()?;
        let generations = Generations::default();
        let state = State {
            budget: Budget::new(options.memory_bytes, generations.clone(), &open.machine),
            generations: generations.clone(),
            machine: open.machine,
            writer,
            fresh: VecDeque::new(),
            lock: Some(open.lock),
            latest_write: None,
        };
        Ok(SqliteStore { reader, generations, state: Mutex::new(state) })
    }

    /// Makes a later commit or checkpoint fail, for tests of what a failure leaves behind.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.state().writer.set_fault(fault);
    }

    /// Copies the log into the database whenever it has so many pages, for tests that want to see
    /// many copies.
    pub fn set_checkpoint_pages(&self, pages: i32) {
        self.state().writer.database().checkpointer.set_pages(pages);
    }

    /// Refuses writes whenever the log has so many pages, for tests that want to see that.
    pub fn set_log_pages_max(&self, pages: i32) {
        self.state().writer.database().checkpointer.set_pages_max(pages);
    }

    /// Writes larger batches straight into the database, for tests that want to see them there; with 0 all of them.
    pub fn set_journal_bytes(&self, bytes: usize) {
        self.state().writer.set_journal_bytes(bytes);
    }

    /// Lets batches stay in the journal so long if they are few, for tests that want to see them there.
    pub fn set_journal_patience(&self, patience: Duration) {
        self.state().writer.set_patience(patience);
    }

    /// Brings what is in the journal into the database now.
    pub fn catch_up(&self) -> Result<(), Error> {
        self.state().writer.catch_up()
    }

    /// Makes the disk appear full beyond this many pages, for the same tests.
    pub fn limit_pages(&self, pages: u32) -> Result<(), Error> {
        let state = self.state();
        let limited = state.writer.database().db.pragma_update(None, "max_page_count", pages);
        limited.map_err(|error| Error::Store(error.to_string()))
    }

    /// How many bytes of payloads are in memory or on their way there.
    pub fn payload_bytes(&self) -> usize {
        let state = self.state();
        state.budget.bytes(&state.machine)
    }

    /// Reads bodies, and finds out what it means when one is not there.
    async fn load_current(&self, keys: Vec<BodyKey>) -> Vec<Result<Option<Body>, Error>> {
        let mut bodies = self.reader.load(keys.clone()).await;
        for (key, body) in keys.into_iter().zip(&mut bodies) {
            let number = generation::number(key);
            if !self.generations.is_current(key) {
                *body = Ok(None);
            } else if *body == Ok(None) && self.state().machine.is_body_unloaded(number, key.id) {
                *body = Err(reader::unreadable(key, &"its row is not found"));
            }
        }
        bodies
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for SqliteStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let state = &mut *self.state();
        state.budget.shelve(&mut state.machine, self.reader.take_ahead());
        let executed = state.execute(now, commands, &self.reader);
        Box::pin(ready(executed))
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        Box::pin(self.load_current(keys))
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn health(&self, now: Timestamp) -> Pending<'_, Result<StoreHealth, Error>> {
        Box::pin(ready(self.state().health(now)))
    }

    fn time(&self) -> Option<StoreTime> {
        let state = self.state();
        let machine = &state.machine;
        Some(StoreTime {
            wall_ahead: machine.wall_ahead(),
            latest: machine.latest_restored(),
            earliest: machine.earliest_restored(),
        })
    }

    fn set_wall_ahead(&self, now: Timestamp, micros: i64) -> Pending<'_, Result<(), Error>> {
        Box::pin(ready(self.state().set_wall_ahead(now, micros)))
    }

    fn export(&self, wanted: Export) -> Pending<'_, Result<Exported, Error>> {
        Box::pin(ready(self.state().export(wanted)))
    }

    fn import(&self, now: Timestamp, part: Import) -> Pending<'_, Result<(), Error>> {
        Box::pin(ready(self.state().import(now, part)))
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        // Before the folder is given up: nobody reads then.
        self.reader.stop();
        let closed = self.state().close();
        Box::pin(ready(closed))
    }
}

impl State {
    fn execute(&mut self, now: Timestamp, commands: Vec<Command>, reader: &Reader) -> Executed {
        let (mut shown, mut replies) = (Vec::new(), Vec::new());
        self.machine.begin();
        for command in commands {
            shown.push(self.shown_tube(&command));
            replies.push(self.machine.apply(now, command));
        }
        self.complete_outcomes(&shown, &mut replies);
        let changes = self.machine.changes();
        let cleared = changes.cleared.clone();
        match self.commit(now, changes) {
            Ok(new) => {
                self.machine.keep();
                forget_emptied(&mut replies, &shown, &cleared);
                self.spill(new);
            }
            Err(error) => {
                self.machine.undo();
                replies.fill(Err(error));
            }
        }
        let unloaded = self.unloaded(&shown, &replies);
        for (number, reply) in shown.iter().zip(&replies) {
            if let (Some(number), Ok(Reply::Taken(tasks))) = (number, reply) {
                self.budget.read_ahead(&self.machine, *number, tasks.len(), reader);
            }
        }
        Executed { replies, effects: self.machine.take_effects(), unloaded }
    }

    /// Returns the keys of new tasks.
    fn commit(&mut self, now: Timestamp, changes: Changes) -> Result<Vec<i64>, Error> {
        let Some(lock) = &mut self.lock else {
            return Err(Error::Store("the store is closed".into()));
        };
        lock.check().map_err(|why| self.writer.refuse(&why))?;
        // What is too much for memory should leave it at once.
        let straight = self.budget.is_exceeded(&self.machine);
        let (batch, cleared) = (self.writer.head.batch, changes.cleared.clone());
        let emptying = (!cleared.is_empty()).then(|| self.generations.hold());
        let committed = self.writer.commit(&self.machine, changes, straight);
        match &committed {
            Err(error) => self.latest_write = Some((now, Err(error.clone()))),
            Ok(_) if self.writer.head.batch != batch => self.latest_write = Some((now, Ok(()))),
            Ok(_) => {}
        }
        if let (Some(emptying), Ok(_)) = (emptying, &committed) {
            emptying.done(&cleared);
        }
        committed
    }

    /// Written down first: after a crash what was delayed must not be due because the wall clock was set.
    fn set_wall_ahead(&mut self, now: Timestamp, micros: i64) -> Result<(), Error> {
        let Some(lock) = &mut self.lock else {
            return Err(Error::Store("the store is closed".into()));
        };
        lock.check().map_err(|why| self.writer.refuse(&why))?;
        let written = self.writer.write_clock(&self.machine, micros);
        self.latest_write = Some((now, written.clone()));
        written?;
        self.machine.set_wall_ahead(micros);
        Ok(())
    }

    /// Whether anything can be written, found out by writing unless that was done a moment ago.
    fn health(&mut self, now: Timestamp) -> Result<StoreHealth, Error> {
        let Some(lock) = &mut self.lock else {
            return Err(Error::Store("the store is closed".into()));
        };
        lock.check_now().map_err(|why| self.writer.refuse(&why))?;
        let latest = self.latest_write.as_ref();
        let written = match latest.filter(|(at, _)| now.since(*at) < PROBE_EVERY) {
            Some((_, written)) => written.clone(),
            None => {
                let written = self.writer.probe(&self.machine);
                self.latest_write = Some((now, written.clone()));
                written
            }
        };
        written?;
        let database = self.writer.database();
        let checkpointer = &database.checkpointer;
        Ok(StoreHealth {
            warnings: checkpointer.warning().into_iter().collect(),
            log_bytes: Some(checkpointer.log_bytes()),
        })
    }

    /// Takes bodies out of memory that are too many, once the database has them.
    fn spill(&mut self, new: Vec<i64>) {
        if !new.is_empty() {
            self.fresh.push_back((self.writer.head.batch, new));
        }
        if !self.fresh.is_empty()
            && self.budget.is_exceeded(&self.machine)
            && let Err(error) = self.writer.catch_up()
        {
            tracing::warn!(%error, "more payloads than planned stay in memory");
        }
        let in_database = self.writer.in_database();
        while let Some((_, keys)) = self.fresh.pop_front_if(|(batch, _)| *batch <= in_database) {
            self.budget.spill(&mut self.machine, &keys);
        }
    }

    /// The number of the tube whose bodies the command's reply shows.
    fn shown_tube(&self, command: &Command) -> Option<u32> {
        match command {
            Command::Take(take) => self.machine.tube_number(&take.tube),
            Command::Peek { tube, .. }
            | Command::Finish { tube, show: true, .. }
            | Command::Delete { tube, show: true, .. } => self.machine.tube_number(tube),
            _ => None,
        }
    }

    /// Reads the bodies of finished tasks that shall be shown and are on disk only: before the
    /// commit, after which the rows may be gone. What cannot be read is left out, since it must not
    /// keep anybody from finishing the task.
    fn complete_outcomes(&self, shown: &[Option<u32>], replies: &mut [Result<Reply, Error>]) {
        for (number, reply) in shown.iter().zip(replies) {
            let (Some(number), Ok(Reply::Finished(outcomes))) = (number, reply) else { continue };
            let tasks = outcomes.iter_mut().filter_map(|outcome| match outcome {
                Outcome::Done(task) => task.as_deref_mut(),
                Outcome::Stale | Outcome::Missing => None,
            });
            for task in tasks.filter(|task| task.body.is_none()) {
                match reader::read_body(&self.writer.database().db, *number, task.id) {
                    Ok(body) => task.body = body,
                    Err(error) => {
                        tracing::error!(task = %task.id, ?error, "finished a task without a payload");
                    }
                }
            }
        }
    }

    /// The tasks in the replies whose bodies are not in memory.
    fn unloaded(&self, shown: &[Option<u32>], replies: &[Result<Reply, Error>]) -> Vec<Unloaded> {
        let mut unloaded = Vec::new();
        for (place, (number, reply)) in shown.iter().zip(replies).enumerate() {
            let (Some(number), Ok(Reply::Taken(tasks) | Reply::Tasks(tasks))) = (number, reply)
            else {
                continue;
            };
            for (item, task) in tasks.iter().enumerate().filter(|(_, task)| task.body.is_none()) {
                let key = self.generations.key(*number, task.id);
                unloaded.push(Unloaded { reply: place, item, key });
            }
        }
        unloaded
    }

    /// Gives taken tasks back, empties the log into the database and gives the folder up, whether or
    /// not that succeeded.
    fn close(&mut self) -> Result<(), Error> {
        if self.lock.is_none() {
            return Ok(());
        }
        self.writer.stop();
        self.machine.begin();
        self.machine.give_back_all();
        let changes = self.machine.changes();
        let closed = self
            .writer
            .commit(&self.machine, changes, false)
            .and_then(|_| self.writer.give_up_reserved_ids(&self.machine))
            .and_then(|()| self.writer.close());
        self.machine.keep();
        self.writer.disconnect();
        if let Some(lock) = self.lock.take() {
            lock.release();
        }
        closed
    }
}

/// Tasks leave the replies that were shown before their tube was emptied in the same batch and whose
/// bodies are on disk only: they are gone.
fn forget_emptied(replies: &mut [Result<Reply, Error>], shown: &[Option<u32>], emptied: &[u32]) {
    for (number, reply) in shown.iter().zip(replies) {
        let (Some(number), Ok(Reply::Taken(tasks) | Reply::Tasks(tasks))) = (number, reply) else {
            continue;
        };
        if emptied.contains(number) {
            tasks.retain(|task| task.body.is_some());
        }
    }
}

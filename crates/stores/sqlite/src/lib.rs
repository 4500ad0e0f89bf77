//! Stores tasks in memory and every change in one SQLite file; this is the default store.
//!
//! A batch of commands is applied to the machine, its changes are made durable in one step, then the replies
//! are returned: all commands of the batch share the cost of one sync. A take changes nothing on disk and
//! needs no sync, except the first after opening and later one in a million: those reserve lease numbers.
//! Payloads that exceed a memory budget stay on disk.
//!
//! `folder` opens a store, `check` verifies its files, `task_rows` restores the tasks from the pages that `task_pages` reads, `rewrite` makes the log durable, `writer` commits, `budget` decides which payloads are
//! in memory, `reader` loads the others, `checkpoint` keeps the log short, `codec` encodes the rows,
//! `backup` reads everything at one moment for a file, and restores it,
//! `pace` stores retry policies, rate limits and schedules, `salvage` recovers intact rows of a damaged database. Batches that only change tasks are written to the
//! `journal` first; `applier` applies them to the database. Files, clock and threads come from a `platform`.

mod applier;
mod background;
pub mod backup;
mod budget;
mod check;
mod checkpoint;
mod clock;
mod codec;
mod folder;
mod generation;
mod insert;
mod journal;
mod keys;
mod lock;
mod modes;
mod pace;
pub mod platform;
mod reader;
mod rewrite;
mod rows;
mod salvage;
mod seal;
mod semaphores;
mod task_pages;
mod task_rows;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod transfer;
mod write_error;
mod writer;

use std::collections::{HashSet, VecDeque};
use std::future::ready;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{
    Body, Change, Changes, Command, Error, Machine, Outcome, Reply, Search, Span, StoredState,
    Timestamp,
};

use taskyard_store::{
    BodyKey, Capabilities, Executed, Export, Exported, Import, OpenError, OpenOptions, Pending,
    Store, StoreBackup, StoreHealth, StoreTime, Unloaded,
};

pub use background::{BackgroundThread, BackgroundWork};
use backup::{BackupSlot, Snapshot};
use budget::Budget;
use generation::Generations;
use lock::FolderLock;
use platform::{DataFolder, Platform, SystemPlatform};
use reader::BodyReader;
pub use writer::Fault;
use writer::Writer;

/// The capabilities of the SQLite store.
pub const CAPABILITIES: Capabilities = Capabilities {
    durable: true,
    exports: true,
    imports: true,
    instead_of_backup: None,
    semaphores: true,
    gates: true,
    keys: true,
    retries: true,
    rates: true,
    schedules: true,
    wakes: "at once, by the server itself",
    loses: &[
        (
            "the server is killed or stopped",
            "nothing that was answered; taken tasks are ready again",
        ),
        ("the machine fails", "nothing that was answered, if the disk keeps what it confirmed"),
        (
            "the disk fails",
            "everything since the last backup; damage to some pages is detected and reported",
        ),
    ],
    ..Capabilities::plain("sqlite")
};

/// The embedded durable store.
#[derive(Debug)]
pub struct SqliteStore {
    // Declared before the state, which holds the lock of the folder: no thread reads when the lock is
    // released.
    reader: BodyReader,
    generations: Generations,
    folder: DataFolder,
    backups: Arc<BackupSlot>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    machine: Machine,
    writer: Writer,
    budget: Budget,
    /// Tasks with new bodies of batches that are in the journal only; the bodies must stay in memory.
    unapplied_tasks: VecDeque<(u64, Vec<i64>)>,
    /// Done tasks of such batches; their bodies leave memory once the database has them.
    unapplied_done: VecDeque<(u64, Vec<i64>)>,
    generations: Generations,
    /// Held while the store is open; dropped last.
    lock: Option<FolderLock>,
    /// Time and result of the latest write.
    latest_write: Option<(Timestamp, Result<(), Error>)>,
}

/// The result of a write within this time is used as the health of the disk without another write.
const PROBE_EVERY: Span = Span::from_secs(1);

impl SqliteStore {
    /// Opens the store in `folder`, and creates it if it does not exist. Everything in it is read and checked
    /// first.
    pub fn open(folder: &Path, options: &OpenOptions) -> Result<SqliteStore, OpenError> {
        SqliteStore::open_on(Arc::new(SystemPlatform::default()), folder, options)
    }

    /// The same on another platform.
    pub fn open_on(
        platform: Arc<dyn Platform>,
        folder: &Path,
        options: &OpenOptions,
    ) -> Result<SqliteStore, OpenError> {
        let folder = DataFolder::new(folder, platform);
        let open = folder::open(&folder, options)?;
        SqliteStore::start(folder, open, options)
    }

    /// Opens the folder in which a restore works.
    fn open_restored(folder: &Path) -> Result<SqliteStore, OpenError> {
        let folder = DataFolder::new(folder, Arc::new(SystemPlatform::default()));
        let open = folder::open_restored(&folder)?;
        SqliteStore::start(folder, open, &OpenOptions::default())
    }

    /// Starts the threads of a store.
    fn start(
        folder: DataFolder,
        mut open: folder::OpenFolder,
        options: &OpenOptions,
    ) -> Result<SqliteStore, OpenError> {
        let backups = Arc::new(BackupSlot::default());
        let writer = Writer::start(&folder, open.db, open.writer_state, backups.clone())?;
        let reader = BodyReader::start(&folder)?;
        open.lock.watch()?;
        let generations = Generations::default();
        let state = State {
            budget: Budget::new(options.memory_bytes, generations.clone(), &open.machine),
            generations: generations.clone(),
            machine: open.machine,
            writer,
            unapplied_tasks: VecDeque::new(),
            unapplied_done: VecDeque::new(),
            lock: Some(open.lock),
            latest_write: None,
        };
        Ok(SqliteStore { reader, generations, folder, backups, state: Mutex::new(state) })
    }

    /// Makes a later commit or checkpoint fail, for tests.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.state().writer.set_fault(fault);
    }

    /// Sets at how many pages the log is copied into the database, for tests.
    pub fn set_checkpoint_pages(&self, pages: i32) {
        self.state().writer.database().checkpointer.set_pages(pages);
    }

    /// Sets at how many pages of the log writes are refused, for tests.
    pub fn set_log_pages_max(&self, pages: i32) {
        self.state().writer.database().checkpointer.set_pages_max(pages);
    }

    /// Writes batches larger than this directly into the database, for tests; with 0 all batches.
    pub fn set_journal_bytes(&self, bytes: usize) {
        self.state().writer.set_journal_bytes(bytes);
    }

    /// Sets how long a few batches may stay in the journal before they are applied, for tests.
    pub fn set_journal_delay(&self, delay: Duration) {
        self.state().writer.set_apply_delay(delay);
    }

    /// Applies all batches of the journal to the database now.
    pub fn catch_up(&self) -> Result<(), Error> {
        self.state().writer.catch_up()
    }

    /// Makes the disk appear full beyond this many pages, for tests.
    pub fn limit_pages(&self, pages: u32) -> Result<(), Error> {
        let state = self.state();
        let limited = state.writer.database().db.pragma_update(None, "max_page_count", pages);
        limited.map_err(|error| Error::Store(error.to_string()))
    }

    /// Bytes of payloads that are in memory or being loaded.
    pub fn payload_bytes(&self) -> usize {
        let state = self.state();
        state.budget.bytes(&state.machine)
    }

    /// Reads bodies, and decides for each missing one whether its task was removed or the body is lost.
    async fn load_current(&self, keys: Vec<BodyKey>) -> Vec<Result<Option<Body>, Error>> {
        let mut bodies = self.reader.load(keys.clone()).await;
        for (key, body) in keys.into_iter().zip(&mut bodies) {
            let number = generation::number(key);
            if !self.generations.is_current(key) {
                *body = Ok(None);
            } else if *body == Ok(None) && self.state().machine.is_body_unloaded(number, key.id) {
                *body = Err(reader::unreadable(key, &"its row is missing"));
            }
        }
        bodies
    }

    /// Releases taken tasks and the folder, after a running backup was ended.
    fn close_now(&self) -> Result<(), Error> {
        // Before the lock of the folder is released: no thread may read then.
        self.reader.stop();
        self.backups.close();
        self.state().close()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for SqliteStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let state = &mut *self.state();
        state.budget.add_read_ahead(&mut state.machine, self.reader.take_ahead());
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

    fn export(&self, request: Export) -> Pending<'_, Result<Exported, Error>> {
        Box::pin(ready(self.state().export(request)))
    }

    fn import(&self, now: Timestamp, part: Import) -> Pending<'_, Result<(), Error>> {
        Box::pin(ready(self.state().import(now, part)))
    }

    fn backup(&self, now: Timestamp) -> Result<Box<dyn StoreBackup>, Error> {
        let (applier, at) = {
            let state = self.state();
            if state.lock.is_none() {
                return Err(Error::ShuttingDown);
            }
            let wall =
                Timestamp::from_micros(now.as_micros().saturating_add(state.machine.wall_ahead()));
            (state.writer.applier(), (wall, state.writer.head.batch))
        };
        let snapshot = Snapshot::begin(&self.folder, &applier, self.backups.clone(), at)?;
        Ok(Box::new(snapshot))
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        Box::pin(ready(self.close_now()))
    }
}

impl State {
    fn execute(&mut self, now: Timestamp, commands: Vec<Command>, reader: &BodyReader) -> Executed {
        let (mut shown, mut replies) = (Vec::new(), Vec::new());
        self.machine.begin();
        for command in commands {
            shown.push(self.shown_tube(&command));
            let checked = CAPABILITIES.check(&command);
            replies.push(checked.and_then(|()| self.machine.apply(now, command)));
        }
        self.load_outcome_bodies(&shown, &mut replies);
        let changes = self.machine.changes();
        let replaced = self.replaced(&changes);
        self.load_replaced_bodies(&replaced, &shown, &mut replies);
        let cleared = changes.cleared.clone();
        let done = self.done_in_memory(&changes);
        match self.commit(now, changes) {
            Ok(new) => {
                self.machine.keep();
                self.forget_emptied(&cleared);
                self.forget_replaced(&replaced);
                remove_emptied_tasks(&mut replies, &shown, &cleared);
                self.spill(new, done);
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

    /// Makes the changes durable. Returns the keys of tasks with new bodies.
    fn commit(&mut self, now: Timestamp, changes: Changes) -> Result<Vec<i64>, Error> {
        let Some(lock) = &mut self.lock else {
            return Err(Error::Store("the store is closed".into()));
        };
        lock.check().map_err(|why| self.writer.refuse(&why))?;
        // Bodies that exceed the budget should leave memory at once, so they go directly into the database.
        let is_direct = self.budget.is_exceeded(&self.machine);
        let (batch, cleared) = (self.writer.head.batch, changes.cleared.clone());
        let emptying = (!cleared.is_empty()).then(|| self.generations.begin_emptying());
        let committed = self.writer.commit(&self.machine, changes, is_direct);
        match &committed {
            Err(error) => self.latest_write = Some((now, Err(error.clone()))),
            Ok(_) if self.writer.head.batch != batch => self.latest_write = Some((now, Ok(()))),
            Ok(_) => {}
        }
        if let (Some(emptying), Ok(_)) = (emptying, &committed) {
            emptying.finish(&cleared);
        }
        committed
    }

    /// Written first: after a crash a delayed task must not be due because the wall clock was set.
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

    /// Checks that the disk can be written, by a write unless there was one a moment ago.
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

    /// Drops bodies from memory that exceed the budget, once the database has them.
    fn spill(&mut self, new: Vec<i64>, done: Vec<i64>) {
        if !new.is_empty() {
            self.unapplied_tasks.push_back((self.writer.head.batch, new));
        }
        if !done.is_empty() {
            self.unapplied_done.push_back((self.writer.head.batch, done));
        }
        if !(self.unapplied_tasks.is_empty() && self.unapplied_done.is_empty())
            && self.budget.is_exceeded(&self.machine)
            && let Err(error) = self.writer.catch_up()
        {
            tracing::warn!(%error, "cannot apply the journal, so more payloads than planned stay in memory");
        }
        let in_database = self.writer.in_database();
        while let Some((_, keys)) =
            self.unapplied_tasks.pop_front_if(|(batch, _)| *batch <= in_database)
        {
            self.budget.spill(&mut self.machine, &keys);
        }
        while let Some((_, keys)) =
            self.unapplied_done.pop_front_if(|(batch, _)| *batch <= in_database)
        {
            for (number, id) in keys.into_iter().map(codec::split_key) {
                self.machine.set_body(number, id, None);
            }
        }
    }

    /// Forgets the done tasks of emptied tubes: a new tube may get their number.
    fn forget_emptied(&mut self, cleared: &[u32]) {
        if cleared.is_empty() {
            return;
        }
        for (_, keys) in &mut self.unapplied_done {
            keys.retain(|key| !cleared.contains(&codec::split_key(*key).0));
        }
    }

    /// The earlier bodies of replaced tasks do not matter any more: neither that the database has them, nor
    /// what is being read of them.
    fn forget_replaced(&mut self, replaced: &HashSet<i64>) {
        if replaced.is_empty() {
            return;
        }
        for (_, keys) in &mut self.unapplied_tasks {
            keys.retain(|key| !replaced.contains(key));
        }
        self.budget.note_replaced(replaced);
    }

    /// The keys of tasks whose bodies the changes replace.
    fn replaced(&self, changes: &Changes) -> HashSet<i64> {
        let replaced = changes.tasks.iter().filter_map(|(number, change)| match change {
            Change::Replace(record) => Some(codec::key(*number, record.id)),
            _ => None,
        });
        replaced.collect()
    }

    /// Loads the bodies of tasks that the replies show, that are on disk only, and that later commands of the
    /// batch replaced: before the commit.
    fn load_replaced_bodies(
        &self,
        replaced: &HashSet<i64>,
        shown: &[Option<u32>],
        replies: &mut [Result<Reply, Error>],
    ) {
        if replaced.is_empty() {
            return;
        }
        for (number, reply) in shown.iter().zip(replies) {
            let (Some(number), Ok(reply)) = (number, reply) else { continue };
            let unloaded = reply.shown_mut().iter_mut().filter(|task| task.body.is_none());
            for task in unloaded.filter(|task| replaced.contains(&codec::key(*number, task.id))) {
                match reader::read_body(&self.writer.database().db, *number, task.id) {
                    Ok(body) => task.body = body,
                    Err(error) => {
                        tracing::error!(task = %task.id, ?error, "cannot read the payload of a replaced task; the reply has the new one");
                    }
                }
            }
        }
    }

    /// The keys of tasks that the changes finish and that are kept, with a body in memory.
    fn done_in_memory(&self, changes: &Changes) -> Vec<i64> {
        let done = changes.tasks.iter().filter_map(|(number, change)| match change {
            Change::Insert(record) | Change::Update(record) | Change::Replace(record)
                if record.state == StoredState::Done && record.body.is_some() =>
            {
                Some((*number, record.id))
            }
            _ => None,
        });
        let stored = done.filter(|(number, _)| {
            self.machine.tube_by_number(*number).is_some_and(|tube| !tube.1.temporary)
        });
        stored.map(|(number, id)| codec::key(number, id)).collect()
    }

    /// The number of the tube whose bodies the command's reply shows.
    fn shown_tube(&self, command: &Command) -> Option<u32> {
        match command {
            Command::Take(take) => self.machine.tube_number(&take.tube),
            Command::Peek { tube, .. }
            | Command::Search(Search { tube, .. })
            | Command::Finish { tube, show: true, .. }
            | Command::Delete { tube, show: true, .. } => self.machine.tube_number(tube),
            _ => None,
        }
    }

    /// Loads the bodies of finished tasks that the reply shows and that are on disk only: before the commit,
    /// which may delete their rows. An unreadable body is omitted, because it must not prevent the finish of
    /// the task.
    fn load_outcome_bodies(&self, shown: &[Option<u32>], replies: &mut [Result<Reply, Error>]) {
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
                        tracing::error!(task = %task.id, ?error, "cannot read the payload of a finished task; the reply omits it");
                    }
                }
            }
        }
    }

    /// The tasks in the replies whose bodies are not in memory.
    fn unloaded(&self, shown: &[Option<u32>], replies: &[Result<Reply, Error>]) -> Vec<Unloaded> {
        let mut unloaded = Vec::new();
        for (index, (number, reply)) in shown.iter().zip(replies).enumerate() {
            let (Some(number), Ok(reply)) = (number, reply) else { continue };
            for (item, task) in
                reply.shown().iter().enumerate().filter(|(_, task)| task.body.is_none())
            {
                let key = self.generations.key(*number, task.id);
                unloaded.push(Unloaded { reply: index, item, key });
            }
        }
        unloaded
    }

    /// Releases taken tasks, empties the log into the database and releases the folder, even if that failed.
    fn close(&mut self) -> Result<(), Error> {
        if self.lock.is_none() {
            return Ok(());
        }
        self.writer.stop();
        self.machine.begin();
        self.machine.give_back_all();
        let changes = self.machine.changes();
        let closed = self.writer.commit(&self.machine, changes, false).and_then(|_| {
            if let Err(error) = self.writer.release_reserved(&self.machine) {
                tracing::warn!(%error, "cannot give back reserved numbers of grants; the next start skips them");
            }
            self.writer.close()
        });
        self.machine.keep();
        self.writer.disconnect();
        if let Some(lock) = self.lock.take() {
            lock.release();
        }
        closed
    }
}

/// Removes tasks from replies whose tube was emptied later in the same batch and whose bodies are on disk
/// only: they no longer exist.
fn remove_emptied_tasks(
    replies: &mut [Result<Reply, Error>],
    shown: &[Option<u32>],
    emptied: &[u32],
) {
    for (number, reply) in shown.iter().zip(replies) {
        let (Some(number), Ok(reply)) = (number, reply) else { continue };
        if emptied.contains(number) {
            reply.remove_unloaded();
        }
    }
}

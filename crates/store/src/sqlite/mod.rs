//! The default store: the machine in memory, every change in one SQLite file.
//!
//! A batch of commands is applied to the machine, what changed is committed in one transaction, then
//! the batch is answered: the cost of a sync is shared by all who wait for it. A take changes
//! nothing on disk and waits for none. Payloads beyond a memory budget stay on disk.
//!
//! `folder` opens and checks, `writer` commits, `reader` loads payloads, `checkpoint` keeps the log
//! short, `codec` knows the rows, `salvage` saves what it can.

mod checkpoint;
mod codec;
mod folder;
mod reader;
mod salvage;
mod seal;
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::future::ready;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use taskyard_core::{Body, Change, Changes, Command, Error, Machine, Reply, Timestamp, TubeName};

use crate::{BodyKey, Capabilities, Executed, OpenError, OpenOptions, Pending, Store, Unloaded};

use checkpoint::Checkpointer;
use reader::Reader;
pub use writer::Fault;
use writer::Writer;

/// Bodies of so many tasks are read ahead of the takes of a tube.
const READ_AHEAD: usize = 4096;

/// The embedded durable store.
#[derive(Debug)]
pub struct SqliteStore {
    state: Mutex<State>,
    reader: Reader,
}

#[derive(Debug)]
struct State {
    machine: Machine,
    writer: Writer,
    checkpointer: Checkpointer,
    /// How many bytes of bodies may be in memory.
    memory_bytes: usize,
    /// Tubes of which some bodies are on disk only, and how many tasks may be taken before more are
    /// read ahead.
    spilled: HashMap<u32, usize>,
    /// Grows whenever a tube loses all its tasks.
    epoch: u64,
    /// Held while the store is open.
    _lock: File,
}

impl SqliteStore {
    /// Opens the store in `folder`, making it if it is not there. Everything in it is read and
    /// checked first.
    pub fn open(folder: &Path, options: &OpenOptions) -> Result<SqliteStore, OpenError> {
        let mut open = folder::open(folder, options)?;
        let checkpointer = Checkpointer::start(folder, &mut open.writer.db)?;
        let reader = Reader::start(folder)?;
        let spilled = open.machine.tube_numbers().map(|number| (number, 0)).collect();
        let state = State {
            machine: open.machine,
            writer: open.writer,
            checkpointer,
            memory_bytes: options.memory_bytes,
            spilled,
            epoch: 0,
            _lock: open.lock,
        };
        Ok(SqliteStore { state: Mutex::new(state), reader })
    }

    /// Makes a step of a later commit fail, for tests of what a failure leaves behind.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.state().writer.fault = fault;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for SqliteStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let mut state = self.state();
        state.shelve(self.reader.take_ahead());
        let executed = state.execute(now, commands, &self.reader);
        Box::pin(ready(executed))
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Result<Vec<Option<Body>>, Error>> {
        Box::pin(self.reader.load(keys))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "sqlite", durable: true, shared: false }
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        let closed = self.state().close();
        self.reader.stop();
        Box::pin(ready(closed))
    }
}

impl State {
    fn execute(&mut self, now: Timestamp, commands: Vec<Command>, reader: &Reader) -> Executed {
        let shown: Vec<Option<TubeName>> = commands.iter().map(shows_bodies).collect();
        self.machine.begin();
        let mut replies: Vec<_> =
            commands.into_iter().map(|command| self.machine.apply(now, command)).collect();
        let changes = self.machine.changes();
        match self.writer.commit(&self.machine, &changes) {
            Ok(()) => {
                self.machine.keep();
                self.spill(&changes);
                self.checkpointer.after_commit(&self.writer.db);
            }
            Err(error) => {
                self.machine.undo();
                replies.fill(Err(error));
            }
        }
        let unloaded = self.unloaded(&shown, &replies);
        self.read_ahead(&shown, &replies, reader);
        Executed { replies, effects: self.machine.take_effects(), unloaded }
    }

    /// Takes bodies out of memory that would exceed the budget; disk has them now. A quarter of it is
    /// left to what is read ahead, because that is wanted first.
    fn spill(&mut self, changes: &Changes) {
        if !changes.cleared.is_empty() {
            self.epoch += 1;
        }
        let budget = self.memory_bytes - self.memory_bytes / 4;
        if self.machine.body_bytes() <= budget {
            return;
        }
        for (number, change) in changes.tasks.iter().rev() {
            let Change::Insert(record) = change else { continue };
            let temporary =
                self.machine.tube_by_number(*number).is_none_or(|tube| tube.1.temporary);
            if temporary {
                continue;
            }
            self.machine.set_body(*number, record.id, None);
            self.spilled.entry(*number).or_insert(0);
            if self.machine.body_bytes() <= budget {
                break;
            }
        }
    }

    /// Puts what was read ahead into memory, as far as the budget goes.
    fn shelve(&mut self, ahead: Vec<reader::Ahead>) {
        for (key, body) in
            ahead.into_iter().filter(|a| a.epoch == self.epoch).flat_map(|a| a.bodies)
        {
            let fits = self.machine.body_bytes() + body.footprint() <= self.memory_bytes;
            if fits && self.machine.lacks_body(key.tube, key.id) {
                self.machine.set_body(key.tube, key.id, Some(body));
            }
        }
    }

    /// The tasks in the replies whose bodies are not in memory.
    fn unloaded(
        &self,
        shown: &[Option<TubeName>],
        replies: &[Result<Reply, Error>],
    ) -> Vec<Unloaded> {
        let mut unloaded = Vec::new();
        for (place, (tube, reply)) in shown.iter().zip(replies).enumerate() {
            let (Some(tube), Ok(Reply::Taken(tasks) | Reply::Tasks(tasks))) = (tube, reply) else {
                continue;
            };
            for (item, task) in tasks.iter().enumerate().filter(|(_, task)| task.body.is_none()) {
                if let Some(number) = self.machine.tube_number(tube) {
                    let key = BodyKey { tube: number, id: task.id };
                    unloaded.push(Unloaded { reply: place, item, key });
                }
            }
        }
        unloaded
    }

    /// Asks for the bodies that the next takes will want, before they want them.
    fn read_ahead(
        &mut self,
        shown: &[Option<TubeName>],
        replies: &[Result<Reply, Error>],
        reader: &Reader,
    ) {
        if self.spilled.is_empty() {
            return;
        }
        for (tube, reply) in shown.iter().zip(replies) {
            let (Some(tube), Ok(Reply::Taken(tasks))) = (tube, reply) else { continue };
            let Some(number) = self.machine.tube_number(tube) else { continue };
            let Some(left) = self.spilled.get_mut(&number) else { continue };
            *left = left.saturating_sub(tasks.len());
            if *left > READ_AHEAD / 2 || tasks.is_empty() {
                continue;
            }
            *left = READ_AHEAD;
            let wanted = self.machine.upcoming_without_body(number, READ_AHEAD);
            let keys: Vec<_> = wanted.into_iter().map(|id| BodyKey { tube: number, id }).collect();
            if !keys.is_empty() {
                reader.read_ahead(self.epoch, keys);
            }
        }
    }

    /// Gives taken tasks back and empties the log into the database.
    fn close(&mut self) -> Result<(), Error> {
        self.machine.begin();
        self.machine.give_back_all();
        let changes = self.machine.changes();
        self.writer.commit(&self.machine, &changes)?;
        self.machine.keep();
        self.checkpointer.stop();
        self.writer.close()
    }
}

/// The tube of a command whose reply shows bodies.
fn shows_bodies(command: &Command) -> Option<TubeName> {
    match command {
        Command::Take(take) => Some(take.tube.clone()),
        Command::Peek { tube, .. } => Some(tube.clone()),
        _ => None,
    }
}

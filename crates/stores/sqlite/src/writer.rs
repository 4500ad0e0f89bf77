//! How a batch reaches the disk: the journal or one transaction, then the seal.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use taskyard_core::semaphore::SemaphoreChanges;
use taskyard_core::{Changes, Error, Machine};

use super::checkpoint::Checkpointer;
use super::clock;
use super::codec::{self, Head};
use super::folder::unavailable;
use super::follow::{Database, Follower, roll_back};
use super::journal::Journal;
use super::rows::{self, Batch, Rows};
use super::seal::Seal;
use super::semaphores::{self, SemaphoreHead};
use super::write_error::WriteError;
use taskyard_store::OpenError;

/// How many lease numbers are reserved on disk at a time.
const LEASES_RESERVED: u64 = 1 << 20;

/// What writes batches down.
#[derive(Debug)]
pub(super) struct Writer {
    /// The head after the newest batch, which may be in the journal only.
    pub head: Head,
    semaphores: SemaphoreHead,
    seal: Arc<Seal>,
    journal: Journal,
    follower: Follower,
    /// The `next_id` on disk of each tube, by number.
    next_ids: Vec<u64>,
    /// The machine's next lease number when it last came here.
    next_lease: u64,
    /// Up to which grant no new semaphore gave one then.
    grant_floor: u64,
    /// Why nothing may be written any more.
    refusal: Refusal,
    /// Where to fail, in tests of what a failure leaves behind.
    fault: Option<Fault>,
}

/// Why nothing may be written any more, if that is so.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusal(Arc<Mutex<Option<String>>>);

impl Refusal {
    /// Nothing is written any more, because of this.
    pub fn set(&self, why: &str) {
        let text = format!("{why}; nothing is written until it is opened anew");
        self.lock().get_or_insert(text);
    }

    pub fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    /// What is said to who wants to write all the same.
    pub fn why(&self) -> Option<String> {
        self.lock().clone()
    }

    fn check(&self) -> Result<(), Error> {
        self.why().map_or(Ok(()), |refusal| Err(Error::Store(refusal)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a folder was found to contain, beside the machine.
#[derive(Debug)]
pub(super) struct Known {
    pub head: Head,
    pub semaphores: SemaphoreHead,
    pub seal: Seal,
    /// The `next_id` on disk of each tube, by number.
    pub next_ids: Vec<(u32, u64)>,
}

/// A failure that a test asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A step of a commit fails.
    Step {
        /// How many more steps go well.
        after: usize,
    },
    /// The disk does not confirm a commit.
    Sync,
    /// The disk does not confirm what the checkpoint's thread copied.
    Copy,
    /// The disk does not confirm what the writer copied of the log, after that thread.
    Rest,
}

impl Writer {
    /// Goes on with a folder of which all is in the database.
    pub fn start(folder: &Path, mut db: Connection, known: Known) -> Result<Writer, OpenError> {
        let refusal = Refusal::default();
        let checkpointer = Checkpointer::start(folder, &mut db)?;
        let seal = Arc::new(known.seal);
        let database = Database { db, head: known.head, checkpointer, seal: seal.clone() };
        let follower = Follower::start(database, refusal.clone()).map_err(unavailable(folder))?;
        let mut writer = Writer {
            head: known.head,
            semaphores: known.semaphores,
            seal,
            journal: Journal::new(folder),
            follower,
            next_ids: Vec::new(),
            next_lease: known.head.lease_ceiling,
            grant_floor: known.semaphores.grant_floor,
            refusal,
            fault: None,
        };
        for (number, next_id) in known.next_ids {
            writer.set_next_id(number, next_id);
        }
        Ok(writer)
    }

    /// Makes a later commit or checkpoint fail.
    pub fn set_fault(&mut self, fault: Option<Fault>) {
        self.fault = fault;
        self.follower.database().checkpointer.set_fault(fault);
    }

    /// Writes batches straight into the database unless they are smaller than this.
    pub fn set_journal_bytes(&mut self, bytes: usize) {
        self.journal.set_batch_bytes(bytes);
    }

    /// Lets batches wait so long for company on their way into the database.
    pub fn set_patience(&mut self, patience: Duration) {
        self.follower.set_patience(patience);
    }

    /// The database, which may lack the newest batches.
    pub fn database(&self) -> MutexGuard<'_, Database> {
        self.follower.database()
    }

    /// The newest batch that is in the database.
    pub fn in_database(&self) -> u64 {
        self.follower.written()
    }

    /// Brings everything into the database.
    pub fn catch_up(&self) -> Result<(), Error> {
        self.catch_up_to(u64::MAX)
    }

    fn catch_up_to(&self, newest: u64) -> Result<(), Error> {
        self.follower.caught_up(newest).map(|_| ())
    }

    /// Notes the `next_id` that is on disk for a tube.
    fn set_next_id(&mut self, number: u32, next_id: u64) {
        let number = number as usize;
        if self.next_ids.len() <= number {
            self.next_ids.resize(number + 1, 0);
        }
        self.next_ids[number] = next_id;
    }

    /// Makes what the machine's batch changed durable; does nothing when nothing must be. With `straight`, new tasks
    /// are in the database at once. Returns their keys.
    pub fn commit(
        &mut self,
        machine: &Machine,
        changes: Changes,
        straight: bool,
    ) -> Result<Vec<i64>, Error> {
        let mut plan = Plan::new(machine, changes, &self.next_ids);
        // Not compared with what is on disk: after a failed batch each take would need the disk.
        let grant_floor = machine.semaphores().grant_floor();
        plan.floor_changed = grant_floor != self.grant_floor;
        self.grant_floor = grant_floor;
        let issued = machine.next_lease() != self.next_lease;
        self.next_lease = machine.next_lease();
        let lease_ceiling = self.lease_ceiling(machine, issued, plan.is_empty());
        if plan.is_empty() && lease_ceiling == self.head.lease_ceiling {
            return Ok(Vec::new());
        }
        let new: Vec<i64> = plan.rows.inserts.iter().map(|row| row.0).collect();
        self.write_batch(machine, plan, lease_ceiling, straight && !new.is_empty())?;
        Ok(new)
    }

    /// Writes a batch that changes nothing, to find out whether anything can be written.
    pub fn probe(&mut self, machine: &Machine) -> Result<(), Error> {
        self.write_batch(machine, Plan::default(), self.head.lease_ceiling, false)
    }

    /// Writes how far wall time is ahead.
    pub fn write_clock(&mut self, machine: &Machine, micros: i64) -> Result<(), Error> {
        let plan = Plan { wall_ahead: Some(micros), ..Plan::default() };
        self.write_batch(machine, plan, self.head.lease_ceiling, false)
    }

    /// Writes the exact next ids of temporary tubes instead of those that were reserved: no more are given out.
    pub fn give_up_reserved_ids(&mut self, machine: &Machine) -> Result<(), Error> {
        let mut plan = Plan::default();
        for number in machine.tube_numbers() {
            let Some(record) = machine.tube_record(number) else { continue };
            let written = self.next_ids.get(number as usize).copied().unwrap_or(0);
            if record.options.temporary && written > record.next_id {
                plan.rows.next_ids.push((number, record.next_id));
            }
        }
        if plan.is_empty() {
            return Ok(());
        }
        self.write_batch(machine, plan, self.head.lease_ceiling, false)
    }

    fn write_batch(
        &mut self,
        machine: &Machine,
        plan: Plan,
        lease_ceiling: u64,
        straight: bool,
    ) -> Result<(), Error> {
        self.refusal.check()?;
        let mut head = self.head;
        head.batch += 1;
        head.lease_ceiling = lease_ceiling;
        if plan.is_plain() && !straight && self.journal.suits(&plan.rows) {
            self.write_down(head, plan.rows)?;
        } else {
            if !plan.tubes.is_empty() {
                head.tubes = machine.tube_numbers().count() as u64;
            }
            self.write_through(machine, &plan, head)?;
        }
        if let Err(error) = self.seal.write(self.head.batch) {
            tracing::warn!(%error, "cannot write the seal file");
        }
        Ok(())
    }

    /// Writes nothing any more, because of this.
    pub fn refuse(&self, why: &str) -> Error {
        tracing::error!("{why}");
        self.refusal.set(why);
        Error::Store(self.refusal.why().unwrap_or_else(|| why.to_owned()))
    }

    /// Writes a batch that only changes tasks into the journal.
    fn write_down(&mut self, mut head: Head, rows: Rows) -> Result<(), Error> {
        if self.follower.has_failed() {
            self.catch_up()?;
        }
        rows.count(&mut head);
        let bytes = self.append(&head, &rows).map_err(|error| self.failed(&error))?;
        for (number, next_id) in &rows.next_ids {
            self.set_next_id(*number, *next_id);
        }
        self.head = head;
        if self.follower.push(Batch { head, rows }, bytes) {
            // The batch is safe already, and the next one is told if this fails.
            _ = self.catch_up();
        }
        Ok(())
    }

    fn append(&mut self, head: &Head, rows: &Rows) -> Result<usize, WriteError> {
        self.step()?;
        let needed = self.journal.prepare(head, rows)?;
        if self.follower.written() < needed {
            // The disk is faster than the database: this is where the writer waits for it.
            self.catch_up_to(needed).map_err(|error| WriteError::Behind(error.to_string()))?;
        }
        self.step()?;
        let unconfirmed = self.fault == Some(Fault::Sync);
        Ok(self.journal.append(head.batch, unconfirmed)?)
    }

    /// Writes any batch into the database, after those before it.
    fn write_through(
        &mut self,
        machine: &Machine,
        plan: &Plan,
        mut head: Head,
    ) -> Result<(), Error> {
        let shared = self.follower.shared();
        let mut database = shared.caught_up(u64::MAX)?;
        let mut semaphores = self.semaphores;
        let written = database
            .check_room(&self.refusal)
            .and_then(|()| self.write(&database.db, machine, plan, &mut head, &mut semaphores));
        if let Err(error) = written {
            roll_back(&database.db);
            drop(database);
            return Err(self.failed(&error));
        }
        (self.head, self.semaphores) = (head, semaphores);
        shared.wrote(&mut database, head);
        Ok(())
    }

    /// Empties the journal and the log into the database, after which one file holds everything.
    pub fn close(&mut self) -> Result<(), Error> {
        self.refusal.check()?;
        let database = self.follower.caught_up(u64::MAX)?;
        let emptied =
            database.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
        drop(database);
        match emptied {
            Ok(false) => {
                let cleared = self.journal.clear();
                cleared.map_err(|error| Error::Store(format!("cannot empty the journal: {error}")))
            }
            Ok(true) => Err(Error::Store(
                "cannot empty the write-ahead log, because another program reads it; nothing is lost"
                    .into(),
            )),
            Err(error) => Err(Error::Store(format!("cannot empty the write-ahead log: {error}"))),
        }
    }

    /// Ends the threads. Whether a copy of the log failed at last is known then.
    pub fn stop(&mut self) {
        self.follower.stop();
        let Database { checkpointer, .. } = &mut *self.follower.database();
        checkpointer.stop(&self.refusal);
    }

    /// Gives the database up: whoever opens it next must find no connection of ours, because what
    /// SQLite believes of the log lives as long as the last of them.
    pub fn disconnect(&mut self) {
        match Connection::open_in_memory() {
            Ok(nothing) => self.follower.database().db = nothing,
            Err(error) => tracing::warn!(%error, "cannot give the database up before the store"),
        }
    }

    /// Leases are reserved ahead, so that a take needs no disk; a batch that goes to disk anyway
    /// renews the reserve early. One that issued none needs none, even if an earlier one could not
    /// have its reserve.
    fn lease_ceiling(&self, machine: &Machine, issued: bool, idle: bool) -> u64 {
        let (ceiling, next) = (self.head.lease_ceiling, machine.next_lease());
        let early = if idle { 0 } else { LEASES_RESERVED / 2 };
        let wanted = next + early > ceiling && (issued || !idle);
        if wanted { next + LEASES_RESERVED } else { ceiling }
    }

    fn write(
        &mut self,
        db: &Connection,
        machine: &Machine,
        plan: &Plan,
        head: &mut Head,
        semaphores: &mut SemaphoreHead,
    ) -> Result<(), WriteError> {
        self.step()?;
        db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for number in &plan.cleared {
            self.step()?;
            clear(db, *number, head)?;
        }
        let told = plan.rows.next_ids.iter().map(|(number, next_id)| (*number, Some(*next_id)));
        for (number, next_id) in plan.tubes.iter().map(|number| (*number, None)).chain(told) {
            self.step()?;
            self.write_tube(db, machine, number, next_id)?;
        }
        self.step()?;
        plan.rows.insert(db)?;
        self.step()?;
        plan.rows.update(db)?;
        self.step()?;
        plan.rows.remove(db)?;
        plan.rows.count(head);
        if !plan.semaphores.is_empty() || plan.floor_changed {
            self.step()?;
            let all = machine.semaphores();
            let numbers = (all.next_event(), all.grant_floor());
            semaphores::write(db, &plan.semaphores, numbers, semaphores)?;
        }
        if let Some(micros) = plan.wall_ahead {
            self.step()?;
            clock::write(db, micros)?;
        }
        self.step()?;
        head.write(db)?;
        self.step()?;
        commit(db)?;
        match self.fault {
            // It is found when the store is opened again, as it would be after a real failure.
            Some(Fault::Sync) => Err(WriteError::Commit(failed_sync())),
            _ => Ok(()),
        }
    }

    fn write_tube(
        &mut self,
        db: &Connection,
        machine: &Machine,
        number: u32,
        next_id: Option<u64>,
    ) -> Result<(), WriteError> {
        match machine.tube_record(number) {
            Some(mut record) => {
                record.next_id = next_id.unwrap_or_else(|| rows::next_id(&record));
                codec::write_tube(db, number, &record)?;
                self.set_next_id(number, record.next_id);
            }
            None => {
                db.prepare_cached("DELETE FROM tube WHERE number = ?")?.execute([number])?;
                self.set_next_id(number, 0);
            }
        }
        Ok(())
    }

    /// What a failed batch leaves: it is undone on disk, here and in the machine.
    fn failed(&mut self, error: &WriteError) -> Error {
        // What was written about tubes is undone too, so nothing is known of them.
        self.next_ids.fill(0);
        let message = error.describe();
        if error.is_lasting() {
            tracing::error!("{message}");
            self.refusal.set(&message);
        }
        if error.is_outcome_unknown() {
            return Error::OutcomeUnknown(format!(
                "{message}; it may have been done all the same, which a restart of the server will show"
            ));
        }
        Error::Store(message)
    }

    /// The name of a place at which a test may ask for a failure.
    fn step(&mut self) -> Result<(), WriteError> {
        match &mut self.fault {
            Some(Fault::Step { after: 0 }) => Err(WriteError::Fault),
            Some(Fault::Step { after }) => {
                *after -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// What must be written, in the order in which it is.
#[derive(Default)]
struct Plan {
    cleared: Vec<u32>,
    tubes: Vec<u32>,
    rows: Rows,
    semaphores: SemaphoreChanges,
    /// Whether the batch changed which grants no new semaphore gives: one that it made and dropped leaves no row.
    floor_changed: bool,
    /// How far wall time is ahead, if that changed.
    wall_ahead: Option<i64>,
}

impl Plan {
    fn new(machine: &Machine, mut changes: Changes, next_ids: &[u64]) -> Self {
        let mut rows = Rows::new(machine, std::mem::take(&mut changes.tasks), next_ids);
        let tubes: Vec<u32> = changes.tubes.iter().map(|tube| tube.0).collect();
        rows.next_ids.retain(|(number, _)| !tubes.contains(number));
        let Changes { cleared, semaphores, .. } = changes;
        Plan { cleared, tubes, rows, semaphores, floor_changed: false, wall_ahead: None }
    }

    /// Whether it only changes tasks.
    fn is_plain(&self) -> bool {
        let rows = self.cleared.is_empty() && self.tubes.is_empty() && self.semaphores.is_empty();
        rows && !self.floor_changed && self.wall_ahead.is_none()
    }

    fn is_empty(&self) -> bool {
        self.is_plain() && self.rows.is_empty()
    }
}

/// Ends a transaction.
pub(super) fn commit(db: &Connection) -> Result<(), WriteError> {
    db.prepare_cached("COMMIT")?.execute([]).map_err(WriteError::Commit)?;
    Ok(())
}

/// Removes all tasks of a tube.
fn clear(db: &Connection, number: u32, head: &mut Head) -> Result<(), WriteError> {
    let (first, last) = codec::key_range(number);
    let mut keys = db.prepare_cached("SELECT key FROM task WHERE key BETWEEN ? AND ?")?;
    let mut rows = keys.query([first, last])?;
    while let Some(row) = rows.next()? {
        head.remove(row.get(0)?);
    }
    let sql = "DELETE FROM task WHERE key BETWEEN ? AND ?";
    db.prepare_cached(sql)?.execute([first, last])?;
    Ok(())
}

/// What SQLite says when the disk did not confirm what was written.
pub(super) fn failed_sync() -> rusqlite::Error {
    let error = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
    rusqlite::Error::SqliteFailure(error, None)
}

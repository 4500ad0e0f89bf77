//! Writes each batch to disk: to the journal or in one transaction, then the seal.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use taskyard_core::semaphore::SemaphoreChanges;
use taskyard_core::{Changes, Error, Machine};

use super::applier::{ApplierState, Database, JournalApplier, roll_back};
use super::backup::BackupSlot;
use super::checkpoint::Checkpointer;
use super::clock;
use super::codec::{self, Head};
use super::folder::unavailable;
use super::journal::Journal;
use super::keys;
use super::pace::{self, PaceRows, TubePace};
use super::platform::DataFolder;
use super::rows::{self, Batch, Rows};
use super::seal::Seal;
use super::semaphores::{self, ReservedGrants, SemaphoreHead};
use super::write_error::WriteError;
use taskyard_store::OpenError;

/// How many lease numbers are reserved on disk at a time.
const LEASES_RESERVED: u64 = 1 << 20;

/// Writes batches to disk.
#[derive(Debug)]
pub(super) struct Writer {
    /// The head after the newest batch, which may be in the journal only.
    pub head: Head,
    semaphores: SemaphoreHead,
    reserved_grants: ReservedGrants,
    seal: Arc<Seal>,
    journal: Journal,
    applier: JournalApplier,
    /// The `next_id` on disk of each tube, by number.
    next_ids: Vec<u64>,
    /// The machine's next lease number at the latest commit.
    next_lease: u64,
    /// The machine's grant floor at the latest commit.
    grant_floor: u64,
    /// The reason that no write may follow, if any.
    refusal: WriteRefusal,
    /// A failure that a test requests.
    fault: Option<Fault>,
}

/// The reason that no write may follow, if any; shared by the threads.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteRefusal(Arc<Mutex<Option<String>>>);

impl WriteRefusal {
    /// Refuses all later writes for this reason.
    pub fn set(&self, why: &str) {
        let text = format!("{why}; writes are refused until the store is reopened");
        self.lock().get_or_insert(text);
    }

    pub fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    /// The reason, if writes are refused.
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

/// The state from which the writer of an opened folder continues.
#[derive(Debug)]
pub(super) struct WriterState {
    pub head: Head,
    pub semaphores: SemaphoreHead,
    pub seal: Seal,
    /// The `next_id` on disk of each tube, by number.
    pub next_ids: Vec<(u32, u64)>,
}

/// A failure that a test requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A step of a commit fails.
    Step {
        /// How many steps succeed before it.
        after: usize,
    },
    /// The disk does not confirm a commit.
    Sync,
    /// The disk does not confirm the pages that the checkpoint thread copied.
    ThreadCheckpoint,
    /// The disk does not confirm the rest of the log that the writer copied after the thread.
    WriterCheckpoint,
}

impl Writer {
    /// Starts with a folder whose batches are all in the database.
    pub fn start(
        folder: &DataFolder,
        mut db: Connection,
        state: WriterState,
        backups: Arc<BackupSlot>,
    ) -> Result<Writer, OpenError> {
        let refusal = WriteRefusal::default();
        let checkpointer = Checkpointer::start(folder, &mut db)?;
        let seal = Arc::new(state.seal);
        let database = Database { db, head: state.head, checkpointer, seal: seal.clone(), backups };
        let applier = JournalApplier::start(folder.platform().clone(), database, refusal.clone());
        let applier = applier.map_err(unavailable(folder))?;
        let mut writer = Writer {
            head: state.head,
            semaphores: state.semaphores,
            reserved_grants: ReservedGrants::default(),
            seal,
            journal: Journal::new(folder),
            applier,
            next_ids: Vec::new(),
            next_lease: state.head.lease_ceiling,
            grant_floor: state.semaphores.grant_floor,
            refusal,
            fault: None,
        };
        for (number, next_id) in state.next_ids {
            writer.set_next_id(number, next_id);
        }
        Ok(writer)
    }

    /// Makes a later commit or checkpoint fail.
    pub fn set_fault(&mut self, fault: Option<Fault>) {
        self.fault = fault;
        self.applier.database().checkpointer.set_fault(fault);
    }

    /// Sets the size above which batches are written directly into the database.
    pub fn set_journal_bytes(&mut self, bytes: usize) {
        self.journal.set_batch_bytes(bytes);
    }

    /// Sets how long batches wait in the journal for others.
    pub fn set_apply_delay(&mut self, delay: Duration) {
        self.applier.set_apply_delay(delay);
    }

    /// The database, which may lack the newest batches.
    pub fn database(&self) -> MutexGuard<'_, Database> {
        self.applier.database()
    }

    /// What applies batches, for a backup.
    pub fn applier(&self) -> Arc<ApplierState> {
        self.applier.shared()
    }

    /// The number of the newest batch in the database.
    pub fn in_database(&self) -> u64 {
        self.applier.applied_batch()
    }

    /// Applies all batches of the journal to the database.
    pub fn catch_up(&self) -> Result<(), Error> {
        self.catch_up_to(u64::MAX)
    }

    fn catch_up_to(&self, newest: u64) -> Result<(), Error> {
        self.applier.caught_up(newest).map(|_| ())
    }

    /// Records the `next_id` that is on disk for a tube.
    fn set_next_id(&mut self, number: u32, next_id: u64) {
        let number = number as usize;
        if self.next_ids.len() <= number {
            self.next_ids.resize(number + 1, 0);
        }
        self.next_ids[number] = next_id;
    }

    /// Makes the changes of a batch durable; does nothing if none of them must be. With `is_direct`, new
    /// bodies are written directly into the database. Returns the keys of their tasks.
    pub fn commit(
        &mut self,
        machine: &Machine,
        changes: Changes,
        is_direct: bool,
    ) -> Result<Vec<i64>, Error> {
        let mut plan = CommitPlan::new(machine, changes, &self.next_ids);
        // Not compared with the value on disk: after a failed batch each take would need the disk.
        let grant_floor = machine.semaphores().grant_floor();
        plan.floor_changed = grant_floor != self.grant_floor;
        self.grant_floor = grant_floor;
        let issued = machine.next_lease() != self.next_lease;
        self.next_lease = machine.next_lease();
        let lease_ceiling = self.lease_ceiling(machine, issued, plan.is_empty());
        if plan.is_empty() && lease_ceiling == self.head.lease_ceiling {
            return Ok(Vec::new());
        }
        let new = plan.rows.with_bodies();
        self.write_batch(machine, plan, lease_ceiling, is_direct && !new.is_empty())?;
        Ok(new)
    }

    /// Writes a batch without changes, to check that the disk can be written.
    pub fn probe(&mut self, machine: &Machine) -> Result<(), Error> {
        self.write_batch(machine, CommitPlan::default(), self.head.lease_ceiling, false)
    }

    /// Writes how far wall time is ahead.
    pub fn write_clock(&mut self, machine: &Machine, micros: i64) -> Result<(), Error> {
        let plan = CommitPlan { wall_ahead: Some(micros), ..CommitPlan::default() };
        self.write_batch(machine, plan, self.head.lease_ceiling, false)
    }

    /// Writes the exact next ids of temporary tubes and the exact numbers of grants instead of the reserved ones;
    /// no more are issued afterwards.
    pub fn release_reserved(&mut self, machine: &Machine) -> Result<(), Error> {
        let releases_grants = !self.reserved_grants.is_empty();
        let mut plan = CommitPlan { releases_grants, ..CommitPlan::default() };
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
        plan: CommitPlan,
        lease_ceiling: u64,
        is_direct: bool,
    ) -> Result<(), Error> {
        self.refusal.check()?;
        let mut head = self.head;
        head.batch += 1;
        head.lease_ceiling = lease_ceiling;
        if plan.is_plain() && !is_direct && self.journal.accepts(&plan.rows) {
            self.write_to_journal(head, plan.rows)?;
        } else {
            if !plan.tubes.is_empty() {
                head.tubes = machine.tube_count() as u64;
            }
            self.write_to_database(machine, &plan, head)?;
        }
        if let Err(error) = self.seal.write(self.head.batch) {
            tracing::warn!(%error, "cannot write the seal file");
        }
        Ok(())
    }

    /// Refuses all later writes for this reason, and returns it as an error.
    pub fn refuse(&self, why: &str) -> Error {
        tracing::error!("{why}");
        self.refusal.set(why);
        Error::Store(self.refusal.why().unwrap_or_else(|| why.to_owned()))
    }

    /// Writes a batch that only changes tasks into the journal.
    fn write_to_journal(&mut self, mut head: Head, rows: Rows) -> Result<(), Error> {
        if self.applier.has_failed() {
            self.catch_up()?;
        }
        rows.count(&mut head);
        let bytes = self.append(&head, &rows).map_err(|error| self.failed(&error))?;
        for (number, next_id) in &rows.next_ids {
            self.set_next_id(*number, *next_id);
        }
        self.head = head;
        if self.applier.push(Batch { head, rows }, bytes) {
            // This batch is durable already; a failure is reported to the next one.
            _ = self.catch_up();
        }
        Ok(())
    }

    fn append(&mut self, head: &Head, rows: &Rows) -> Result<usize, WriteError> {
        self.step()?;
        let needed = self.journal.prepare(head, rows)?;
        if self.applier.applied_batch() < needed {
            // The journal grows faster than it is applied: here the writer waits.
            self.catch_up_to(needed)
                .map_err(|error| WriteError::DatabaseBehind(error.to_string()))?;
        }
        self.step()?;
        let unconfirmed = self.fault == Some(Fault::Sync);
        Ok(self.journal.append(head.batch, unconfirmed)?)
    }

    /// Writes a batch into the database, after those in the journal.
    fn write_to_database(
        &mut self,
        machine: &Machine,
        plan: &CommitPlan,
        mut head: Head,
    ) -> Result<(), Error> {
        let shared = self.applier.shared();
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
        shared.record_commit(&mut database, head);
        Ok(())
    }

    /// Empties the journal and the log into the database, so that one file has everything.
    pub fn close(&mut self) -> Result<(), Error> {
        self.refusal.check()?;
        let database = self.applier.caught_up(u64::MAX)?;
        let emptied =
            database.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
        drop(database);
        match emptied {
            Ok(false) => {
                let cleared = self.journal.clear();
                cleared.map_err(|error| Error::Store(format!("cannot empty the journal: {error}")))
            }
            Ok(true) => Err(Error::Store(
                "cannot empty the write-ahead log, because another program reads it; no data is lost"
                    .into(),
            )),
            Err(error) => Err(Error::Store(format!("cannot empty the write-ahead log: {error}"))),
        }
    }

    /// Ends the threads. A failure of the last copy of the log is known afterwards.
    pub fn stop(&mut self) {
        self.applier.stop();
        let Database { checkpointer, .. } = &mut *self.applier.database();
        checkpointer.stop(&self.refusal);
    }

    /// Closes the database. The next process must find no open connection of this one, because SQLite keeps
    /// its view of the log until the last connection closes.
    pub fn disconnect(&mut self) {
        match Connection::open_in_memory() {
            Ok(empty) => self.applier.database().db = empty,
            Err(error) => tracing::warn!(%error, "cannot close the database before the store"),
        }
    }

    /// The lease ceiling to write. Leases are reserved ahead, so that a take needs no disk; a batch that is
    /// written anyway renews the reservation early. A batch that issued no lease needs none, even if an
    /// earlier reservation failed.
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
        plan: &CommitPlan,
        head: &mut Head,
        semaphores: &mut SemaphoreHead,
    ) -> Result<(), WriteError> {
        self.step()?;
        db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for number in &plan.cleared {
            self.step()?;
            clear(db, *number, head)?;
        }
        let next_ids = plan.rows.next_ids.iter().map(|(number, next_id)| (*number, Some(*next_id)));
        for (number, next_id) in plan.tubes.iter().map(|number| (*number, None)).chain(next_ids) {
            self.step()?;
            self.write_tube(db, machine, number, next_id)?;
        }
        self.step()?;
        plan.rows.insert(db)?;
        self.step()?;
        plan.rows.update(db)?;
        plan.rows.replace(db)?;
        self.step()?;
        plan.rows.remove(db)?;
        plan.rows.count(head);
        keys::write(db, &plan.rows.keys)?;
        if !plan.rows.pace.is_empty() {
            self.step()?;
            plan.rows.pace.write(db)?;
        }
        if !plan.semaphores.is_empty() || plan.floor_changed {
            self.step()?;
            let all = machine.semaphores();
            let numbers = (all.next_event(), all.grant_floor());
            let reserved = &mut self.reserved_grants;
            semaphores::write(db, &plan.semaphores, numbers, semaphores, reserved)?;
        }
        if plan.releases_grants {
            self.step()?;
            semaphores::release_reserved(db, machine, &mut self.reserved_grants)?;
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
            // The next opening finds the commit, as after a real failure.
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
                if next_id.is_none() {
                    pace::write_tube(db, number, TubePace::of(&record).as_ref())?;
                }
                self.set_next_id(number, record.next_id);
            }
            None => {
                db.prepare_cached("DELETE FROM tube WHERE number = ?")?.execute([number])?;
                pace::write_tube(db, number, None)?;
                self.set_next_id(number, 0);
            }
        }
        Ok(())
    }

    /// Handles a failed batch, which is undone on disk, here and in the machine.
    fn failed(&mut self, error: &WriteError) -> Error {
        // The written rows of tubes and semaphores are undone too, so what they reserve is unknown.
        self.next_ids.fill(0);
        self.reserved_grants.clear();
        let message = error.describe();
        if error.is_permanent() {
            tracing::error!("{message}");
            self.refusal.set(&message);
        }
        if error.is_outcome_unknown() {
            return Error::OutcomeUnknown(format!(
                "{message}; it may have been executed nevertheless, which a restart of the server will show"
            ));
        }
        Error::Store(message)
    }

    /// A step at which a test may request a failure.
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

/// The changes to write, in this order.
#[derive(Default)]
struct CommitPlan {
    cleared: Vec<u32>,
    tubes: Vec<u32>,
    rows: Rows,
    semaphores: SemaphoreChanges,
    /// Whether the grant floor changed: a semaphore that the batch created and dropped leaves no row.
    floor_changed: bool,
    /// Whether the numbers of grants that are reserved are given back.
    releases_grants: bool,
    /// How far wall time is ahead, if it changed.
    wall_ahead: Option<i64>,
}

impl CommitPlan {
    fn new(machine: &Machine, mut changes: Changes, next_ids: &[u64]) -> Self {
        let mut rows = Rows::new(machine, &mut changes, next_ids);
        let tubes: Vec<u32> = changes.tubes.iter().map(|tube| tube.0).collect();
        rows.next_ids.retain(|(number, _)| !tubes.contains(number));
        let Changes { cleared, semaphores, buckets, schedules, .. } = changes;
        rows.pace = PaceRows::new(buckets, schedules);
        CommitPlan { cleared, tubes, rows, semaphores, ..CommitPlan::default() }
    }

    /// Whether it only changes tasks.
    fn is_plain(&self) -> bool {
        let rows = self.cleared.is_empty() && self.tubes.is_empty() && self.semaphores.is_empty();
        rows && !self.floor_changed && !self.releases_grants && self.wall_ahead.is_none()
    }

    fn is_empty(&self) -> bool {
        self.is_plain() && self.rows.is_empty()
    }
}

/// Commits a transaction.
pub(super) fn commit(db: &Connection) -> Result<(), WriteError> {
    db.prepare_cached("COMMIT")?.execute([]).map_err(WriteError::Commit)?;
    Ok(())
}

/// Removes all tasks of a tube and their keys.
fn clear(db: &Connection, number: u32, head: &mut Head) -> Result<(), WriteError> {
    let (first, last) = codec::key_range(number);
    let mut keys = db.prepare_cached("SELECT key FROM task WHERE key BETWEEN ? AND ?")?;
    let mut rows = keys.query([first, last])?;
    while let Some(row) = rows.next()? {
        head.remove(row.get(0)?);
    }
    let sql = "DELETE FROM task WHERE key BETWEEN ? AND ?";
    db.prepare_cached(sql)?.execute([first, last])?;
    keys::clear(db, number)
}

/// The error of SQLite for a failed sync.
pub(super) fn failed_sync() -> rusqlite::Error {
    let error = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
    rusqlite::Error::SqliteFailure(error, None)
}

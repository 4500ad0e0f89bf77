//! How a batch reaches the disk: one transaction, then the seal.

use rusqlite::{Connection, ErrorCode, params};
use taskyard_core::record::{Change, Record};
use taskyard_core::semaphore::SemaphoreChanges;
use taskyard_core::{Changes, Error, Machine, TaskId};

use super::codec::{self, Head, TaskColumns};
use super::insert::{Insert, NewRow};
use super::seal::Seal;
use super::semaphores::{self, SemaphoreHead};

/// How many lease numbers are reserved on disk at a time.
const LEASES_RESERVED: u64 = 1 << 20;

/// How many ids of a temporary tube are reserved on disk at a time: its tasks are not written, so
/// nothing else would tell after a crash which ids were used.
const IDS_RESERVED: u64 = 1 << 20;

/// The writing connection and what it knows of the file.
#[derive(Debug)]
pub(super) struct Writer {
    pub db: Connection,
    pub head: Head,
    semaphores: SemaphoreHead,
    seal: Seal,
    /// The `next_id` on disk of each tube, by number.
    next_ids: Vec<u64>,
    /// The machine's next lease number when it last came here.
    next_lease: u64,
    /// Why nothing may be written any more.
    refusal: Option<String>,
    /// Where to fail, in tests of what a failure leaves behind.
    pub fault: Option<Fault>,
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

/// Why a batch could not be written.
#[derive(Debug)]
pub(super) enum WriteError {
    Sqlite(rusqlite::Error),
    /// A row was not there, or there was one too many.
    Damaged(String),
    /// The test asked for it.
    Fault,
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        WriteError::Sqlite(error)
    }
}

impl Writer {
    pub fn new(db: Connection, head: Head, semaphores: SemaphoreHead, seal: Seal) -> Self {
        Writer {
            db,
            head,
            semaphores,
            seal,
            next_ids: Vec::new(),
            next_lease: head.lease_ceiling,
            refusal: None,
            fault: None,
        }
    }

    /// Notes the `next_id` that is on disk for a tube.
    pub fn set_next_id(&mut self, number: u32, next_id: u64) {
        let number = number as usize;
        if self.next_ids.len() <= number {
            self.next_ids.resize(number + 1, 0);
        }
        self.next_ids[number] = next_id;
    }

    /// Makes what the machine's batch changed durable; does nothing when nothing must be.
    pub fn commit(&mut self, machine: &Machine, changes: &Changes) -> Result<(), Error> {
        let plan = Plan::new(machine, changes, &self.next_ids);
        let issued = machine.next_lease() != self.next_lease;
        self.next_lease = machine.next_lease();
        let lease_ceiling = self.lease_ceiling(machine, issued, plan.is_empty());
        if plan.is_empty() && lease_ceiling == self.head.lease_ceiling {
            return Ok(());
        }
        if let Some(refusal) = &self.refusal {
            return Err(Error::Store(refusal.clone()));
        }
        let mut head = self.head;
        head.batch += 1;
        head.lease_ceiling = lease_ceiling;
        if !changes.tubes.is_empty() {
            head.tubes = machine.tube_numbers().count() as u64;
        }
        let mut semaphores = self.semaphores;
        match self.write(machine, &plan, &mut head, &mut semaphores) {
            Ok(()) => {
                (self.head, self.semaphores) = (head, semaphores);
                if let Err(error) = self.seal.write(head.batch) {
                    tracing::warn!(%error, "cannot write the seal file");
                }
                Ok(())
            }
            Err(error) => Err(self.roll_back(error)),
        }
    }

    /// Empties the log into the database, after which one file holds everything.
    pub fn close(&mut self) -> Result<(), Error> {
        if let Some(refusal) = &self.refusal {
            return Err(Error::Store(refusal.clone()));
        }
        let emptied = self.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
        match emptied {
            Ok(false) => Ok(()),
            Ok(true) => Err(Error::Store(
                "cannot empty the write-ahead log, because another program reads it; nothing is lost"
                    .into(),
            )),
            Err(error) => Err(Error::Store(format!("cannot empty the write-ahead log: {error}"))),
        }
    }

    /// Gives the database up: whoever opens it next must find no connection of ours, because what
    /// SQLite believes of the log lives as long as the last of them.
    pub fn disconnect(&mut self) {
        match Connection::open_in_memory() {
            Ok(nothing) => self.db = nothing,
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
        machine: &Machine,
        plan: &Plan,
        head: &mut Head,
        semaphores: &mut SemaphoreHead,
    ) -> Result<(), WriteError> {
        self.step()?;
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for number in &plan.cleared {
            self.clear(*number, head)?;
        }
        for number in &plan.tubes {
            self.step()?;
            self.write_tube(machine, *number)?;
        }
        self.insert(&plan.inserts, head)?;
        self.update(&plan.updates)?;
        self.remove(&plan.removed, head)?;
        if !plan.semaphores.is_empty() {
            self.step()?;
            let next_event = machine.semaphores().next_event();
            semaphores::write(&self.db, plan.semaphores, next_event, semaphores)?;
        }
        self.step()?;
        head.write(&self.db)?;
        self.step()?;
        if self.fault == Some(Fault::Sync) {
            return Err(failed_sync().into());
        }
        self.db.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    fn clear(&mut self, number: u32, head: &mut Head) -> Result<(), WriteError> {
        self.step()?;
        let (first, last) = codec::key_range(number);
        let mut keys = self.db.prepare_cached("SELECT key FROM task WHERE key BETWEEN ? AND ?")?;
        let mut rows = keys.query([first, last])?;
        while let Some(row) = rows.next()? {
            head.remove(row.get(0)?);
        }
        self.db
            .prepare_cached("DELETE FROM task WHERE key BETWEEN ? AND ?")?
            .execute([first, last])?;
        Ok(())
    }

    fn write_tube(&mut self, machine: &Machine, number: u32) -> Result<(), WriteError> {
        match machine.tube_record(number) {
            Some(mut record) => {
                if record.options.temporary {
                    record.next_id += IDS_RESERVED;
                }
                codec::write_tube(&self.db, number, &record)?;
                self.set_next_id(number, record.next_id);
            }
            None => {
                self.db.prepare_cached("DELETE FROM tube WHERE number = ?")?.execute([number])?;
                self.set_next_id(number, 0);
            }
        }
        Ok(())
    }

    fn insert(&mut self, inserts: &[NewRow<'_>], head: &mut Head) -> Result<(), WriteError> {
        if inserts.is_empty() {
            return Ok(());
        }
        self.step()?;
        Insert::new(&self.db)?.add_all(inserts, expect_rows)?;
        inserts.iter().for_each(|row| head.add(row.0));
        Ok(())
    }

    fn update(&mut self, updates: &[(i64, &Record)]) -> Result<(), WriteError> {
        if updates.is_empty() {
            return Ok(());
        }
        self.step()?;
        let sql = "UPDATE task SET state = ?, due = ?, expires = ?, ttr = ?, attempts = ?, \
                   previous_start = ?, sum = ? WHERE key = ?";
        let mut update = self.db.prepare_cached(sql)?;
        for (key, record) in updates {
            let columns = TaskColumns::new(*key, record);
            let changed = update.execute(params![
                columns.state,
                columns.due,
                columns.expires,
                columns.ttr,
                columns.attempts,
                columns.previous_start,
                columns.sum,
                key,
            ])?;
            expect_rows(*key, changed, 1)?;
        }
        Ok(())
    }

    /// Removes rows; neighbours go with one statement.
    fn remove(&mut self, removed: &[i64], head: &mut Head) -> Result<(), WriteError> {
        if removed.is_empty() {
            return Ok(());
        }
        self.step()?;
        let mut delete = self.db.prepare_cached("DELETE FROM task WHERE key BETWEEN ? AND ?")?;
        for run in removed.chunk_by(|a, b| a + 1 == *b) {
            let changed = delete.execute([run[0], run[run.len() - 1]])?;
            expect_rows(run[0], changed, run.len())?;
            for key in run {
                head.remove(*key);
            }
        }
        Ok(())
    }

    /// After a failure the transaction is undone, here as in the machine.
    fn roll_back(&mut self, error: WriteError) -> Error {
        if !self.db.is_autocommit()
            && let Err(error) = self.db.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "cannot roll a failed batch back");
        }
        // What the failed transaction wrote about tubes is undone too, so nothing is known of them.
        self.next_ids.fill(0);
        let message = describe(&error);
        if is_lasting(&error) {
            self.refuse(&message);
        }
        Error::Store(message)
    }

    /// Writes nothing any more, because of this.
    pub fn refuse(&mut self, why: &str) {
        self.refusal = Some(format!("{why}; nothing is written until it is opened anew"));
    }

    /// Whether nothing may be written any more.
    pub fn refuses(&self) -> bool {
        self.refusal.is_some()
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
struct Plan<'a> {
    cleared: Vec<u32>,
    tubes: Vec<u32>,
    inserts: Vec<NewRow<'a>>,
    updates: Vec<(i64, &'a Record)>,
    /// Keys, ascending.
    removed: Vec<i64>,
    semaphores: &'a SemaphoreChanges,
}

impl<'a> Plan<'a> {
    fn new(machine: &Machine, changes: &'a Changes, next_ids: &[u64]) -> Self {
        let mut plan = Plan {
            cleared: changes.cleared.clone(),
            tubes: changes.tubes.iter().map(|tube| tube.0).collect(),
            inserts: Vec::new(),
            updates: Vec::new(),
            removed: Vec::new(),
            semaphores: &changes.semaphores,
        };
        // Neighbouring changes mostly concern one tube, so the last answer is kept.
        let mut latest = (u32::MAX, true, 0);
        for (number, change) in &changes.tasks {
            if latest.0 != *number {
                let temporary = machine.tube_by_number(*number).is_none_or(|tube| tube.1.temporary);
                latest = (*number, temporary, next_ids.get(*number as usize).copied().unwrap_or(0));
            }
            let (_, temporary, next_id) = latest;
            if needs_next_id(change, temporary).is_some_and(|id| id.0 >= next_id) {
                plan.tubes.push(*number);
                latest.2 = u64::MAX;
            }
            if !temporary {
                plan.add(*number, change);
            }
        }
        plan.tubes.sort_unstable();
        plan.tubes.dedup();
        plan.removed.sort_unstable();
        plan
    }

    fn add(&mut self, number: u32, change: &'a Change) {
        match change {
            Change::Insert(record) => {
                if let Some(body) = &record.body {
                    self.inserts.push((codec::key(number, record.id), record, body));
                }
            }
            Change::Update(record) => self.updates.push((codec::key(number, record.id), record)),
            Change::Remove(id) => self.removed.push(codec::key(number, *id)),
            Change::Passed(_) => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.cleared.is_empty()
            && self.tubes.is_empty()
            && self.inserts.is_empty()
            && self.updates.is_empty()
            && self.removed.is_empty()
            && self.semaphores.is_empty()
    }
}

/// The id that must not be given again after a crash though no row tells of it: the tube's own row
/// has to. While a task has its row, that is enough, so most batches need not write the tube.
fn needs_next_id(change: &Change, temporary: bool) -> Option<TaskId> {
    match change {
        Change::Remove(id) | Change::Passed(id) => Some(*id),
        Change::Insert(record) if temporary => Some(record.id),
        _ => None,
    }
}

fn expect_rows(key: i64, changed: usize, wanted: usize) -> Result<(), WriteError> {
    if changed == wanted {
        return Ok(());
    }
    let (tube, id) = codec::split_key(key);
    let what = format!("task {id} of tube number {tube}: {changed} rows where {wanted} should be");
    Err(WriteError::Damaged(what))
}

/// What SQLite says when the disk did not confirm what was written.
pub(super) fn failed_sync() -> rusqlite::Error {
    let error = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
    rusqlite::Error::SqliteFailure(error, None)
}

fn describe(error: &WriteError) -> String {
    match error {
        WriteError::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
            "the disk is full; free some space and try again".into()
        }
        WriteError::Sqlite(error) => format!("cannot write to disk: {error}"),
        WriteError::Damaged(what) => format!("the database is damaged: {what}"),
        WriteError::Fault => "a test asked for this failure".into(),
    }
}

/// After a failed sync nobody knows what is on disk, and damage does not heal.
fn is_lasting(error: &WriteError) -> bool {
    match error {
        WriteError::Sqlite(error) => {
            let code = error.sqlite_error().map_or(0, |error| error.extended_code);
            let corrupt = error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt);
            corrupt
                || [rusqlite::ffi::SQLITE_IOERR_FSYNC, rusqlite::ffi::SQLITE_IOERR_DIR_FSYNC]
                    .contains(&code)
        }
        WriteError::Damaged(_) => true,
        WriteError::Fault => false,
    }
}

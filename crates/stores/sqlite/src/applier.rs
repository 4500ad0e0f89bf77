//! Applies batches of the journal to the database, concurrently with the writer.
//!
//! A thread applies them when there is enough for a transaction, or when a delay has passed. A caller that needs
//! the current database, such as the writer with a batch that does not go through the journal, applies the
//! remaining batches first.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use taskyard_core::limits::BACKUP_LOG_PART;
use taskyard_core::{Error, KeyChange};

use super::background::{BackgroundThread, BackgroundWork};
use super::backup::{BackupSlot, log_too_long};
use super::checkpoint::Checkpointer;
use super::codec::{self, Head};
use super::platform::Platform;
use super::rows::{self, Batch, Rows};
use super::seal::Seal;
use super::write_error::WriteError;
use super::writer::{WriteRefusal, commit};

/// A transaction applies batches of this total weight.
const WEIGHT_WANTED: usize = 4 << 20;
/// Above this weight the writer applies batches itself: an opening after a crash reads all of them into
/// memory.
const WEIGHT_MAX: usize = 16 << 20;
/// Weight of a row besides its bytes: a changed or deleted row may be alone on its page.
const ROW_WEIGHT: usize = 128;
/// How long batches wait for others before they are applied: long enough that done tasks which a tube keeps for less than that never
/// have to be written as such.
const APPLY_DELAY: Duration = Duration::from_millis(250);
/// Delay before a retry after a failure, for example a full disk.
const RETRY: Duration = Duration::from_secs(1);

/// The database and its state; only one thread at a time writes it.
#[derive(Debug)]
pub(super) struct Database {
    pub db: Connection,
    /// The head row in the database.
    pub head: Head,
    pub checkpointer: Checkpointer,
    pub seal: Arc<Seal>,
    pub backups: Arc<BackupSlot>,
}

impl Database {
    /// Checks that the log may grow.
    pub fn check_room(&mut self, refusal: &WriteRefusal) -> Result<(), WriteError> {
        self.checkpointer.check_room(&self.db, refusal)
    }
}

/// The thread that applies batches.
#[derive(Debug)]
pub(super) struct JournalApplier {
    shared: Arc<ApplierState>,
    thread: Box<dyn BackgroundThread>,
}

/// The state that the thread and the writer share.
#[derive(Debug)]
pub(super) struct ApplierState {
    database: Mutex<Database>,
    queue: Mutex<UnappliedBatches>,
    platform: Arc<dyn Platform>,
    /// The number of the newest batch in the database.
    applied: AtomicU64,
    /// The latest transaction failed.
    failed: AtomicBool,
    refusal: WriteRefusal,
}

/// The batches that are in the journal only.
#[derive(Debug)]
struct UnappliedBatches {
    batches: VecDeque<UnappliedBatch>,
    weight: usize,
    /// When the oldest one was added, or the latest failure happened, by the clock of the platform.
    since: Option<Duration>,
    /// How long batches wait for others.
    delay: Duration,
    stopped: bool,
}

#[derive(Debug)]
struct UnappliedBatch {
    batch: Batch,
    weight: usize,
}

impl JournalApplier {
    pub fn start(
        platform: Arc<dyn Platform>,
        database: Database,
        refusal: WriteRefusal,
    ) -> io::Result<JournalApplier> {
        let applied = AtomicU64::new(database.head.batch);
        let shared = Arc::new(ApplierState {
            database: Mutex::new(database),
            queue: Mutex::new(UnappliedBatches {
                batches: VecDeque::new(),
                weight: 0,
                since: None,
                delay: APPLY_DELAY,
                stopped: false,
            }),
            platform: platform.clone(),
            applied,
            failed: AtomicBool::new(false),
            refusal,
        });
        let work = ApplierWork(shared.clone());
        let thread = platform.spawn("taskyard-apply", Box::new(work))?;
        Ok(JournalApplier { shared, thread })
    }

    /// Adds a batch, which uses `bytes` in the journal; returns whether the weight exceeds the maximum.
    pub fn push(&self, batch: Batch, bytes: usize) -> bool {
        let mut queue = lock(&self.shared.queue);
        let first = queue.batches.is_empty();
        let weight = bytes + weight(&batch.rows);
        queue.batches.push_back(UnappliedBatch { batch, weight });
        let before = queue.weight;
        queue.weight += weight;
        if first {
            queue.since = Some(self.shared.platform.elapsed());
        }
        if first || (before < WEIGHT_WANTED && queue.weight >= WEIGHT_WANTED) {
            self.thread.signal();
        }
        queue.weight > WEIGHT_MAX
    }

    /// Sets how long batches wait for others.
    pub fn set_apply_delay(&self, delay: Duration) {
        lock(&self.shared.queue).delay = delay;
    }

    /// The number of the newest batch in the database.
    pub fn applied_batch(&self) -> u64 {
        self.shared.applied.load(Ordering::Acquire)
    }

    /// Whether the latest transaction failed.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// The database, which may lack the newest batches.
    pub fn database(&self) -> MutexGuard<'_, Database> {
        lock(&self.shared.database)
    }

    /// The database with all that was handed over, up to a batch.
    pub fn caught_up(&self, newest: u64) -> Result<MutexGuard<'_, Database>, Error> {
        self.shared.caught_up(newest)
    }

    /// The shared state, for a caller that cannot borrow the applier meanwhile.
    pub fn shared(&self) -> Arc<ApplierState> {
        self.shared.clone()
    }

    /// Ends the thread. Batches that are not applied stay in the journal.
    pub fn stop(&mut self) {
        lock(&self.shared.queue).stopped = true;
        self.thread.end();
    }
}

impl Drop for JournalApplier {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The work of the thread.
struct ApplierWork(Arc<ApplierState>);

impl BackgroundWork for ApplierWork {
    fn step(&mut self) -> Option<Duration> {
        let state = &*self.0;
        let wait = state.wait();
        if wait != Some(Duration::ZERO) {
            return wait;
        }
        // Not all at once: the writer may need the database too.
        let oldest =
            lock(&state.queue).batches.front().map_or(0, |unapplied| unapplied.batch.head.batch);
        if let Err(error) = state.catch_up(&mut lock(&state.database), oldest) {
            tracing::warn!(error = error.describe(), "cannot apply the journal to the database");
        }
        Some(Duration::ZERO)
    }
}

impl ApplierState {
    /// The database with all that was handed over, up to a batch.
    pub fn caught_up(&self, newest: u64) -> Result<MutexGuard<'_, Database>, Error> {
        let mut database = lock(&self.database);
        self.catch_up(&mut database, newest).map_err(|error| Error::Store(error.describe()))?;
        Ok(database)
    }

    /// Called after a commit: records the newest batch and keeps the log short.
    pub fn record_commit(&self, database: &mut Database, head: Head) {
        database.head = head;
        if let Err(error) = database.seal.write_in_database(head.batch) {
            tracing::warn!(%error, "cannot write the seal file");
        }
        self.applied.store(head.batch, Ordering::Release);
        let Database { db, checkpointer, backups, .. } = database;
        if checkpointer.is_filled_by(BACKUP_LOG_PART) {
            // Long before writes are refused.
            backups.end(log_too_long());
        }
        checkpointer.after_commit(db, &self.refusal);
    }

    /// How long the oldest batches can still wait; zero when they should be applied, `None` if there are none.
    fn wait(&self) -> Option<Duration> {
        let queue = lock(&self.queue);
        let since = queue.since.filter(|_| !queue.stopped && !self.refusal.is_set())?;
        let failed = self.failed.load(Ordering::Relaxed);
        if queue.weight >= WEIGHT_WANTED && !failed {
            return Some(Duration::ZERO);
        }
        let delay = if failed { RETRY } else { queue.delay };
        Some(delay.saturating_sub(self.platform.elapsed().saturating_sub(since)))
    }

    /// Applies the batches of the queue, at least up to `newest`.
    fn catch_up(&self, database: &mut Database, newest: u64) -> Result<(), WriteError> {
        loop {
            // After a failed sync nothing is written.
            if let Some(why) = self.refusal.why() {
                return Err(WriteError::DatabaseBehind(why));
            }
            if database.head.batch >= newest {
                return Ok(());
            }
            let batches = lock(&self.queue).take();
            if batches.is_empty() {
                return Ok(());
            }
            self.write(database, batches)?;
        }
    }

    /// Writes batches in one transaction. If it fails, they return to the queue.
    fn write(
        &self,
        database: &mut Database,
        batches: Vec<UnappliedBatch>,
    ) -> Result<(), WriteError> {
        let mut head = database.head;
        let written = database.check_room(&self.refusal).and_then(|()| {
            transaction(&database.db, |db| {
                rows::write_all(db, batches.iter().map(|unapplied| &unapplied.batch), &mut head)
            })
        });
        self.failed.store(written.is_err(), Ordering::Relaxed);
        if let Err(error) = &written {
            if error.is_permanent() {
                self.refusal.set(&error.describe());
            }
            lock(&self.queue).put_back(batches, self.platform.elapsed());
        } else {
            self.record_commit(database, head);
        }
        written
    }
}

impl UnappliedBatches {
    /// Removes the oldest batches, enough for one transaction. A row that a batch updates and a later one removes is not written, so more
    /// batches are taken for it: done tasks that a tube keeps for a short time may leave before they are written.
    fn take(&mut self) -> Vec<UnappliedBatch> {
        let (mut taken, mut weight, mut unwritten) = (Vec::new(), 0_usize, 0_usize);
        let mut updated = RowKeys::default();
        let is_all = self.weight < WEIGHT_WANTED;
        while weight.saturating_sub(unwritten) < WEIGHT_WANTED
            && let Some(unapplied) = self.batches.pop_front()
        {
            weight += unapplied.weight;
            if !is_all {
                unwritten += ROW_WEIGHT * count_unwritten(&mut updated, &unapplied.batch.rows);
            }
            taken.push(unapplied);
        }
        self.weight -= weight;
        if self.batches.is_empty() {
            self.since = None;
        }
        taken
    }

    fn put_back(&mut self, batches: Vec<UnappliedBatch>, now: Duration) {
        self.since = Some(now);
        for unapplied in batches.into_iter().rev() {
            self.weight += unapplied.weight;
            self.batches.push_front(unapplied);
        }
    }
}

/// Keys of rows.
type RowKeys = HashSet<i64, BuildHasherDefault<RowKeyHasher>>;

/// Hashes the key of a row with few instructions: the writer waits while batches are taken. Clients do not choose ids, so they cannot
/// choose hashes either.
#[derive(Default)]
struct RowKeyHasher(u64);

impl Hasher for RowKeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_i64((*byte).into()));
    }

    fn write_i64(&mut self, key: i64) {
        self.0 = codec::mix(key ^ self.0 as i64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// How many of the rows that earlier batches updated these remove; adds those that these update.
fn count_unwritten(updated: &mut RowKeys, rows: &Rows) -> usize {
    let changed = rows.updates.iter().chain(&rows.replaced);
    updated.extend(changed.map(|row| row.0));
    if updated.is_empty() {
        return 0;
    }
    rows.removed.iter().filter(|key| updated.remove(key)).count()
}

fn weight(rows: &Rows) -> usize {
    // Consecutive rows are removed together, and share pages.
    let removed = rows.removed.chunk_by(|a, b| a + 1 == *b).count();
    let changed = rows.updates.len() + rows.replaced.len() + removed;
    let is_changed = |change: &&(i64, KeyChange)| !matches!(change.1, KeyChange::Insert(_));
    let keys = rows.keys.iter().filter(is_changed).count();
    (changed + rows.next_ids.len() + keys + rows.pace.len()) * ROW_WEIGHT
}

/// Runs `write` in a transaction and commits it, or rolls it back.
fn transaction(
    db: &Connection,
    write: impl FnOnce(&Connection) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let run = || -> Result<(), WriteError> {
        db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        write(db)?;
        commit(db)
    };
    run().inspect_err(|_| roll_back(db))
}

/// Undoes what a failed transaction wrote.
pub(super) fn roll_back(db: &Connection) {
    if !db.is_autocommit()
        && let Err(error) = db.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "cannot roll back a failed batch");
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

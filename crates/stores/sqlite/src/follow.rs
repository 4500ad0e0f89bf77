//! Bringing batches from the journal into the database, beside the writer.
//!
//! A thread of its own waits until there is enough for a transaction, or a moment has passed. Whoever needs the
//! database as it is now, the writer with a batch that does not suit the journal for example, brings over the rest
//! first.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use taskyard_core::Error;

use super::checkpoint::Checkpointer;
use super::codec::Head;
use super::rows::{self, Batch, Rows};
use super::seal::Seal;
use super::write_error::WriteError;
use super::writer::{Refusal, commit};

/// Batches of so much weight are brought over together.
const WEIGHT_WANTED: usize = 4 << 20;
/// With more than this the writer stops and helps: who opens the store after a crash has all of it in memory.
const WEIGHT_MAX: usize = 16 << 20;
/// What a row weighs beside its bytes: one that changes or goes may be alone on its page.
const ROW_WEIGHT: usize = 256;
/// Or what is there after this time.
const PATIENCE: Duration = Duration::from_millis(50);
/// When it is tried again after a failure, a full disk for example.
const RETRY: Duration = Duration::from_secs(1);

/// The database, which is written by one at a time.
#[derive(Debug)]
pub(super) struct Database {
    pub db: Connection,
    /// As it is in there.
    pub head: Head,
    pub checkpointer: Checkpointer,
    pub seal: Arc<Seal>,
}

impl Database {
    /// Whether the log may grow.
    pub fn check_room(&mut self, refusal: &Refusal) -> Result<(), WriteError> {
        self.checkpointer.check_room(&self.db, refusal)
    }
}

/// The thread.
#[derive(Debug)]
pub(super) struct Follower {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and the writer have in common.
#[derive(Debug)]
pub(super) struct Shared {
    database: Mutex<Database>,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// The newest batch that is in the database.
    written: AtomicU64,
    /// The latest transaction failed.
    failed: AtomicBool,
    refusal: Refusal,
}

/// Batches that are in the journal only.
#[derive(Debug)]
struct Queue {
    batches: VecDeque<Waiting>,
    weight: usize,
    /// Since when there are any, or since the latest failure.
    since: Option<Instant>,
    /// How long they wait for others.
    patience: Duration,
    stopped: bool,
}

#[derive(Debug)]
struct Waiting {
    batch: Batch,
    weight: usize,
}

impl Follower {
    pub fn start(database: Database, refusal: Refusal) -> io::Result<Follower> {
        let written = AtomicU64::new(database.head.batch);
        let shared = Arc::new(Shared {
            database: Mutex::new(database),
            queue: Mutex::new(Queue {
                batches: VecDeque::new(),
                weight: 0,
                since: None,
                patience: PATIENCE,
                stopped: false,
            }),
            wake: Condvar::new(),
            written,
            failed: AtomicBool::new(false),
            refusal,
        });
        let follows = shared.clone();
        let thread = std::thread::Builder::new()
            .name("taskyard-follow".into())
            .spawn(move || follows.run())?;
        Ok(Follower { shared, thread: Some(thread) })
    }

    /// Hands over a batch that takes so many bytes in the journal; tells whether too much waits by now.
    pub fn push(&self, batch: Batch, bytes: usize) -> bool {
        let mut queue = lock(&self.shared.queue);
        let first = queue.batches.is_empty();
        let weight = bytes + weight(&batch.rows);
        queue.batches.push_back(Waiting { batch, weight });
        let before = queue.weight;
        queue.weight += weight;
        if first {
            queue.since = Some(Instant::now());
        }
        if first || (before < WEIGHT_WANTED && queue.weight >= WEIGHT_WANTED) {
            self.shared.wake.notify_one();
        }
        queue.weight > WEIGHT_MAX
    }

    /// Lets batches wait so long for others.
    pub fn set_patience(&self, patience: Duration) {
        lock(&self.shared.queue).patience = patience;
    }

    /// The newest batch that is in the database.
    pub fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Acquire)
    }

    /// Whether the database could not be written lately.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// The database as it is.
    pub fn database(&self) -> MutexGuard<'_, Database> {
        lock(&self.shared.database)
    }

    /// The database with all that was handed over, up to a batch.
    pub fn caught_up(&self, newest: u64) -> Result<MutexGuard<'_, Database>, Error> {
        self.shared.caught_up(newest)
    }

    /// The same, for somebody who cannot keep the follower borrowed meanwhile.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Ends the thread. What it had not brought over stays in the journal.
    pub fn stop(&mut self) {
        lock(&self.shared.queue).stopped = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// The database with all that was handed over, up to a batch.
    pub fn caught_up(&self, newest: u64) -> Result<MutexGuard<'_, Database>, Error> {
        let mut database = lock(&self.database);
        self.catch_up(&mut database, newest).map_err(|error| Error::Store(error.describe()))?;
        Ok(database)
    }

    /// After a commit: notes how far the database is, and keeps the log short.
    pub fn wrote(&self, database: &mut Database, head: Head) {
        database.head = head;
        if let Err(error) = database.seal.write_in_database(head.batch) {
            tracing::warn!(%error, "cannot write the seal file");
        }
        self.written.store(head.batch, Ordering::Release);
        let Database { db, checkpointer, .. } = database;
        checkpointer.after_commit(db, &self.refusal);
    }

    fn run(&self) {
        while self.wait() {
            // Not all at once: the writer may want the database too.
            let some =
                lock(&self.queue).batches.front().map_or(0, |waiting| waiting.batch.head.batch);
            if let Err(error) = self.catch_up(&mut lock(&self.database), some) {
                tracing::warn!(
                    error = error.describe(),
                    "cannot bring the journal into the database"
                );
            }
        }
    }

    /// Waits until there is something to do; false at the end.
    fn wait(&self) -> bool {
        let mut queue = lock(&self.queue);
        loop {
            if queue.stopped {
                return false;
            }
            let failed = self.failed.load(Ordering::Relaxed);
            let patience = if failed { RETRY } else { queue.patience };
            let rest = match queue.since.filter(|_| !self.refusal.is_set()) {
                None => Duration::MAX,
                Some(_) if queue.weight >= WEIGHT_WANTED && !failed => return true,
                Some(since) => patience.saturating_sub(since.elapsed()),
            };
            if rest.is_zero() {
                return true;
            }
            queue = if rest == Duration::MAX {
                self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner)
            } else {
                let woken = self.wake.wait_timeout(queue, rest);
                woken.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// Writes what is in the queue, up to a batch.
    fn catch_up(&self, database: &mut Database, newest: u64) -> Result<(), WriteError> {
        loop {
            // After a failed sync nothing is written.
            if let Some(why) = self.refusal.why() {
                return Err(WriteError::Behind(why));
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

    /// Writes batches in one transaction. If that fails they go back to the queue.
    fn write(&self, database: &mut Database, batches: Vec<Waiting>) -> Result<(), WriteError> {
        let mut head = database.head;
        let written = database.check_room(&self.refusal).and_then(|()| {
            transaction(&database.db, |db| {
                rows::write_all(db, batches.iter().map(|waiting| &waiting.batch), &mut head)
            })
        });
        self.failed.store(written.is_err(), Ordering::Relaxed);
        if let Err(error) = &written {
            if error.is_lasting() {
                self.refusal.set(&error.describe());
            }
            lock(&self.queue).put_back(batches);
        } else {
            self.wrote(database, head);
        }
        written
    }
}

impl Queue {
    /// The oldest ones, enough for a transaction.
    fn take(&mut self) -> Vec<Waiting> {
        let (mut taken, mut weight) = (Vec::new(), 0);
        while weight < WEIGHT_WANTED
            && let Some(waiting) = self.batches.pop_front()
        {
            weight += waiting.weight;
            taken.push(waiting);
        }
        self.weight -= weight;
        if self.batches.is_empty() {
            self.since = None;
        }
        taken
    }

    fn put_back(&mut self, batches: Vec<Waiting>) {
        self.since = Some(Instant::now());
        for waiting in batches.into_iter().rev() {
            self.weight += waiting.weight;
            self.batches.push_front(waiting);
        }
    }
}

fn weight(rows: &Rows) -> usize {
    (rows.updates.len() + rows.removed.len() + rows.next_ids.len()) * ROW_WEIGHT
}

/// Commits what `write` writes, or leaves everything as it was.
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
        tracing::error!(%error, "cannot roll a failed batch back");
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

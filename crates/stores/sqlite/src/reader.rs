//! Reads bodies from disk on a thread of its own, so that the writer never waits.

use std::fmt::Display;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};
use taskyard_core::{Body, Error, TaskId};
use tokio::sync::oneshot;

use super::background::{BackgroundThread, BackgroundWork};
use super::codec::{self, RowError};
use super::folder::{connect, unavailable};
use super::generation;
use super::platform::DataFolder;
use taskyard_store::{BodyKey, OpenError};

/// The reading thread and the bodies that it has read ahead.
#[derive(Debug)]
pub(super) struct BodyReader {
    jobs: Mutex<Option<Sender<ReadJob>>>,
    ahead: Arc<Mutex<Vec<ReadAheadBodies>>>,
    thread: Mutex<Box<dyn BackgroundThread>>,
}

/// Bodies that were read ahead.
#[derive(Debug)]
pub(super) struct ReadAheadBodies {
    pub bodies: Vec<(BodyKey, Body)>,
    /// Maximum bytes that the request allowed.
    pub bytes_max: usize,
    /// Whether the limit cut the request short.
    pub is_truncated: bool,
}

/// The result of a load for each key: a body, or `None` if the task was removed.
type Loaded = Vec<Result<Option<Body>, Error>>;

enum ReadJob {
    Load { keys: Vec<BodyKey>, answer: oneshot::Sender<Loaded> },
    ReadAhead { keys: Vec<BodyKey>, bytes_max: usize },
}

impl BodyReader {
    pub fn start(folder: &DataFolder) -> Result<BodyReader, OpenError> {
        let db = connect(folder)?;
        let (sender, jobs) = channel();
        let ahead = Arc::new(Mutex::new(Vec::new()));
        let work = Box::new(ReaderWork { db, jobs, ahead: ahead.clone() });
        let thread = folder.platform().spawn("taskyard-reader", work);
        let thread = Mutex::new(thread.map_err(unavailable(folder))?);
        Ok(BodyReader { jobs: Mutex::new(Some(sender)), ahead, thread })
    }

    /// Reads bodies and waits for them.
    pub async fn load(&self, keys: Vec<BodyKey>) -> Loaded {
        let (answer, answered) = oneshot::channel();
        let count = keys.len();
        self.send(ReadJob::Load { keys, answer });
        // A stopped reader knows nothing about the bodies.
        answered.await.unwrap_or_else(|_| vec![Err(Error::ShuttingDown); count])
    }

    /// Reads bodies that will be needed soon, at most `bytes_max` bytes of them; a later
    /// [`BodyReader::take_ahead`] returns them.
    pub fn read_ahead(&self, keys: Vec<BodyKey>, bytes_max: usize) {
        self.send(ReadJob::ReadAhead { keys, bytes_max });
    }

    /// Returns the bodies that were read ahead since the last call.
    pub fn take_ahead(&self) -> Vec<ReadAheadBodies> {
        std::mem::take(&mut *self.ahead.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn stop(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).end();
    }

    fn send(&self, job: ReadJob) {
        // A stopped reader drops the job and with it the sender for the reply.
        if let Some(jobs) = &*self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            _ = jobs.send(job);
            self.thread.lock().unwrap_or_else(PoisonError::into_inner).signal();
        }
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The work of the thread.
struct ReaderWork {
    db: Connection,
    jobs: Receiver<ReadJob>,
    ahead: Arc<Mutex<Vec<ReadAheadBodies>>>,
}

impl BackgroundWork for ReaderWork {
    fn step(&mut self) -> Option<Duration> {
        while let Ok(job) = self.jobs.try_recv() {
            match job {
                ReadJob::Load { keys, answer } => _ = answer.send(load(&self.db, &keys)),
                ReadJob::ReadAhead { keys, bytes_max } => {
                    let found = read_ahead(&self.db, &keys, bytes_max);
                    self.ahead.lock().unwrap_or_else(PoisonError::into_inner).push(found);
                }
            }
        }
        None
    }
}

fn load(db: &Connection, keys: &[BodyKey]) -> Loaded {
    let mut loaded = Vec::with_capacity(keys.len());
    for run in runs(keys) {
        let mut bodies = vec![Ok(None); run.len()];
        let read = read_run(db, run, |index, body| {
            bodies[index] = Ok(Some(body));
            true
        });
        if read.is_err() {
            // An error of one body does not affect the others.
            bodies = run.iter().map(|key| read_one(db, *key)).collect();
        }
        loaded.append(&mut bodies);
    }
    loaded
}

fn read_ahead(db: &Connection, keys: &[BodyKey], bytes_max: usize) -> ReadAheadBodies {
    let mut ahead =
        ReadAheadBodies { bodies: Vec::with_capacity(keys.len()), bytes_max, is_truncated: false };
    let mut left = bytes_max;
    for run in runs(keys) {
        // An unreadable body is reported when it is loaded.
        _ = read_run(db, run, |index, body| {
            let Some(rest) = left.checked_sub(body.footprint()) else {
                ahead.is_truncated = true;
                return false;
            };
            left = rest;
            ahead.bodies.push((run[index], body));
            true
        });
        if ahead.is_truncated {
            break;
        }
    }
    ahead
}

/// Splits keys into ranges of consecutive rows.
fn runs(keys: &[BodyKey]) -> impl Iterator<Item = &[BodyKey]> {
    keys.chunk_by(|a, b| a.tube == b.tube && a.id.0 + 1 == b.id.0)
}

/// Reads the bodies of consecutive rows with one statement: finding each row separately costs more than
/// reading it. `found` receives the index of each body in the range, and returns whether to continue.
fn read_run(
    db: &Connection,
    run: &[BodyKey],
    mut found: impl FnMut(usize, Body) -> bool,
) -> Result<(), RowError> {
    let [Some(first), Some(last)] = [run.first(), run.last()] else { return Ok(()) };
    let [first, last] = [first, last].map(|key| codec::key(generation::number(*key), key.id));
    let sql = "SELECT key, data_sum, meta, data FROM task WHERE key BETWEEN ? AND ?";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([first, last])?;
    while let Some(row) = rows.next()? {
        let key: i64 = row.get(0)?;
        if !found((key - first) as usize, codec::read_body(row, key, 1)?) {
            break;
        }
    }
    Ok(())
}

fn read_one(db: &Connection, key: BodyKey) -> Result<Option<Body>, Error> {
    read_body(db, generation::number(key), key.id).map_err(|error| match error {
        RowError::Damaged(what) => unreadable(key, &what),
        RowError::Sqlite(error) if is_transient(&error) => {
            Error::Overloaded("a payload cannot be read from disk at the moment")
        }
        RowError::Sqlite(error) => unreadable(key, &error),
    })
}

/// The error for a lost body.
pub(super) fn unreadable(key: BodyKey, what: &dyn Display) -> Error {
    let (id, number) = (key.id, generation::number(key));
    Error::Store(format!(
        "the payload of task {id} in tube number {number} cannot be read: {what}; delete the task, \
         or restart with --accept-loss to keep the intact data"
    ))
}

/// Whether the error is transient.
fn is_transient(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{CannotOpen, DatabaseBusy, DatabaseLocked, OutOfMemory};
    let code = error.sqlite_error_code();
    matches!(code, Some(CannotOpen | DatabaseBusy | DatabaseLocked | OutOfMemory))
}

/// Reads the body of a task; `None` if it has no row.
pub(super) fn read_body(db: &Connection, tube: u32, id: TaskId) -> Result<Option<Body>, RowError> {
    let key = codec::key(tube, id);
    let sql = "SELECT data_sum, meta, data FROM task WHERE key = ?";
    let mut statement = db.prepare_cached(sql)?;
    let body = statement.query_row([key], |row| Ok(codec::read_body(row, key, 0))).optional()?;
    body.transpose()
}

//! Bodies that are on disk only: read by a thread of its own, so that the writer never waits.

use std::fmt::Display;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::{Connection, OptionalExtension};
use taskyard_core::{Body, Error, TaskId};
use tokio::sync::oneshot;

use super::codec::{self, RowError};
use super::folder::connect;
use super::generation;
use taskyard_store::{BodyKey, OpenError};

/// The reading thread, and what it has read ahead.
#[derive(Debug)]
pub(super) struct Reader {
    jobs: Mutex<Option<Sender<Job>>>,
    ahead: Arc<Mutex<Vec<Ahead>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Bodies that were read ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    pub bodies: Vec<(BodyKey, Body)>,
    /// How many bytes they might have had.
    pub room: usize,
    /// Whether there were more.
    pub cut: bool,
}

/// What a load answers for each key: a body, `None` where the task is gone.
type Loaded = Vec<Result<Option<Body>, Error>>;

enum Job {
    Load { keys: Vec<BodyKey>, answer: oneshot::Sender<Loaded> },
    ReadAhead { keys: Vec<BodyKey>, room: usize },
}

impl Reader {
    pub fn start(folder: &Path) -> Result<Reader, OpenError> {
        let db = connect(folder)?;
        let (sender, receiver) = channel();
        let ahead = Arc::new(Mutex::new(Vec::new()));
        let shelf = ahead.clone();
        let thread = std::thread::Builder::new()
            .name("taskyard-reader".into())
            .spawn(move || serve(&db, &receiver, &shelf))
            .map_err(|error| OpenError::Unavailable {
                folder: folder.to_owned(),
                what: error.to_string(),
            })?;
        Ok(Reader { jobs: Mutex::new(Some(sender)), ahead, thread: Mutex::new(Some(thread)) })
    }

    /// Reads bodies for somebody who waits for them.
    pub async fn load(&self, keys: Vec<BodyKey>) -> Loaded {
        let (answer, answered) = oneshot::channel();
        let count = keys.len();
        self.send(Job::Load { keys, answer });
        // A reader that has stopped says nothing about the bodies.
        answered.await.unwrap_or_else(|_| vec![Err(Error::ShuttingDown); count])
    }

    /// Reads bodies that will be wanted soon, at most `room` bytes of them; they are found in
    /// `take_ahead` some time later.
    pub fn read_ahead(&self, keys: Vec<BodyKey>, room: usize) {
        self.send(Job::ReadAhead { keys, room });
    }

    /// What has been read ahead since the last call.
    pub fn take_ahead(&self) -> Vec<Ahead> {
        std::mem::take(&mut *self.ahead.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn stop(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            _ = thread.join();
        }
    }

    fn send(&self, job: Job) {
        // A stopped reader drops the job, and with it the sender its caller waits for.
        if let Some(jobs) = &*self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            _ = jobs.send(job);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(db: &Connection, jobs: &Receiver<Job>, ahead: &Mutex<Vec<Ahead>>) {
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Load { keys, answer } => _ = answer.send(load(db, &keys)),
            Job::ReadAhead { keys, room } => {
                let found = read_ahead(db, &keys, room);
                ahead.lock().unwrap_or_else(PoisonError::into_inner).push(found);
            }
        }
    }
}

fn load(db: &Connection, keys: &[BodyKey]) -> Loaded {
    let mut loaded = Vec::with_capacity(keys.len());
    for run in runs(keys) {
        let mut bodies = vec![Ok(None); run.len()];
        let read = read_run(db, run, |place, body| {
            bodies[place] = Ok(Some(body));
            true
        });
        if read.is_err() {
            // What is wrong with one of them does not concern the others.
            bodies = run.iter().map(|key| read_one(db, *key)).collect();
        }
        loaded.append(&mut bodies);
    }
    loaded
}

fn read_ahead(db: &Connection, keys: &[BodyKey], room: usize) -> Ahead {
    let mut ahead = Ahead { bodies: Vec::with_capacity(keys.len()), room, cut: false };
    let mut left = room;
    for run in runs(keys) {
        // What cannot be read is found out by whoever wants it.
        _ = read_run(db, run, |place, body| {
            let Some(rest) = left.checked_sub(body.footprint()) else {
                ahead.cut = true;
                return false;
            };
            left = rest;
            ahead.bodies.push((run[place], body));
            true
        });
        if ahead.cut {
            break;
        }
    }
    ahead
}

/// Neighbours in the table.
fn runs(keys: &[BodyKey]) -> impl Iterator<Item = &[BodyKey]> {
    keys.chunk_by(|a, b| a.tube == b.tube && a.id.0 + 1 == b.id.0)
}

/// Reads the bodies of neighbours with one statement: finding each row by itself costs more than reading it. `found`
/// is told the place of each in the run, and whether to go on is its answer.
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
        RowError::Sqlite(error) if may_pass(&error) => {
            Error::Overloaded("a payload could not be read from disk for now")
        }
        RowError::Sqlite(error) => unreadable(key, &error),
    })
}

/// What is said of a body that is lost, and what to do about it.
pub(super) fn unreadable(key: BodyKey, what: &dyn Display) -> Error {
    let (id, number) = (key.id, generation::number(key));
    Error::Store(format!(
        "the payload of task {id} in tube number {number} cannot be read: {what}; delete the task, \
         or restart with --accept-loss to keep what is sound"
    ))
}

/// Whether the same row may be read well a little later.
fn may_pass(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{CannotOpen, DatabaseBusy, DatabaseLocked, OutOfMemory};
    let code = error.sqlite_error_code();
    matches!(code, Some(CannotOpen | DatabaseBusy | DatabaseLocked | OutOfMemory))
}

/// The body of a task, if there is a row of it.
pub(super) fn read_body(db: &Connection, tube: u32, id: TaskId) -> Result<Option<Body>, RowError> {
    let key = codec::key(tube, id);
    let sql = "SELECT data_sum, meta, data FROM task WHERE key = ?";
    let mut statement = db.prepare_cached(sql)?;
    let body = statement.query_row([key], |row| Ok(codec::read_body(row, key, 0))).optional()?;
    body.transpose()
}

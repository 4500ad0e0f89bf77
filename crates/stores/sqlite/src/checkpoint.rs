//! Moving commits from the write-ahead log into the database, beside the writer.
//!
//! A thread of its own copies what is in the log while the writer goes on; the writer copies only the
//! short rest, after which the log begins anew.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use taskyard_core::limits::LOG_BYTES_MAX;

use super::folder::{connect, log, row_error};
use super::write_error::WriteError;
use super::writer::{Fault, Refusal, failed_sync};
use taskyard_store::OpenError;

/// A log of so many pages wants to be copied, unless a test says otherwise.
const PAGES_WANTED: i32 = 4096;

/// What a page takes in the log.
const FRAME_BYTES: u64 = 4096 + 24;
/// A log of so many pages may not grow: something keeps it from beginning anew.
const PAGES_MAX: i32 = (LOG_BYTES_MAX / FRAME_BYTES) as i32;
/// A warning is due when so large a part of this is used.
const WARN_PART: i32 = 4;
/// How long SQLite waits for others by default, in connections of ours.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a commit waits for our own copy of a log that may not grow.
const COPY_WAIT: Duration = Duration::from_secs(10);
/// And then for readers of that log, of which ours are soon done.
const READERS_WAIT: Duration = Duration::from_secs(1);
/// A log that began anew after it was long is made as short as this.
pub(super) const LOG_BYTES_KEPT: u64 = 64 << 20;
/// The log is made longer by this much at a time.
const ROOM_BYTES: u64 = 1 << 20;
/// And written in pieces of this size.
const PIECE_BYTES: u64 = 4096;
const ZEROS: [u8; PIECE_BYTES as usize] = [0; PIECE_BYTES as usize];

/// The copying thread.
#[derive(Debug)]
pub(super) struct Checkpointer {
    requests: Option<Sender<()>>,
    /// Pages in the log after the newest commit.
    pages: Arc<AtomicI32>,
    progress: Arc<Mutex<Progress>>,
    /// Told when the thread ends a copy.
    ended: Arc<Condvar>,
    /// Why the log could not begin anew when a commit needed that, until it can.
    held: Option<Held>,
    /// A log of so many pages wants to be copied.
    pages_wanted: i32,
    /// The same, or more after a copy that failed.
    pages_due: i32,
    /// No commit begins with so many pages in the log.
    pages_max: i32,
    /// A warning about a long log was given, and it has not become short since.
    warned: bool,
    log: Option<Log>,
    folder: PathBuf,
    thread: Option<JoinHandle<()>>,
    /// Where to fail, in tests of what a failure leaves behind.
    faults: Arc<Faults>,
}

/// How far the thread is.
#[derive(Debug)]
enum Progress {
    Idle,
    Copying,
    /// Most of the log is copied, so the writer may copy the rest.
    Copied,
    Failed(rusqlite::Error),
}

/// What keeps a log from beginning anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// Our own copy, which is not done.
    Copy,
    /// A reader that is none of ours.
    Reader,
}

/// Copies that a test wants to fail.
#[derive(Debug, Default)]
struct Faults {
    copy: AtomicBool,
    rest: AtomicBool,
}

/// The log's file, made longer ahead of the writer: a sync that must also note a new length takes twice
/// the time.
#[derive(Debug)]
struct Log {
    file: File,
    bytes: u64,
    /// What of it was used when room was last made.
    used: u64,
}

impl Checkpointer {
    /// Starts the thread and makes `writer` count the pages of its log.
    pub fn start(folder: &Path, writer: &mut Connection) -> Result<Checkpointer, OpenError> {
        let pages = Arc::new(AtomicI32::new(0));
        let counter = pages.clone();
        let hooked = writer.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
            counter.store(pages, Ordering::Relaxed);
            Ok(())
        }));
        hooked.map_err(|error| row_error(folder, error.into()))?;
        let db = connect(folder)?;
        let (requests, wanted) = channel();
        let progress = Arc::new(Mutex::new(Progress::Idle));
        let faults = Arc::new(Faults::default());
        let ended = Arc::new(Condvar::new());
        let (told, woken, fault) = (progress.clone(), ended.clone(), faults.clone());
        let thread = std::thread::Builder::new()
            .name("taskyard-checkpoint".into())
            .spawn(move || {
                while wanted.recv().is_ok() {
                    let copied = copy(&db, &fault.copy);
                    *lock(&told) = copied.map_or_else(Progress::Failed, |()| Progress::Copied);
                    woken.notify_all();
                }
            })
            .map_err(|error| OpenError::Unavailable {
                folder: folder.to_owned(),
                what: error.to_string(),
            })?;
        Ok(Checkpointer {
            requests: Some(requests),
            pages,
            progress,
            ended,
            held: None,
            pages_wanted: PAGES_WANTED,
            pages_due: PAGES_WANTED,
            pages_max: PAGES_MAX,
            warned: false,
            log: None,
            folder: folder.to_owned(),
            thread: Some(thread),
            faults,
        })
    }

    /// Copies logs of another length, for tests that want many copies.
    pub fn set_pages(&mut self, pages: i32) {
        (self.pages_wanted, self.pages_due) = (pages, pages);
    }

    /// Refuses to write with so many pages in the log, for tests that want to see that.
    pub fn set_pages_max(&mut self, pages: i32) {
        self.pages_max = pages;
    }

    /// How many bytes of the log are used.
    pub fn log_bytes(&self) -> u64 {
        u64::from(self.pages.load(Ordering::Relaxed).unsigned_abs()) * FRAME_BYTES
    }

    /// What is wrong with a log that grows and grows, if it does.
    pub fn warning(&self) -> Option<String> {
        if self.pages.load(Ordering::Relaxed) < self.pages_max / WARN_PART {
            return None;
        }
        let why = match self.held {
            Some(Held::Reader) => {
                "cannot be emptied, because another program (sqlite3, a backup) keeps a read transaction on \
                 taskyard.db open; end that program"
            }
            Some(Held::Copy) => {
                "cannot be emptied yet, because the disk is too slow to copy it into taskyard.db in time"
            }
            None => {
                "was not emptied so far: the disk is slow, or another program (sqlite3, a backup) keeps a read \
                 transaction on taskyard.db open"
            }
        };
        Some(format!(
            "{} has {} bytes and {why}: writes are refused at {} bytes",
            log(&self.folder).display(),
            self.log_bytes(),
            u64::from(self.pages_max.unsigned_abs()) * FRAME_BYTES
        ))
    }

    /// Refuses a commit that would make the log longer than it may be, unless it can begin anew.
    pub fn check_room(&mut self, db: &Connection, refusal: &Refusal) -> Result<(), WriteError> {
        if self.pages.load(Ordering::Relaxed) < self.pages_max {
            return Ok(());
        }
        // SQLite does not wait for another copy, whatever its timeout.
        let copying = !self.wait_for_copy(refusal)?;
        // Waited for only once: a reader may go on for hours.
        let patience = if self.held == Some(Held::Reader) { Duration::ZERO } else { READERS_WAIT };
        db.busy_timeout(patience)?;
        let begun_anew =
            db.query_row("PRAGMA wal_checkpoint(RESTART)", [], |row| row.get::<_, bool>(0));
        db.busy_timeout(BUSY_TIMEOUT)?;
        match begun_anew {
            Ok(false) => {
                self.held = None;
                self.pages.store(0, Ordering::Relaxed);
                Ok(())
            }
            Ok(true) => {
                self.held = Some(if copying { Held::Copy } else { Held::Reader });
                Err(WriteError::LogFull(self.warning().unwrap_or_default()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until no copy of ours is under way, for long only once; whether that is so. After a copy that the disk did
    /// not confirm the log may not begin anew.
    fn wait_for_copy(&self, refusal: &Refusal) -> Result<bool, WriteError> {
        let patience = if self.held == Some(Held::Copy) { Duration::ZERO } else { COPY_WAIT };
        let copying = |progress: &mut Progress| matches!(progress, Progress::Copying);
        let waited = self.ended.wait_timeout_while(lock(&self.progress), patience, copying);
        let (mut progress, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Progress::Failed(error) = &*progress {
            fail(refusal, error);
            *progress = Progress::Idle;
        }
        match refusal.why() {
            Some(why) => Err(WriteError::Behind(why)),
            None => Ok(!matches!(*progress, Progress::Copying)),
        }
    }

    /// Warns once of a log that has become long.
    fn warn(&mut self) {
        match self.warning() {
            Some(what) if !self.warned => {
                tracing::warn!("{what}");
                self.warned = true;
            }
            Some(_) => {}
            None => self.warned = false,
        }
    }

    /// Makes later copies fail.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.faults.copy.store(fault == Some(Fault::Copy), Ordering::Relaxed);
        self.faults.rest.store(fault == Some(Fault::Rest), Ordering::Relaxed);
    }

    /// After a commit: makes room in the log, begins a copy when it has grown, ends it when the
    /// thread is done.
    pub fn after_commit(&mut self, db: &Connection, refusal: &Refusal) {
        let pages = self.pages.load(Ordering::Relaxed);
        if refusal.is_set() {
            return;
        }
        if let Err(error) = self.make_room(pages) {
            tracing::warn!(%error, "cannot make the write-ahead log longer ahead of time");
        }
        if pages < self.pages_due {
            self.warned &= pages >= self.pages_max / WARN_PART;
            return;
        }
        self.warn();
        let mut progress = lock(&self.progress);
        let ended = match std::mem::replace(&mut *progress, Progress::Copying) {
            Progress::Copying => return,
            Progress::Idle => {
                if let Some(requests) = &self.requests {
                    _ = requests.send(());
                }
                return;
            }
            Progress::Copied => copy(db, &self.faults.rest),
            Progress::Failed(error) => Err(error),
        };
        *progress = Progress::Idle;
        self.pages_due = self.pages_wanted;
        match ended {
            // The count is that of the newest commit, which may be long ago when the next batch ends.
            Ok(()) => self.pages.store(0, Ordering::Relaxed),
            Err(error) => {
                self.pages_due = pages.saturating_add(self.pages_wanted);
                fail(refusal, &error);
            }
        }
    }

    /// Only who has the database calls this, between two commits, so nobody else writes to the log; and
    /// what follows its last commit is never read.
    fn make_room(&mut self, pages: i32) -> io::Result<()> {
        let used = u64::from(pages.unsigned_abs()) * FRAME_BYTES;
        let log = match &mut self.log {
            Some(log) => log,
            none => {
                let file = File::options().write(true).open(log(&self.folder))?;
                let bytes = file.metadata()?.len();
                none.insert(Log { file, bytes, used })
            }
        };
        if used < log.used && log.bytes > LOG_BYTES_KEPT {
            // It began anew, and SQLite may have made it shorter.
            log.bytes = log.file.metadata()?.len();
        }
        log.used = used;
        if log.bytes >= used + ROOM_BYTES / 4 {
            return Ok(());
        }
        let end = log.file.metadata()?.len().max(used);
        // Should it fail, it is not tried again: it is only there to be faster.
        log.bytes = u64::MAX;
        make_longer(&log.file, end, end + ROOM_BYTES)?;
        log.bytes = end + ROOM_BYTES;
        Ok(())
    }

    /// Waits for the thread, and lets the writer know of a failure it had at last.
    pub fn stop(&mut self, refusal: &Refusal) {
        self.end();
        if let Progress::Failed(error) = &*lock(&self.progress) {
            fail(refusal, error);
        }
    }

    fn end(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// Fills a file with zeros, a page at a time: Linux keeps what came in one write as one piece, and goes through
/// all pages of a piece for each later write into it.
pub(super) fn make_longer(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let piece = PIECE_BYTES - at % PIECE_BYTES;
        file.write_all_at(&ZEROS[..piece as usize], at)?;
        at += piece;
    }
    Ok(())
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

fn copy(db: &Connection, fault: &AtomicBool) -> rusqlite::Result<()> {
    if fault.load(Ordering::Relaxed) {
        return Err(failed_sync());
    }
    db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// What was copied may not be on disk, and the system says so only once: another copy would succeed,
/// and the log begin anew over the only good version. So nothing is written or copied any more; who
/// opens the store anew copies the whole log again. A full disk is no such case: the log stays.
fn fail(refusal: &Refusal, error: &rusqlite::Error) {
    use rusqlite::ErrorCode::{DatabaseCorrupt, SystemIoFailure};
    let what = format!("cannot copy the write-ahead log into the database: {error}");
    if matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | SystemIoFailure)) {
        tracing::error!("{what}");
        refusal.set(&what);
    } else {
        tracing::warn!("{what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder;
    use taskyard_store::OpenOptions;

    /// The count of pages stayed what it was until the next write: batches that wrote nothing let the
    /// thread and the writer copy the same log in turns.
    #[test]
    fn a_copied_log_is_not_copied_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut checkpointer, db) = with_log(folder.path());
        let refusal = Refusal::default();
        checkpointer.after_commit(&db, &refusal);
        checkpointer.end();
        assert!(matches!(*lock(&checkpointer.progress), Progress::Copied));
        for _ in 0..3 {
            checkpointer.after_commit(&db, &refusal);
            assert!(matches!(*lock(&checkpointer.progress), Progress::Idle));
        }
    }

    /// A copy that a full disk prevented was tried again with every second commit.
    #[test]
    fn a_copy_that_failed_waits_for_a_longer_log() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut checkpointer, db) = with_log(folder.path());
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        let full = rusqlite::Error::SqliteFailure(full, None);
        *lock(&checkpointer.progress) = Progress::Failed(full);
        let refusal = Refusal::default();
        for _ in 0..3 {
            checkpointer.after_commit(&db, &refusal);
            assert!(matches!(*lock(&checkpointer.progress), Progress::Idle));
        }
        assert!(!refusal.is_set(), "the log is whole, so it goes on");
    }

    /// A long log was not waited for: while our own thread copied it, a write was refused, and another program that
    /// was not there got the blame.
    #[test]
    fn a_full_log_waits_for_its_own_copy() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut checkpointer, db) = with_log(folder.path());
        checkpointer.set_pages_max(1);
        let (progress, ended) = (checkpointer.progress.clone(), checkpointer.ended.clone());
        *lock(&progress) = Progress::Copying;
        let copy = std::thread::spawn(move || {
            // tidy: sleep because the other side waits for a condition, which must not hold at once
            std::thread::sleep(Duration::from_millis(100));
            *lock(&progress) = Progress::Copied;
            ended.notify_all();
        });
        checkpointer.check_room(&db, &Refusal::default()).expect("there is room after the copy");
        assert!(matches!(*lock(&checkpointer.progress), Progress::Copied), "it was waited for");
        copy.join().expect("the copy ends");
    }

    /// The same for a reader of ours, which is soon done. One that stays is waited for only once, and then it is
    /// another program.
    #[test]
    fn a_full_log_waits_for_short_reads() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut checkpointer, db) = with_log(folder.path());
        checkpointer.set_pages_max(1);
        let reader = connect(folder.path()).expect("a reader");
        reader.execute_batch("BEGIN; SELECT * FROM store").expect("a read");
        let warning = checkpointer.warning().expect("the log is long");
        assert!(warning.contains("the disk is slow, or another program"), "{warning}");
        let refusal = Refusal::default();
        for _ in 0..2 {
            let refused = checkpointer.check_room(&db, &refusal).expect_err("it is read");
            assert!(refused.describe().contains("because another program"), "{refused:?}");
        }
        checkpointer.held = None;
        let reading = std::thread::spawn(move || {
            // tidy: sleep because SQLite waits for the reader, and nothing tells when it has begun to
            std::thread::sleep(Duration::from_millis(200));
            drop(reader);
        });
        checkpointer.check_room(&db, &refusal).expect("there is room after the read");
        reading.join().expect("the read ends");
    }

    /// The log began anew after a copy that the disk did not confirm, if the writer had not yet heard of that.
    /// The log was the only good version.
    #[test]
    fn a_full_log_stays_after_a_failed_copy() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut checkpointer, db) = with_log(folder.path());
        checkpointer.set_pages_max(1);
        *lock(&checkpointer.progress) = Progress::Failed(failed_sync());
        let refusal = Refusal::default();
        checkpointer.check_room(&db, &refusal).expect_err("the log must stay");
        assert!(refusal.is_set() && checkpointer.log_bytes() > 0);
    }

    /// A store that wants to copy its log, which is one page long.
    fn with_log(folder: &Path) -> (Checkpointer, Connection) {
        let mut db = folder::open(folder, &OpenOptions::default()).expect("the folder opens").db;
        let mut checkpointer = Checkpointer::start(folder, &mut db).expect("it starts");
        checkpointer.set_pages(1);
        db.execute_batch("UPDATE store SET batch = batch + 1").expect("a commit");
        (checkpointer, db)
    }
}

//! Copies commits from the write-ahead log into the database, concurrently with the writer.
//!
//! A thread copies the log while the writer continues; the writer copies only the short rest, after which the
//! log is reset: new commits overwrite it from its beginning.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use taskyard_core::limits::LOG_BYTES_MAX;

use super::background::{BackgroundThread, BackgroundWork};
use super::folder::{connect, log, row_error, unavailable};
use super::platform::{Access, DataFolder, PlatformFile};
use super::write_error::WriteError;
use super::writer::{Fault, WriteRefusal, failed_sync};
use taskyard_store::OpenError;

/// The log is copied when it has this many pages, unless a test changes that.
const PAGES_WANTED: i32 = 4096;

/// Size of one page in the log.
const FRAME_BYTES: u64 = 4096 + 24;
/// Commits are refused when the log has this many pages, because something prevents its reset.
const PAGES_MAX: i32 = (LOG_BYTES_MAX / FRAME_BYTES) as i32;
/// A warning is due when the log reaches this fraction of the maximum.
const WARN_PART: i32 = 4;
/// How long SQLite waits for locks by default.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a commit waits for the checkpoint thread when the log is full.
const COPY_WAIT: Duration = Duration::from_secs(10);
/// How long it then waits for readers of the log; the store's own reads are short.
const READERS_WAIT: Duration = Duration::from_secs(1);
/// A long log is truncated to this size when it is reset.
pub(super) const LOG_BYTES_KEPT: u64 = 64 << 20;
/// The log is extended by this much at a time.
const EXTENSION_BYTES: u64 = 1 << 20;
/// The extension is written in pieces of this size.
const PIECE_BYTES: u64 = 4096;
const ZEROS: [u8; PIECE_BYTES as usize] = [0; PIECE_BYTES as usize];

/// The checkpoint thread.
#[derive(Debug)]
pub(super) struct Checkpointer {
    /// Pages in the log after the newest commit.
    pages: Arc<AtomicI32>,
    progress: Arc<Mutex<CopyProgress>>,
    /// Notified when the thread ends a copy.
    ended: Arc<Condvar>,
    /// What prevented the reset of the log when a commit needed it, until the reset succeeds.
    reset_blocker: Option<ResetBlocker>,
    /// The log is copied when it has this many pages.
    pages_wanted: i32,
    /// The same, or more after a failed copy.
    pages_due: i32,
    /// Commits are refused when the log has this many pages.
    pages_max: i32,
    /// Whether a warning about a long log was logged and the log has not become short since.
    warned: bool,
    log: Option<LogFile>,
    folder: DataFolder,
    thread: Box<dyn BackgroundThread>,
    /// Failures that a test requests.
    faults: Arc<CheckpointFaults>,
}

/// The progress of the thread.
#[derive(Debug)]
enum CopyProgress {
    Idle,
    Copying,
    /// Most of the log is copied; the writer copies the rest.
    Copied,
    Failed(rusqlite::Error),
}

/// What prevents a reset of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResetBlocker {
    /// The checkpoint thread has not finished.
    Checkpoint,
    /// Another program reads the database.
    Reader,
}

/// Copies that fail because a test requests it.
#[derive(Debug, Default)]
struct CheckpointFaults {
    copy: AtomicBool,
    rest: AtomicBool,
}

/// The file of the log, extended ahead of the writer: a sync that must also record a new length takes twice
/// as long.
#[derive(Debug)]
struct LogFile {
    file: Box<dyn PlatformFile>,
    bytes: u64,
    /// Used bytes when the file was last extended.
    used: u64,
}

impl Checkpointer {
    /// Starts the thread and makes `writer` count the pages of its log.
    pub fn start(folder: &DataFolder, writer: &mut Connection) -> Result<Checkpointer, OpenError> {
        let pages = Arc::new(AtomicI32::new(0));
        let counter = pages.clone();
        let hooked = writer.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
            counter.store(pages, Ordering::Relaxed);
            Ok(())
        }));
        hooked.map_err(|error| row_error(folder, error.into()))?;
        let db = connect(folder)?;
        let progress = Arc::new(Mutex::new(CopyProgress::Idle));
        let faults = Arc::new(CheckpointFaults::default());
        let ended = Arc::new(Condvar::new());
        let work = CopyWork {
            db,
            progress: progress.clone(),
            ended: ended.clone(),
            faults: faults.clone(),
        };
        let thread = folder.platform().spawn("taskyard-checkpoint", Box::new(work));
        let thread = thread.map_err(unavailable(folder))?;
        Ok(Checkpointer {
            pages,
            progress,
            ended,
            reset_blocker: None,
            pages_wanted: PAGES_WANTED,
            pages_due: PAGES_WANTED,
            pages_max: PAGES_MAX,
            warned: false,
            log: None,
            folder: folder.clone(),
            thread,
            faults,
        })
    }

    /// Sets at how many pages the log is copied, for tests.
    pub fn set_pages(&mut self, pages: i32) {
        (self.pages_wanted, self.pages_due) = (pages, pages);
    }

    /// Sets at how many pages commits are refused, for tests.
    pub fn set_pages_max(&mut self, pages: i32) {
        self.pages_max = pages;
    }

    /// Used bytes of the log.
    pub fn log_bytes(&self) -> u64 {
        u64::from(self.pages.load(Ordering::Relaxed).unsigned_abs()) * FRAME_BYTES
    }

    /// Whether the log has at least one part in so many of its maximum.
    pub fn is_filled_by(&self, part: i32) -> bool {
        self.pages.load(Ordering::Relaxed) >= self.pages_max / part
    }

    /// A warning if the log has become long.
    pub fn warning(&self) -> Option<String> {
        if self.pages.load(Ordering::Relaxed) < self.pages_max / WARN_PART {
            return None;
        }
        let why = match self.reset_blocker {
            Some(ResetBlocker::Reader) => {
                "cannot be emptied, because another program (sqlite3, a backup) keeps a read transaction on \
                 taskyard.db open; end that program"
            }
            Some(ResetBlocker::Checkpoint) => {
                "cannot be emptied yet, because the disk is too slow to copy it into taskyard.db in time"
            }
            None => {
                "has not been emptied yet: the disk is slow, or another program (sqlite3, a backup) keeps a read \
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

    /// Refuses a commit if the log is full and cannot be reset.
    pub fn check_room(
        &mut self,
        db: &Connection,
        refusal: &WriteRefusal,
    ) -> Result<(), WriteError> {
        if self.pages.load(Ordering::Relaxed) < self.pages_max {
            return Ok(());
        }
        // SQLite does not wait for a checkpoint of another connection, whatever its timeout.
        let copying = !self.wait_for_copy(refusal)?;
        // Only the first commit waits: a reader may run for hours.
        let timeout = if self.reset_blocker == Some(ResetBlocker::Reader) {
            Duration::ZERO
        } else {
            READERS_WAIT
        };
        db.busy_timeout(timeout)?;
        let is_blocked =
            db.query_row("PRAGMA wal_checkpoint(RESTART)", [], |row| row.get::<_, bool>(0));
        db.busy_timeout(BUSY_TIMEOUT)?;
        match is_blocked {
            Ok(false) => {
                self.reset_blocker = None;
                self.pages.store(0, Ordering::Relaxed);
                Ok(())
            }
            Ok(true) => {
                self.reset_blocker =
                    Some(if copying { ResetBlocker::Checkpoint } else { ResetBlocker::Reader });
                Err(WriteError::LogFull(self.warning().unwrap_or_default()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the thread has finished its copy and returns whether it has; only the first commit waits
    /// for long. After a copy that the disk did not confirm the log must not be reset.
    fn wait_for_copy(&self, refusal: &WriteRefusal) -> Result<bool, WriteError> {
        let timeout = if self.reset_blocker == Some(ResetBlocker::Checkpoint) {
            Duration::ZERO
        } else {
            COPY_WAIT
        };
        let copying = |progress: &mut CopyProgress| matches!(progress, CopyProgress::Copying);
        self.thread.assist();
        let waited = self.ended.wait_timeout_while(lock(&self.progress), timeout, copying);
        let (mut progress, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let CopyProgress::Failed(error) = &*progress {
            fail(refusal, error);
            *progress = CopyProgress::Idle;
        }
        match refusal.why() {
            Some(why) => Err(WriteError::DatabaseBehind(why)),
            None => Ok(!matches!(*progress, CopyProgress::Copying)),
        }
    }

    /// Logs a warning once when the log has become long.
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

    /// Makes later copies fail, for tests.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.faults.copy.store(fault == Some(Fault::ThreadCheckpoint), Ordering::Relaxed);
        self.faults.rest.store(fault == Some(Fault::WriterCheckpoint), Ordering::Relaxed);
    }

    /// Called after a commit: extends the log, starts a copy when the log has grown, and completes it when
    /// the thread has finished.
    pub fn after_commit(&mut self, db: &Connection, refusal: &WriteRefusal) {
        let pages = self.pages.load(Ordering::Relaxed);
        if refusal.is_set() {
            return;
        }
        if let Err(error) = self.extend_log(pages) {
            tracing::warn!(%error, "cannot extend the write-ahead log ahead of time");
        }
        if pages < self.pages_due {
            self.warned &= pages >= self.pages_max / WARN_PART;
            return;
        }
        self.warn();
        let mut progress = lock(&self.progress);
        let ended = match std::mem::replace(&mut *progress, CopyProgress::Copying) {
            CopyProgress::Copying => return,
            CopyProgress::Idle => return self.thread.signal(),
            CopyProgress::Copied => copy(db, &self.faults.rest),
            CopyProgress::Failed(error) => Err(error),
        };
        *progress = CopyProgress::Idle;
        self.pages_due = self.pages_wanted;
        match ended {
            // The count is that of the newest commit, which may be old when the next batch ends.
            Ok(()) => self.pages.store(0, Ordering::Relaxed),
            Err(error) => {
                self.pages_due = pages.saturating_add(self.pages_wanted);
                fail(refusal, &error);
            }
        }
    }

    /// Extends the file of the log. The caller holds the database and is between two commits, so nothing else
    /// writes to the log, and SQLite never reads what follows its last commit.
    fn extend_log(&mut self, pages: i32) -> io::Result<()> {
        let used = u64::from(pages.unsigned_abs()) * FRAME_BYTES;
        let log = match &mut self.log {
            Some(log) => log,
            none => {
                let file = self.folder.platform().open(&log(&self.folder), Access::Write)?;
                let bytes = file.length()?;
                none.insert(LogFile { file, bytes, used })
            }
        };
        if used < log.used && log.bytes > LOG_BYTES_KEPT {
            // The log was reset, and SQLite may have truncated it.
            log.bytes = log.file.length()?;
        }
        log.used = used;
        if log.bytes >= used + EXTENSION_BYTES / 4 {
            return Ok(());
        }
        let end = log.file.length()?.max(used);
        // Not tried again after a failure, because it only improves speed.
        log.bytes = u64::MAX;
        extend_with_zeros(&*log.file, end, end + EXTENSION_BYTES)?;
        log.bytes = end + EXTENSION_BYTES;
        Ok(())
    }

    /// Ends the thread, and refuses later writes if its last copy failed.
    pub fn stop(&mut self, refusal: &WriteRefusal) {
        self.thread.end();
        if let CopyProgress::Failed(error) = &*lock(&self.progress) {
            fail(refusal, error);
        }
    }
}

/// Extends a file with zeros, one page per write: Linux caches the data of one large write as one unit, and scans all
/// pages of the unit for each later write into it.
pub(super) fn extend_with_zeros(file: &dyn PlatformFile, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let piece = PIECE_BYTES - at % PIECE_BYTES;
        file.write_all_at(&ZEROS[..piece as usize], at)?;
        at += piece;
    }
    Ok(())
}

/// The work of the thread.
struct CopyWork {
    db: Connection,
    progress: Arc<Mutex<CopyProgress>>,
    ended: Arc<Condvar>,
    faults: Arc<CheckpointFaults>,
}

impl BackgroundWork for CopyWork {
    fn step(&mut self) -> Option<Duration> {
        if matches!(*lock(&self.progress), CopyProgress::Copying) {
            let copied = copy(&self.db, &self.faults.copy);
            *lock(&self.progress) =
                copied.map_or_else(CopyProgress::Failed, |()| CopyProgress::Copied);
            self.ended.notify_all();
        }
        None
    }
}

fn lock(progress: &Mutex<CopyProgress>) -> MutexGuard<'_, CopyProgress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

fn copy(db: &Connection, fault: &AtomicBool) -> rusqlite::Result<()> {
    if fault.load(Ordering::Relaxed) {
        return Err(failed_sync());
    }
    db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Handles a failed copy. The copied pages may not be on disk, and the system reports that only once: another
/// copy would succeed, and the reset would overwrite the only good version in the log. So nothing is written
/// or copied any more; the next opening copies the whole log again. A full disk is harmless: the log stays.
fn fail(refusal: &WriteRefusal, error: &rusqlite::Error) {
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
    use std::path::Path;

    use super::*;
    use crate::folder;
    use taskyard_store::OpenOptions;

    /// The page count stayed the same until the next write: batches that wrote nothing made the thread and
    /// the writer copy the same log alternately.
    #[test]
    fn a_copied_log_is_not_copied_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut checkpointer, db) = with_log(folder.path());
        let refusal = WriteRefusal::default();
        checkpointer.after_commit(&db, &refusal);
        checkpointer.thread.end();
        assert!(matches!(*lock(&checkpointer.progress), CopyProgress::Copied));
        for _ in 0..3 {
            checkpointer.after_commit(&db, &refusal);
            assert!(matches!(*lock(&checkpointer.progress), CopyProgress::Idle));
        }
    }

    /// A copy that failed on a full disk was retried with every second commit.
    #[test]
    fn a_copy_that_failed_waits_for_a_longer_log() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut checkpointer, db) = with_log(folder.path());
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        let full = rusqlite::Error::SqliteFailure(full, None);
        *lock(&checkpointer.progress) = CopyProgress::Failed(full);
        let refusal = WriteRefusal::default();
        for _ in 0..3 {
            checkpointer.after_commit(&db, &refusal);
            assert!(matches!(*lock(&checkpointer.progress), CopyProgress::Idle));
        }
        assert!(!refusal.is_set(), "the log is intact, so writes continue");
    }

    /// A commit did not wait for the checkpoint thread: while the thread copied the log, writes were refused,
    /// and the message blamed another program.
    #[test]
    fn a_full_log_waits_for_its_own_copy() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut checkpointer, db) = with_log(folder.path());
        checkpointer.set_pages_max(1);
        let (progress, ended) = (checkpointer.progress.clone(), checkpointer.ended.clone());
        *lock(&progress) = CopyProgress::Copying;
        let copy = std::thread::spawn(move || {
            // tidy: sleep because the other side waits for a condition, which must not hold at once
            std::thread::sleep(Duration::from_millis(100));
            *lock(&progress) = CopyProgress::Copied;
            ended.notify_all();
        });
        checkpointer
            .check_room(&db, &WriteRefusal::default())
            .expect("the log can be reset after the copy");
        assert!(
            matches!(*lock(&checkpointer.progress), CopyProgress::Copied),
            "the commit waited for it"
        );
        copy.join().expect("the copy ends");
    }

    /// The same for a short read of the store itself. A reader that stays is waited for only once, and then
    /// counts as another program.
    #[test]
    fn a_full_log_waits_for_short_reads() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut checkpointer, db) = with_log(folder.path());
        checkpointer.set_pages_max(1);
        let reader = connect(&checkpointer.folder).expect("a reader");
        reader.execute_batch("BEGIN; SELECT * FROM store").expect("a read");
        let warning = checkpointer.warning().expect("the log is long");
        assert!(warning.contains("the disk is slow, or another program"), "{warning}");
        let refusal = WriteRefusal::default();
        for _ in 0..2 {
            let refused = checkpointer.check_room(&db, &refusal).expect_err("it is read");
            assert!(refused.describe().contains("because another program"), "{refused:?}");
        }
        checkpointer.reset_blocker = None;
        let reading = std::thread::spawn(move || {
            // tidy: sleep because SQLite waits for the reader, and nothing signals that it has begun to
            std::thread::sleep(Duration::from_millis(200));
            drop(reader);
        });
        checkpointer.check_room(&db, &refusal).expect("the log can be reset after the read");
        reading.join().expect("the read ends");
    }

    /// The log was reset after a copy that the disk did not confirm, if the writer had not noticed the
    /// failure yet. The log was the only good version.
    #[test]
    fn a_full_log_stays_after_a_failed_copy() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut checkpointer, db) = with_log(folder.path());
        checkpointer.set_pages_max(1);
        *lock(&checkpointer.progress) = CopyProgress::Failed(failed_sync());
        let refusal = WriteRefusal::default();
        checkpointer.check_room(&db, &refusal).expect_err("the log must stay");
        assert!(refusal.is_set() && checkpointer.log_bytes() > 0);
    }

    /// A store whose log of one page is due for a copy.
    fn with_log(path: &Path) -> (Checkpointer, Connection) {
        let folder = DataFolder::of_system(path);
        let mut db = folder::open(&folder, &OpenOptions::default()).expect("the folder opens").db;
        let mut checkpointer = Checkpointer::start(&folder, &mut db).expect("it starts");
        checkpointer.set_pages(1);
        db.execute_batch("UPDATE store SET batch = batch + 1").expect("a commit");
        (checkpointer, db)
    }
}

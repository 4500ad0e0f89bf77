//! Moving commits from the write-ahead log into the database, beside the writer.
//!
//! A thread of its own copies what is in the log while the writer goes on; the writer copies only the
//! short rest, after which the log begins anew.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::folder::{connect, log, row_error};
use crate::OpenError;

/// A log of so many pages wants to be copied.
const PAGES_WANTED: i32 = 4096;

/// What a page takes in the log.
const FRAME_BYTES: u64 = 4096 + 24;
/// The log is made longer by this much at a time.
const ROOM_BYTES: u64 = 1 << 20;

/// The copying thread.
#[derive(Debug)]
pub(super) struct Checkpointer {
    requests: Option<Sender<()>>,
    /// Pages in the log after the newest commit.
    pages: Arc<AtomicI32>,
    busy: Arc<AtomicBool>,
    /// Whether the thread has copied most of the log, so that the writer may copy the rest.
    copied: bool,
    log: Option<Log>,
    folder: PathBuf,
    thread: Option<JoinHandle<()>>,
}

/// The log's file, made longer ahead of the writer: a sync that must also note a new length takes twice
/// the time.
#[derive(Debug)]
struct Log {
    file: File,
    bytes: u64,
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
        let busy = Arc::new(AtomicBool::new(false));
        let flag = busy.clone();
        let thread = std::thread::Builder::new()
            .name("taskyard-checkpoint".into())
            .spawn(move || {
                while wanted.recv().is_ok() {
                    copy(&db);
                    flag.store(false, Ordering::Release);
                }
            })
            .map_err(|error| OpenError::Unavailable {
                folder: folder.to_owned(),
                what: error.to_string(),
            })?;
        Ok(Checkpointer {
            requests: Some(requests),
            pages,
            busy,
            copied: false,
            log: None,
            folder: folder.to_owned(),
            thread: Some(thread),
        })
    }

    /// After a commit: makes room in the log, begins a copy when it has grown, ends it when the
    /// thread is done.
    pub fn after_commit(&mut self, writer: &Connection) {
        let pages = self.pages.load(Ordering::Relaxed);
        if let Err(error) = self.make_room(pages) {
            tracing::warn!(%error, "cannot make the write-ahead log longer ahead of time");
        }
        if pages < PAGES_WANTED || self.busy.load(Ordering::Acquire) {
            return;
        }
        if self.copied {
            copy(writer);
            self.copied = false;
        } else if let Some(requests) = &self.requests {
            self.busy.store(true, Ordering::Release);
            self.copied = true;
            _ = requests.send(());
        }
    }

    /// Only the writer's thread calls this, between two commits, so nobody else writes to the log; and
    /// what follows its last commit is never read.
    fn make_room(&mut self, pages: i32) -> io::Result<()> {
        let used = u64::from(pages.unsigned_abs()) * FRAME_BYTES;
        if self.log.as_ref().is_some_and(|log| log.bytes >= used + ROOM_BYTES / 4) {
            return Ok(());
        }
        let log = match &mut self.log {
            Some(log) => log,
            none => {
                let file = File::options().write(true).open(log(&self.folder))?;
                none.insert(Log { file, bytes: 0 })
            }
        };
        let end = log.file.metadata()?.len().max(used);
        // Should it fail, it is not tried again: it is only there to be faster.
        log.bytes = u64::MAX;
        log.file.write_all_at(&vec![0; ROOM_BYTES as usize], end)?;
        log.bytes = end + ROOM_BYTES;
        Ok(())
    }

    pub fn stop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn copy(db: &Connection) {
    if let Err(error) = db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
        tracing::warn!(%error, "cannot copy the write-ahead log into the database");
    }
}

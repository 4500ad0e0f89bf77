//! Moving commits from the write-ahead log into the database, beside the writer.
//!
//! A thread of its own copies what is in the log while the writer goes on; the writer copies only the
//! short rest, after which the log begins anew.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::folder::{connect, row_error};
use crate::OpenError;

/// A log of so many pages wants to be copied.
const PAGES_WANTED: i32 = 4096;

/// The copying thread.
#[derive(Debug)]
pub(super) struct Checkpointer {
    requests: Option<Sender<()>>,
    /// Pages in the log after the newest commit.
    pages: Arc<AtomicI32>,
    busy: Arc<AtomicBool>,
    /// Whether the thread has copied most of the log, so that the writer may copy the rest.
    copied: bool,
    thread: Option<JoinHandle<()>>,
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
            thread: Some(thread),
        })
    }

    /// After a commit: begins a copy when the log has grown, ends it when the thread is done.
    pub fn after_commit(&mut self, writer: &Connection) {
        if self.pages.load(Ordering::Relaxed) < PAGES_WANTED || self.busy.load(Ordering::Acquire) {
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

//! Newest batches, each in one write, before they are in the database.
//!
//! A commit of SQLite writes whole pages, some of them again and again, and costs several times what one write and
//! one sync do. So a batch that only changes tasks is done when it stands here; [`super::follow`] brings it into the
//! database soon after, many in one transaction. Two files are written in turns: one is begun anew when all that
//! stands in it is in the database. Who opens the store first brings over what is left, by the numbers of the batches.

mod record;
mod replay;

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::checkpoint::make_longer;
use super::codec::Head;
use super::folder::sync;
use super::modes::FILE_MODE;
use super::rows::Rows;

pub(super) use replay::read;

/// So large a file becomes before the other one's turn.
pub(super) const FILE_BYTES: u64 = 8 << 20;
/// A file is made longer by this much at a time, ahead of its records: a sync that must also note a new length takes
/// twice the time.
const ROOM_BYTES: u64 = 1 << 20;
/// A larger batch goes straight into the database: what a commit costs by itself is little beside it.
const BATCH_BYTES: usize = 256 << 10;

/// What a file begins with: a name, the salt of its records and a checksum.
const HEADER_BYTES: usize = 24;
const NAME: &[u8; 8] = b"taskyard";

/// The files of a folder.
pub(super) fn paths(folder: &Path) -> [PathBuf; 2] {
    ["taskyard.journal-1", "taskyard.journal-2"].map(|name| folder.join(name))
}

/// The open journal.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    /// None before the first batch.
    files: Option<[Pages; 2]>,
    /// Which of them is written.
    turn: usize,
    /// Records carry a number that nobody outside knows, so that no payload can look like one.
    salt: u64,
    /// The batch that is being written.
    buffer: Vec<u8>,
    /// Larger batches are not written here.
    batch_bytes: usize,
}

#[derive(Debug)]
struct Pages {
    file: File,
    /// Where the next record goes.
    at: u64,
    /// How long the file is.
    length: u64,
    /// The newest batch in it.
    newest: u64,
}

/// Why a batch is not in the journal.
#[derive(Debug)]
pub(super) enum Failure {
    /// It could not be written; the next one takes its place.
    Write(io::Error),
    /// The disk did not confirm the files of the journal, in which nothing is written yet.
    Begin(io::Error),
    /// It was written, and the disk did not confirm it.
    Sync(io::Error),
}

impl Journal {
    /// The journal of a folder of which everything is in the database.
    pub fn new(folder: &Path) -> Journal {
        Journal {
            folder: folder.to_owned(),
            files: None,
            turn: 0,
            salt: RandomState::new().build_hasher().finish(),
            buffer: Vec::new(),
            batch_bytes: BATCH_BYTES,
        }
    }

    /// Writes larger batches straight into the database, for tests that want to see them there.
    pub fn set_batch_bytes(&mut self, bytes: usize) {
        self.batch_bytes = bytes;
    }

    /// Whether a batch is small enough.
    pub fn suits(&self, rows: &Rows) -> bool {
        let bytes = record::estimate(rows);
        bytes <= self.batch_bytes && self.batch_bytes > 0
    }

    /// Prepares a batch and tells up to which one the database must be before it can be written.
    pub fn prepare(&mut self, head: &Head, rows: &Rows) -> Result<u64, Failure> {
        record::encode(&mut self.buffer, self.salt, head, rows);
        let files = match &mut self.files {
            Some(files) => files,
            none => none.insert(create(&self.folder, self.salt)?),
        };
        let fits = files[self.turn].at + self.buffer.len() as u64 <= FILE_BYTES;
        Ok(if fits { 0 } else { files[1 - self.turn].newest })
    }

    /// Makes the prepared batch durable; returns its bytes. With `unconfirmed` the disk does not confirm it, as a test
    /// asks for.
    pub fn append(&mut self, batch: u64, unconfirmed: bool) -> Result<usize, Failure> {
        let Some(files) = &mut self.files else {
            return Err(Failure::Write(io::Error::other("nothing is prepared")));
        };
        if files[self.turn].at + self.buffer.len() as u64 > FILE_BYTES {
            self.turn = 1 - self.turn;
            files[self.turn].at = HEADER_BYTES as u64;
        }
        let pages = &mut files[self.turn];
        pages.write(&self.buffer).map_err(Failure::Write)?;
        if unconfirmed {
            return Err(Failure::Sync(io::Error::other("a test asked for this failure")));
        }
        pages.file.sync_data().map_err(Failure::Sync)?;
        pages.at += self.buffer.len() as u64;
        pages.newest = batch;
        Ok(self.buffer.len())
    }

    /// Forgets everything: all of it is in the database, durably.
    pub fn clear(&mut self) -> io::Result<()> {
        self.files = None;
        for path in paths(&self.folder).iter().filter(|path| path.exists()) {
            File::options().write(true).open(path)?.set_len(0)?;
        }
        Ok(())
    }
}

impl Pages {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = self.at + bytes.len() as u64;
        if end > self.length {
            let length = end.max(self.length + ROOM_BYTES).min(FILE_BYTES);
            make_longer(&self.file, self.length, length)?;
            self.length = length;
        }
        self.file.write_all_at(bytes, self.at)
    }
}

/// Makes both files, or begins those that are there anew.
fn create(folder: &Path, salt: u64) -> Result<[Pages; 2], Failure> {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(NAME);
    header[8..16].copy_from_slice(&salt.to_le_bytes());
    let sum = crc32fast::hash(&header[..16]);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
    let open = |path: &PathBuf| -> io::Result<Pages> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = options.open(path)?;
        file.write_all_at(&header, 0)?;
        let length = file.metadata()?.len();
        Ok(Pages { file, at: HEADER_BYTES as u64, length, newest: 0 })
    };
    let [first, second] = paths(folder);
    let files = [open(&first).map_err(Failure::Write)?, open(&second).map_err(Failure::Write)?];
    // Both are known to belong together before there is anything in them.
    for pages in &files {
        pages.file.sync_all().map_err(Failure::Begin)?;
    }
    sync(folder).map_err(Failure::Begin)?;
    Ok(files)
}

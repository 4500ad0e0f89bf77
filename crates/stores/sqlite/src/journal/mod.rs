//! Writes the newest batches to the journal, each in one write, before they are in the database.
//!
//! A commit of SQLite writes whole pages, some of them repeatedly, and costs several times as much as one
//! write and one sync. So a batch that only changes tasks is durable when it is in the journal;
//! [`super::applier`] applies it to the database soon after, many batches in one transaction. Two files are
//! used alternately: one is overwritten when all of its batches are in the database. The next opening applies
//! the remaining batches, by their numbers.

mod record;
mod replay;

use std::io;
use std::path::{Path, PathBuf};

use super::checkpoint::extend_with_zeros;
use super::codec::Head;
use super::platform::{Access, DataFolder, PlatformFile};
use super::rows::Rows;

pub(super) use replay::read;

/// Maximum size of a file; then the other one is used.
pub(super) const FILE_BYTES: u64 = 8 << 20;
/// A file is extended by this much at a time, ahead of its records: a sync that must also record a new length
/// takes twice as long.
const EXTENSION_BYTES: u64 = 1 << 20;
/// A larger batch is written directly into the database: the fixed cost of a commit is small compared to it.
const BATCH_BYTES: usize = 256 << 10;

/// Size of the header of a file: a magic number, the salt of its records and a checksum.
const HEADER_BYTES: usize = 24;
const MAGIC: &[u8; 8] = b"taskyard";

/// The journal files of a folder.
pub(super) fn paths(folder: &Path) -> [PathBuf; 2] {
    ["taskyard.journal-1", "taskyard.journal-2"].map(|name| folder.join(name))
}

/// The open journal.
#[derive(Debug)]
pub(super) struct Journal {
    folder: DataFolder,
    /// `None` before the first batch.
    files: Option<[JournalFile; 2]>,
    /// Index of the file that is written.
    active: usize,
    /// A random number in each record, which no client knows, so that no payload can imitate a record.
    salt: u64,
    /// The encoded batch that is being written.
    buffer: Vec<u8>,
    /// Larger batches are written directly into the database.
    batch_bytes: usize,
}

#[derive(Debug)]
struct JournalFile {
    file: Box<dyn PlatformFile>,
    /// Offset of the next record.
    at: u64,
    /// Length of the file.
    length: u64,
    /// Number of the newest batch in the file.
    newest: u64,
}

/// The reason that a batch is not in the journal.
#[derive(Debug)]
pub(super) enum JournalError {
    /// The write failed; the next batch overwrites it.
    Write(io::Error),
    /// The disk did not confirm the new files, which are still empty.
    Create(io::Error),
    /// The batch was written, but the disk did not confirm it.
    Sync(io::Error),
}

impl Journal {
    /// Creates the journal of a folder whose batches are all in the database.
    pub fn new(folder: &DataFolder) -> Journal {
        Journal {
            folder: folder.clone(),
            files: None,
            active: 0,
            salt: folder.platform().random(),
            buffer: Vec::new(),
            batch_bytes: BATCH_BYTES,
        }
    }

    /// Sets the size above which batches are written directly into the database, for tests.
    pub fn set_batch_bytes(&mut self, bytes: usize) {
        self.batch_bytes = bytes;
    }

    /// Whether a batch is small enough for the journal.
    pub fn accepts(&self, rows: &Rows) -> bool {
        let bytes = record::estimate(rows);
        bytes <= self.batch_bytes && self.batch_bytes > 0
    }

    /// Encodes a batch and returns the number of the batch that the database must have before this one can be
    /// written.
    pub fn prepare(&mut self, head: &Head, rows: &Rows) -> Result<u64, JournalError> {
        record::encode(&mut self.buffer, self.salt, head, rows);
        let files = match &mut self.files {
            Some(files) => files,
            none => none.insert(create(&self.folder, self.salt)?),
        };
        let fits = files[self.active].at + self.buffer.len() as u64 <= FILE_BYTES;
        Ok(if fits { 0 } else { files[1 - self.active].newest })
    }

    /// Makes the prepared batch durable; returns its size in bytes. With `unconfirmed` the disk does not
    /// confirm it, for tests.
    pub fn append(&mut self, batch: u64, unconfirmed: bool) -> Result<usize, JournalError> {
        let Some(files) = &mut self.files else {
            return Err(JournalError::Write(io::Error::other("nothing is prepared")));
        };
        if files[self.active].at + self.buffer.len() as u64 > FILE_BYTES {
            self.active = 1 - self.active;
            files[self.active].at = HEADER_BYTES as u64;
        }
        let file = &mut files[self.active];
        file.write(&self.buffer).map_err(JournalError::Write)?;
        if unconfirmed {
            return Err(JournalError::Sync(io::Error::other("a test requested this failure")));
        }
        file.file.sync_data().map_err(JournalError::Sync)?;
        file.at += self.buffer.len() as u64;
        file.newest = batch;
        Ok(self.buffer.len())
    }

    /// Empties the files, when the database has all batches durably.
    pub fn clear(&mut self) -> io::Result<()> {
        self.files = None;
        for path in paths(&self.folder).iter().filter(|path| self.folder.has(path)) {
            self.folder.platform().open(path, Access::Write)?.set_length(0)?;
        }
        Ok(())
    }
}

impl JournalFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = self.at + bytes.len() as u64;
        if end > self.length {
            let length = end.max(self.length + EXTENSION_BYTES).min(FILE_BYTES);
            extend_with_zeros(&*self.file, self.length, length)?;
            self.length = length;
        }
        self.file.write_all_at(bytes, self.at)
    }
}

/// Creates both files, or overwrites the headers of existing ones.
fn create(folder: &DataFolder, salt: u64) -> Result<[JournalFile; 2], JournalError> {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&salt.to_le_bytes());
    let sum = crc32fast::hash(&header[..16]);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
    let open = |path: &PathBuf| -> io::Result<JournalFile> {
        let file = folder.platform().open(path, Access::Create)?;
        file.write_all_at(&header, 0)?;
        let length = file.length()?;
        Ok(JournalFile { file, at: HEADER_BYTES as u64, length, newest: 0 })
    };
    let [first, second] = paths(folder);
    let files =
        [open(&first).map_err(JournalError::Write)?, open(&second).map_err(JournalError::Write)?];
    // Both headers are durable before the first record is written.
    for file in &files {
        file.file.sync_all().map_err(JournalError::Create)?;
    }
    folder.sync().map_err(JournalError::Create)?;
    Ok(files)
}

//! The seal: the number of the newest commit, and of the newest one in the database, in a file of its own.
//!
//! One flipped bit in SQLite's write-ahead log makes it drop all later commits without a word. The
//! seal is written after each commit, so a database that is behind it has lost some; the journal must not be
//! brought over to such a one, since some of its pages may be newer than others.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::modes::FILE_MODE;

/// The open seal file.
#[derive(Debug)]
pub(super) struct Seal {
    file: File,
}

/// What a seal file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sealed {
    /// There is none.
    Absent,
    /// The newest commit had this number.
    Batch {
        /// Wherever it is.
        newest: u64,
        /// The newest in the database; 0 in seals of before there was a journal.
        in_database: u64,
    },
    /// The file is damaged itself.
    Unreadable,
}

/// What a number takes, with its checksum.
const BYTES: usize = 12;

impl Seal {
    /// What the seal says, without touching it.
    pub fn read(path: &Path) -> io::Result<Sealed> {
        let bytes = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Sealed::Absent),
            bytes => bytes?,
        };
        let numbers: Option<Vec<u64>> = bytes.chunks(BYTES).map(decode).collect();
        Ok(match numbers.as_deref() {
            Some([newest]) => Sealed::Batch { newest: *newest, in_database: 0 },
            Some([newest, in_database]) => {
                Sealed::Batch { newest: *newest, in_database: *in_database }
            }
            _ => Sealed::Unreadable,
        })
    }

    /// Makes the seal say that the database has all, up to this, whatever it was, and keeps it open.
    pub fn open(path: &Path, batch: u64) -> io::Result<Seal> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = options.open(path)?;
        let seal = Seal { file };
        // Written before it is cut: a crash in between must not leave a seal of zeroes.
        seal.write(batch)?;
        seal.write_in_database(batch)?;
        seal.file.set_len(2 * BYTES as u64)?;
        seal.file.sync_all()?;
        Ok(seal)
    }

    /// Writes the number of a commit that is on disk. Not synced: a seal that is behind is harmless.
    pub fn write(&self, batch: u64) -> io::Result<()> {
        self.file.write_all_at(&encode(batch), 0)
    }

    /// Writes the number of a commit that is in the database.
    pub fn write_in_database(&self, batch: u64) -> io::Result<()> {
        self.file.write_all_at(&encode(batch), BYTES as u64)
    }
}

fn encode(batch: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&batch.to_le_bytes());
    bytes[8..].copy_from_slice(&crc32fast::hash(&batch.to_le_bytes()).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<u64> {
    let batch = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (encode(batch) == bytes).then_some(batch)
}

//! Writes and reads the seal file: the number of the newest commit, and of the newest one in the database.
//!
//! One flipped bit in SQLite's write-ahead log makes SQLite silently ignore all later commits. The seal is
//! written after each commit, so a database that is behind it has lost commits; the journal must not be
//! applied to such a database, because some of its pages may be newer than others.

use std::io;

use super::folder::seal_file;
use super::platform::{Access, DataFolder, PlatformFile};

/// The open seal file.
#[derive(Debug)]
pub(super) struct Seal {
    file: Box<dyn PlatformFile>,
}

/// The content of a seal file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sealed {
    /// There is no seal file.
    Absent,
    /// The newest commit had this number.
    Batch {
        /// In the database or in the journal.
        newest: u64,
        /// The newest one in the database; 0 in seals of formats without a journal.
        in_database: u64,
    },
    /// The seal file exists, and nothing was written to it.
    Blank,
    /// The seal file is damaged.
    Unreadable,
}

/// Size of a number with its checksum.
const BYTES: usize = 12;
/// A longer file is not a seal.
const BYTES_MAX: u64 = 1024;

impl Seal {
    /// Reads the seal without changing it.
    pub fn read(folder: &DataFolder) -> io::Result<Sealed> {
        let found = folder.platform().read(&seal_file(folder), BYTES_MAX)?;
        let Some(bytes) = found else { return Ok(Sealed::Absent) };
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(Sealed::Blank);
        }
        let numbers: Option<Vec<u64>> = bytes.chunks(BYTES).map(decode).collect();
        Ok(match numbers.as_deref() {
            Some([newest]) => Sealed::Batch { newest: *newest, in_database: 0 },
            Some([newest, in_database]) => {
                Sealed::Batch { newest: *newest, in_database: *in_database }
            }
            _ => Sealed::Unreadable,
        })
    }

    /// Writes a seal that says that the database has all commits up to `batch`, and keeps the file open.
    pub fn open(folder: &DataFolder, batch: u64) -> io::Result<Seal> {
        let file = folder.platform().open(&seal_file(folder), Access::Create)?;
        let seal = Seal { file };
        // Written before it is truncated: a crash in between must not leave a seal of zeros.
        seal.write(batch)?;
        seal.write_in_database(batch)?;
        seal.file.set_length(2 * BYTES as u64)?;
        seal.file.sync_all()?;
        Ok(seal)
    }

    /// Writes the number of a durable commit. Not synced: a seal that is behind is harmless.
    pub fn write(&self, batch: u64) -> io::Result<()> {
        self.file.write_all_at(&encode(batch), 0)
    }

    /// Writes the number of the newest commit in the database.
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

//! Reads the bytes of a backup, as they come, and verifies them.

use rusqlite::types::ValueRef;
use taskyard_core::limits::BACKUP_BLOCK_BYTES_MAX;

use super::format::{
    BackupHeader, CHECKSUM_BYTES, FORMAT, MAGIC, PREFIX_BYTES, START_BYTES, kind, tag,
};

/// Why bytes are not an intact backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// It is something else.
    #[error("it is not a backup of taskyard")]
    NotABackup,
    /// It was written by a newer version.
    #[error("it has format {found}, this version reads up to {known}; use a newer taskyard")]
    TooNew {
        /// Its format.
        found: u32,
        /// The newest format that this version knows.
        known: u32,
    },
    /// Its content is not what was written.
    #[error("it is damaged at byte {at}: {what}")]
    Damaged {
        /// Where the part with the damage begins.
        at: u64,
        /// The damage.
        what: &'static str,
    },
    /// Its end is missing.
    #[error("it ends at byte {at}, before its end: it was cut, or the backup was not finished")]
    Incomplete {
        /// Its length.
        at: u64,
    },
    /// The server could not finish it.
    #[error("the server ended the backup: {}", .0.escape_debug())]
    Failed(String),
}

/// A verified part of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupBlock {
    /// What the backup is of; the first part.
    Header(BackupHeader),
    /// The rows that follow are of this table.
    Table {
        /// Its name.
        name: String,
        /// The names of its columns.
        columns: Vec<String>,
    },
    /// Rows of the table.
    Rows(RowBlock),
    /// The last part.
    End,
}

/// Rows of a table, encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowBlock {
    /// Where the block begins in the file.
    at: u64,
    count: u32,
    bytes: Vec<u8>,
}

/// Reads and verifies a backup.
#[derive(Debug)]
pub struct BackupParser {
    buffer: Vec<u8>,
    /// How many bytes of the buffer are done.
    done: usize,
    /// Where the first byte that is not done stands in the file.
    at: u64,
    checksum: crc32fast::Hasher,
    stage: Stage,
    header: Option<BackupHeader>,
    is_task_table: bool,
    rows: u64,
    tasks: u64,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Start,
    Header,
    Blocks,
    Ended,
}

impl Default for BackupParser {
    fn default() -> Self {
        BackupParser {
            buffer: Vec::new(),
            done: 0,
            at: 0,
            checksum: crc32fast::Hasher::new(),
            stage: Stage::Start,
            header: None,
            is_task_table: false,
            rows: 0,
            tasks: 0,
        }
    }
}

impl BackupParser {
    /// Adds bytes of the file.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.done > 0 {
            self.buffer.drain(..self.done);
            self.done = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next part; `None` if its bytes have not all been added. After an error nothing else comes.
    pub fn next_block(&mut self) -> Result<Option<BackupBlock>, BackupError> {
        if self.stage == Stage::Start && !self.read_start()? {
            return Ok(None);
        }
        let rest = &self.buffer[self.done..];
        if self.stage == Stage::Ended {
            return match rest {
                [] => Ok(None),
                _ => Err(self.damaged("something follows its end")),
            };
        }
        let Some(prefix) = rest.get(..PREFIX_BYTES) else { return Ok(None) };
        let length = u32::from_le_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if length > BACKUP_BLOCK_BYTES_MAX {
            return Err(self.damaged("the length of a part is invalid"));
        }
        let end = PREFIX_BYTES + length;
        let Some(checksum) = rest.get(end..end + CHECKSUM_BYTES) else { return Ok(None) };
        self.checksum.update(&rest[..end]);
        if self.checksum.clone().finalize().to_le_bytes() != checksum {
            return Err(self.damaged("its checksum is wrong"));
        }
        let (kind, content) = (prefix[0], rest[PREFIX_BYTES..end].to_vec());
        let block = self.decode(kind, content)?;
        self.advance(end + CHECKSUM_BYTES);
        Ok(Some(block))
    }

    /// Called after the last byte: returns what the backup is of, if it is complete.
    pub fn finish(&self) -> Result<&BackupHeader, BackupError> {
        let is_other = self.stage == Stage::Start && !MAGIC.starts_with(self.prefix_of_magic());
        match &self.header {
            _ if is_other => Err(BackupError::NotABackup),
            Some(header) if self.stage == Stage::Ended && self.buffer.len() == self.done => {
                Ok(header)
            }
            _ => Err(BackupError::Incomplete {
                at: self.at + (self.buffer.len() - self.done) as u64,
            }),
        }
    }

    /// What the backup is of, once that was read.
    pub fn header(&self) -> Option<&BackupHeader> {
        self.header.as_ref()
    }

    /// How many tasks were read.
    pub fn tasks(&self) -> u64 {
        self.tasks
    }

    fn prefix_of_magic(&self) -> &[u8] {
        &self.buffer[..self.buffer.len().min(MAGIC.len())]
    }

    /// Reads the magic and the version; false if not all of it has been added.
    fn read_start(&mut self) -> Result<bool, BackupError> {
        if !MAGIC.starts_with(self.prefix_of_magic()) {
            return Err(BackupError::NotABackup);
        }
        let Some(start) = self.buffer.get(..START_BYTES) else { return Ok(false) };
        let found = u32::from_le_bytes([start[8], start[9], start[10], start[11]]);
        if found > FORMAT {
            return Err(BackupError::TooNew { found, known: FORMAT });
        }
        if found == 0 {
            return Err(self.damaged("its format number is invalid"));
        }
        self.checksum.update(start);
        self.advance(START_BYTES);
        self.stage = Stage::Header;
        Ok(true)
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes;
        self.at += bytes as u64;
    }

    fn decode(&mut self, kind: u8, content: Vec<u8>) -> Result<BackupBlock, BackupError> {
        let at = self.at;
        let invalid = || BackupError::Damaged { at, what: "a part of it is invalid" };
        match (self.stage, kind) {
            (Stage::Header, kind::HEADER) => {
                let header = decode_header(&content).ok_or_else(invalid)?;
                self.stage = Stage::Blocks;
                self.header = Some(header.clone());
                Ok(BackupBlock::Header(header))
            }
            (Stage::Blocks, kind::TABLE) => {
                let (name, columns) = decode_table(&content).ok_or_else(invalid)?;
                self.is_task_table = name == "task";
                Ok(BackupBlock::Table { name, columns })
            }
            (Stage::Blocks, kind::ROWS) => {
                let count = Fields(&content).u32().ok_or_else(invalid)?;
                let mut bytes = content;
                bytes.drain(..4);
                self.rows = self.rows.saturating_add(u64::from(count));
                if self.is_task_table {
                    self.tasks = self.tasks.saturating_add(u64::from(count));
                }
                Ok(BackupBlock::Rows(RowBlock { at, count, bytes }))
            }
            (Stage::Blocks, kind::END) => {
                let rows = Fields(&content).u64().ok_or_else(invalid)?;
                let tasks = self.header.as_ref().map(|header| header.tasks);
                if rows != self.rows || tasks != Some(self.tasks) {
                    return Err(self.damaged("rows are missing"));
                }
                self.stage = Stage::Ended;
                Ok(BackupBlock::End)
            }
            (Stage::Header | Stage::Blocks, kind::FAILURE) => {
                Err(BackupError::Failed(String::from_utf8_lossy(&content).into_owned()))
            }
            _ => Err(invalid()),
        }
    }

    fn damaged(&self, what: &'static str) -> BackupError {
        BackupError::Damaged { at: self.at, what }
    }
}

impl RowBlock {
    /// Decodes the rows, each with this number of values.
    pub fn for_each<E: From<BackupError>>(
        &self,
        columns: usize,
        mut add: impl FnMut(&[ValueRef<'_>]) -> Result<(), E>,
    ) -> Result<(), E> {
        let invalid = || BackupError::Damaged { at: self.at, what: "a row is invalid" };
        let mut fields = Fields(&self.bytes);
        let mut row = Vec::with_capacity(columns.min(64));
        for _ in 0..self.count {
            row.clear();
            for _ in 0..columns {
                row.push(fields.value().ok_or_else(invalid)?);
            }
            add(&row)?;
        }
        if fields.0.is_empty() { Ok(()) } else { Err(invalid().into()) }
    }
}

fn decode_header(content: &[u8]) -> Option<BackupHeader> {
    let mut fields = Fields(content);
    let header = BackupHeader {
        program: fields.text()?,
        store: fields.text()?,
        taken_at: fields.u64()? as i64,
        schema: fields.u32()?,
        batch: fields.u64()?,
        tubes: fields.u64()?,
        tasks: fields.u64()?,
    };
    fields.0.is_empty().then_some(header)
}

fn decode_table(content: &[u8]) -> Option<(String, Vec<String>)> {
    let mut fields = Fields(content);
    let (name, count) = (fields.text()?, fields.u32()?);
    let mut columns = Vec::new();
    for _ in 0..count {
        columns.push(fields.text()?);
    }
    fields.0.is_empty().then_some((name, columns))
}

/// The rest of encoded fields.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.bytes(length as usize)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.sized()?.to_vec()).ok()
    }

    fn value(&mut self) -> Option<ValueRef<'a>> {
        Some(match self.bytes(1)?[0] {
            tag::NULL => ValueRef::Null,
            tag::INTEGER => ValueRef::Integer(self.u64()? as i64),
            tag::REAL => ValueRef::Real(f64::from_bits(self.u64()?)),
            tag::TEXT => ValueRef::Text(self.sized()?),
            tag::BLOB => ValueRef::Blob(self.sized()?),
            _ => return None,
        })
    }
}

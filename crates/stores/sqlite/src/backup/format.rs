//! Encodes a backup: what its file consists of, and the bytes of each part.
//!
//! A file is the magic, the version of the format, and blocks. A block is its kind, the length of its content, the content and a
//! checksum. The checksum covers the whole file up to there but for the checksums before it, so that no block can be missing, come
//! twice or change its place unnoticed. The first block is the header, the last one the end. Between them each table has a block
//! with the names of its columns, and then blocks of rows. All numbers are little-endian.

use rusqlite::types::ValueRef;

/// The first bytes of a backup.
pub(super) const MAGIC: [u8; 8] = *b"TYBACKUP";
/// The version of the format that this program writes, and the newest one that it reads.
pub(super) const FORMAT: u32 = 1;
/// Bytes of the magic and the version.
pub(super) const START_BYTES: usize = 12;
/// Bytes of a block before its content: the kind and the length.
pub(super) const PREFIX_BYTES: usize = 5;
/// Bytes of the checksum behind it.
pub(super) const CHECKSUM_BYTES: usize = 4;
/// Bytes of the number of rows, at the beginning of their block's content.
const COUNT_BYTES: usize = 4;
/// A buffer that grows for a value grows by this much more, so that what follows does not move a large value.
const ROOM_BYTES: usize = 64 << 10;

/// The kinds of blocks.
pub(super) mod kind {
    /// What the backup is of.
    pub const HEADER: u8 = b'H';
    /// The name and the columns of a table.
    pub const TABLE: u8 = b'T';
    /// Rows of the table.
    pub const ROWS: u8 = b'R';
    /// How many rows there are; the last block.
    pub const END: u8 = b'E';
    /// Why the server could not finish the backup; the last block.
    pub const FAILURE: u8 = b'F';
}

/// The tags of values.
pub(super) mod tag {
    pub const NULL: u8 = 0;
    pub const INTEGER: u8 = 1;
    pub const REAL: u8 = 2;
    pub const TEXT: u8 = 3;
    pub const BLOB: u8 = 4;
}

/// What a backup is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupHeader {
    /// The version of the program that made it.
    pub program: String,
    /// The store, as a URL.
    pub store: String,
    /// When it was made, in microseconds of wall time.
    pub taken_at: i64,
    /// The format of the tables.
    pub schema: u32,
    /// The number of the newest batch in it.
    pub batch: u64,
    /// How many tubes it has.
    pub tubes: u64,
    /// How many tasks it has, those of temporary tubes not counted: they are not on disk.
    pub tasks: u64,
}

/// Encodes the parts of one backup.
#[derive(Debug)]
pub(super) struct BackupEncoder {
    checksum: crc32fast::Hasher,
    rows: u64,
}

impl BackupEncoder {
    pub fn new() -> Self {
        BackupEncoder { checksum: crc32fast::Hasher::new(), rows: 0 }
    }

    /// The beginning of the file.
    pub fn start(&mut self, header: &BackupHeader) -> Vec<u8> {
        let mut start = MAGIC.to_vec();
        start.extend(FORMAT.to_le_bytes());
        self.checksum.update(&start);
        let mut content = Vec::new();
        add_text(&mut content, &header.program);
        add_text(&mut content, &header.store);
        content.extend(header.taken_at.to_le_bytes());
        content.extend(header.schema.to_le_bytes());
        for number in [header.batch, header.tubes, header.tasks] {
            content.extend(number.to_le_bytes());
        }
        start.extend(self.block(kind::HEADER, &content));
        start
    }

    /// The beginning of a table.
    pub fn table(&mut self, name: &str, columns: &[String]) -> Vec<u8> {
        let mut content = Vec::new();
        add_text(&mut content, name);
        content.extend((columns.len() as u32).to_le_bytes());
        columns.iter().for_each(|column| add_text(&mut content, column));
        self.block(kind::TABLE, &content)
    }

    /// Rows of the table.
    pub fn rows(&mut self, rows: RowBuffer) -> Vec<u8> {
        let RowBuffer { count, mut bytes } = rows;
        self.rows += u64::from(count);
        let length = (bytes.len() - PREFIX_BYTES) as u32;
        bytes[0] = kind::ROWS;
        bytes[1..PREFIX_BYTES].copy_from_slice(&length.to_le_bytes());
        bytes[PREFIX_BYTES..PREFIX_BYTES + COUNT_BYTES].copy_from_slice(&count.to_le_bytes());
        self.with_checksum(bytes)
    }

    /// The end of the file.
    pub fn end(&mut self) -> Vec<u8> {
        let rows = self.rows;
        self.block(kind::END, &rows.to_le_bytes())
    }

    /// The end of a file that cannot be completed.
    pub fn failure(&mut self, why: &str) -> Vec<u8> {
        self.block(kind::FAILURE, why.as_bytes())
    }

    fn block(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut block = Vec::with_capacity(PREFIX_BYTES + content.len() + CHECKSUM_BYTES);
        block.push(kind);
        block.extend((content.len() as u32).to_le_bytes());
        block.extend_from_slice(content);
        self.with_checksum(block)
    }

    fn with_checksum(&mut self, mut block: Vec<u8>) -> Vec<u8> {
        self.checksum.update(&block);
        block.extend(self.checksum.clone().finalize().to_le_bytes());
        block
    }
}

/// Encoded rows, in the buffer that becomes their block: a payload may be large, so it is copied once.
#[derive(Debug)]
pub(super) struct RowBuffer {
    pub count: u32,
    bytes: Vec<u8>,
}

impl Default for RowBuffer {
    fn default() -> Self {
        RowBuffer { count: 0, bytes: vec![0; PREFIX_BYTES + COUNT_BYTES] }
    }
}

impl RowBuffer {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a value of the current row.
    pub fn add(&mut self, value: ValueRef<'_>) {
        let bytes = &mut self.bytes;
        match value {
            ValueRef::Null => bytes.push(tag::NULL),
            ValueRef::Integer(number) => {
                bytes.push(tag::INTEGER);
                bytes.extend(number.to_le_bytes());
            }
            ValueRef::Real(number) => {
                bytes.push(tag::REAL);
                bytes.extend(number.to_bits().to_le_bytes());
            }
            ValueRef::Text(text) => add_tagged(bytes, tag::TEXT, text),
            ValueRef::Blob(blob) => add_tagged(bytes, tag::BLOB, blob),
        }
    }
}

fn add_tagged(to: &mut Vec<u8>, tag: u8, value: &[u8]) {
    to.reserve(value.len() + ROOM_BYTES);
    to.push(tag);
    to.extend((value.len() as u32).to_le_bytes());
    to.extend_from_slice(value);
}

fn add_text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u32).to_le_bytes());
    to.extend_from_slice(text.as_bytes());
}

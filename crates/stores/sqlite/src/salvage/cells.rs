//! Decodes the rows in a page of SQLite's trees independently: the checksum of each row shows whether it is
//! intact, not the page around it. The format is described in <https://sqlite.org/fileformat2.html>.

use rusqlite::types::Value;
use taskyard_core::limits::PAYLOAD_BYTES_MAX;

use super::log::number;
use super::pages::{PAGE, Page, Pages};

/// The first byte of a leaf page of a table, which has rows, and of an interior page, which refers to other
/// pages.
pub const LEAF: u8 = 13;
pub const INTERIOR: u8 = 5;

/// Maximum size of a row: the largest payload and all other columns.
const ROW_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + (64 << 10);
/// Maximum and minimum bytes of a row with overflow pages that are in its own page.
const LOCAL_MAX: usize = PAGE - 35;
const LOCAL_MIN: usize = (PAGE - 12) * 32 / 255 - 23;

/// A row in a page.
#[derive(Debug)]
pub struct RowCell<'p> {
    pub key: i64,
    /// Size of the whole row.
    bytes: usize,
    /// The part of the row in this page.
    local: &'p [u8],
    /// The first overflow page.
    next: Option<u32>,
}

/// Every row of a page that can be decoded.
pub fn rows(page: &Page) -> impl Iterator<Item = RowCell<'_>> {
    cell_offsets(page, 8).filter_map(|at| RowCell::parse(page, at))
}

/// The child pages of an interior page, each with the highest key that it may have.
pub fn children(page: &Page) -> Vec<(u32, i64)> {
    let mut children: Vec<(u32, i64)> = cell_offsets(page, 12)
        .filter_map(|at| {
            let (key, _) = varint(page.get(at + 4..)?)?;
            Some((number(page, at), key))
        })
        .collect();
    children.push((number(page, 8), i64::MAX));
    children
}

/// The offsets of the cells of a page.
fn cell_offsets(page: &Page, header: usize) -> impl Iterator<Item = usize> {
    let short = |at: usize| usize::from(u16::from_be_bytes([page[at], page[at + 1]]));
    let count = short(3).min((PAGE - header) / 2);
    (0..count).map(move |index| short(header + 2 * index)).filter(|at| *at + 4 <= PAGE)
}

impl<'p> RowCell<'p> {
    fn parse(page: &'p Page, at: usize) -> Option<RowCell<'p>> {
        let (bytes, taken) = varint(page.get(at..)?)?;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= ROW_BYTES_MAX)?;
        let rest = &page[at + taken..];
        let (key, taken) = varint(rest)?;
        let rest = &rest[taken..];
        if bytes <= LOCAL_MAX {
            return Some(RowCell { key, bytes, local: rest.get(..bytes)?, next: None });
        }
        let fitting = LOCAL_MIN + (bytes - LOCAL_MIN) % (PAGE - 4);
        let local = if fitting <= LOCAL_MAX { fitting } else { LOCAL_MIN };
        let next = rest.get(local..local + 4)?;
        Some(RowCell { key, bytes, local: &rest[..local], next: Some(number(next, 0)) })
    }

    /// Whether the row has no overflow pages.
    pub fn is_whole(&self) -> bool {
        self.next.is_none()
    }

    /// Whether the row has this many columns.
    pub fn has(&self, columns: usize) -> bool {
        kinds(self.local).is_some_and(|kinds| kinds.len() == columns)
    }

    /// Whether a column, counted from one, is NULL or absent.
    pub fn is_null(&self, column: usize) -> bool {
        kinds(self.local).is_some_and(|kinds| kinds.get(column - 1).is_none_or(|kind| *kind == 0))
    }

    /// The first `wanted` columns of a row that has `columns` of them, as far as they are in this page. The
    /// first is always the key.
    pub fn start(&self, columns: usize, wanted: usize) -> Option<Vec<Value>> {
        values(self.key, self.local, columns, wanted)
    }

    /// The root page of this table, if the row is its entry in SQLite's schema table.
    pub fn root_of(&self, table: &str) -> Option<u32> {
        match &plain_values(self.local, 5, 4)?[..] {
            [Value::Text(kind), Value::Text(name), _, Value::Integer(root)]
                if kind == "table" && name == table =>
            {
                u32::try_from(*root).ok()
            }
            _ => None,
        }
    }

    /// All columns of a row that has `columns` of them.
    pub fn all(&self, pages: &Pages, columns: usize) -> Option<Vec<Value>> {
        if self.is_whole() {
            return self.start(columns, columns);
        }
        let mut row = self.local.to_vec();
        let mut next = self.next;
        while row.len() < self.bytes {
            let page = pages.read(next?)?;
            let part = (self.bytes - row.len()).min(PAGE - 4);
            row.extend_from_slice(&page[4..4 + part]);
            next = Some(number(&page, 0));
        }
        values(self.key, &row, columns, columns)
    }
}

/// The types of the columns of a row, from its header.
fn kinds(row: &[u8]) -> Option<Vec<i64>> {
    let (header, taken) = varint(row)?;
    let mut types = row.get(taken..usize::try_from(header).ok()?)?;
    let mut kinds = Vec::new();
    while !types.is_empty() {
        let (kind, taken) = varint(types)?;
        types = &types[taken..];
        kinds.push(kind);
    }
    Some(kinds)
}

/// The columns of a row of the store.
fn values(key: i64, row: &[u8], columns: usize, wanted: usize) -> Option<Vec<Value>> {
    let mut values = plain_values(row, columns, wanted)?;
    // The key is stored outside of the row, whose first column is NULL.
    let key_column = values.first_mut().filter(|first| **first == Value::Null)?;
    *key_column = Value::Integer(key);
    Some(values)
}

/// Decodes columns: a row is a header with the type of each column, then the columns.
fn plain_values(row: &[u8], columns: usize, wanted: usize) -> Option<Vec<Value>> {
    let (header, taken) = varint(row)?;
    let header = usize::try_from(header).ok()?;
    let (mut types, mut rest) = (row.get(taken..header)?, row.get(header..)?);
    let mut values = Vec::with_capacity(wanted);
    for column in 0..columns {
        let (kind, taken) = varint(types)?;
        types = &types[taken..];
        if column < wanted {
            let (value, taken) = value(kind, rest)?;
            rest = &rest[taken..];
            values.push(value);
        }
    }
    types.is_empty().then_some(values)
}

/// A column of this type at the beginning of the bytes, and its size.
fn value(kind: i64, bytes: &[u8]) -> Option<(Value, usize)> {
    let integer = |length: usize| {
        let bytes = bytes.get(..length)?;
        let sign = if bytes[0] & 0x80 == 0 { 0 } else { -1 };
        let number = bytes.iter().fold(sign, |number, byte| number << 8 | i64::from(*byte));
        Some((Value::Integer(number), length))
    };
    match kind {
        0 => Some((Value::Null, 0)),
        1..=4 => integer(kind as usize),
        5 => integer(6),
        6 => integer(8),
        8 | 9 => Some((Value::Integer(kind - 8), 0)),
        12.. => {
            let length = usize::try_from((kind - 12) / 2).ok()?;
            let bytes = bytes.get(..length)?.to_vec();
            let text = kind % 2 == 1;
            let value =
                if text { Value::Text(String::from_utf8(bytes).ok()?) } else { Value::Blob(bytes) };
            Some((value, length))
        }
        7 => {
            let bytes = bytes.get(..8)?.try_into().ok()?;
            Some((Value::Real(f64::from_be_bytes(bytes)), 8))
        }
        _ => None,
    }
}

/// A number of one to nine bytes, and its size.
fn varint(bytes: &[u8]) -> Option<(i64, usize)> {
    let mut number = 0;
    for (index, byte) in bytes.iter().take(9).enumerate() {
        if index == 8 {
            return Some((number << 8 | i64::from(*byte), 9));
        }
        number = number << 7 | i64::from(byte & 0x7F);
        if byte & 0x80 == 0 {
            return Some((number, index + 1));
        }
    }
    None
}

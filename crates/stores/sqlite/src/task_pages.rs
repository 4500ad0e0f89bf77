//! Reads the rows of `task` from the pages of an intact database, without a statement, which takes several times as long.
//!
//! Only the rows are taken from here, and each has a checksum; their number and the sum over their keys are compared with
//! the head row afterwards. Whatever is unexpected ends the reading: then SQLite decides whether it is damage. The format
//! is described in <https://sqlite.org/fileformat2.html>.

use rusqlite::{Connection, OptionalExtension};

use super::codec::{TaskColumns, UnverifiedTask};
use super::platform::PlatformFile;

/// Size of a page.
const PAGE: usize = 4096;
/// Most pages that are read at once.
const RUN: usize = 64;
/// The first byte of a leaf page of a table, and of an interior page.
const LEAF: u8 = 13;
const INTERIOR: u8 = 5;
/// Size of the header of a leaf page, and of an interior page.
const LEAF_HEADER: usize = 8;
const INTERIOR_HEADER: usize = 12;
/// Maximum and minimum bytes of a row with overflow pages that are in its own page.
const LOCAL_MAX: usize = PAGE - 35;
const LOCAL_MIN: usize = (PAGE - 12) * 32 / 255 - 23;
/// The fewest and the most columns of a row: later formats added columns, and do not change the rows that exist.
const COLUMNS_MIN: usize = 14;
const COLUMNS_MAX: usize = 17;

/// The table `task` in a database whose log is empty.
pub(super) struct TaskPages<'a> {
    file: &'a dyn PlatformFile,
    root: u32,
    /// Number of pages of the database.
    count: u32,
}

/// A row of `task`.
pub(super) enum PageRow<'a> {
    /// A row whose columns are all in its page, except perhaps its body.
    Local(UnverifiedTask<'a>),
    /// The key of another row.
    Other(i64),
}

impl<'a> TaskPages<'a> {
    /// The table in the file that a connection reads; `None` if its pages cannot be read from here.
    pub fn new(db: &Connection, file: &'a dyn PlatformFile) -> rusqlite::Result<Option<Self>> {
        let size: i64 = db.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let count: u32 = db.pragma_query_value(None, "page_count", |row| row.get(0))?;
        let sql = "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = 'task'";
        let root = db.query_row(sql, [], |row| row.get(0)).optional()?;
        let root = root.filter(|_| size == PAGE as i64);
        Ok(root.map(|root| TaskPages { file, root, count }))
    }

    /// The table whose first page is this one, in a file with any bytes.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_any_bytes(file: &'a dyn PlatformFile, root: u32, count: u32) -> Self {
        TaskPages { file, root, count }
    }

    /// Passes all rows on, in the order of the pages; `None` if something is not as expected.
    pub fn each(&self, mut take: impl FnMut(PageRow<'_>) -> Option<()>) -> Option<()> {
        let mut buffer = vec![0; RUN * PAGE];
        // The pages to read, the next one last.
        let mut ahead = vec![self.root];
        // A damaged tree may refer to the same page repeatedly.
        let mut left = u64::from(self.count) + RUN as u64;
        while let Some(first) = ahead.last().copied() {
            let run = run_length(&ahead);
            let pages = &mut buffer[..run * PAGE];
            self.read(first, pages)?;
            for page in pages.as_chunks::<PAGE>().0 {
                left = left.checked_sub(1)?;
                let number = ahead.pop()?;
                match page[0] {
                    LEAF => leaf(page, number == self.root, &mut take)?,
                    INTERIOR => {
                        add_children(page, &mut ahead)?;
                        // Pages of an intact tree differ, so no more of them can be ahead.
                        if ahead.len() > self.count as usize {
                            return None;
                        }
                        break;
                    }
                    _ => return None,
                }
            }
        }
        Some(())
    }

    /// Reads successive pages.
    fn read(&self, first: u32, pages: &mut [u8]) -> Option<()> {
        let end = u64::from(first) + (pages.len() / PAGE) as u64 - 1;
        if first == 0 || end > u64::from(self.count) {
            return None;
        }
        self.file.read_exact_at(pages, u64::from(first - 1) * PAGE as u64).ok()
    }
}

/// How many of the next pages are successive.
fn run_length(ahead: &[u32]) -> usize {
    let mut next = ahead.iter().rev();
    let Some(first) = next.next() else { return 0 };
    let successive = next.zip(1..RUN as u32).take_while(|(page, after)| **page == first + after);
    1 + successive.count()
}

/// Adds the pages that an interior page refers to, the first one last.
fn add_children(page: &[u8; PAGE], ahead: &mut Vec<u32>) -> Option<()> {
    let number = |at: usize| {
        page.get(at..at + 4)?
            .try_into()
            .ok()
            .map(u32::from_be_bytes)
            .filter(|page| *page < u32::MAX)
    };
    ahead.push(number(8)?);
    for at in cells(page, INTERIOR_HEADER)?.rev() {
        ahead.push(number(at)?);
    }
    Some(())
}

/// The offsets of the cells of a page.
fn cells(page: &[u8; PAGE], header: usize) -> Option<impl DoubleEndedIterator<Item = usize>> {
    let count = usize::from(u16::from_be_bytes([page[3], page[4]]));
    let (pointers, _) = page.get(header..header + 2 * count)?.as_chunks::<2>();
    Some(pointers.iter().map(|at| usize::from(u16::from_be_bytes(*at))))
}

/// Passes the rows of a leaf page on.
fn leaf(
    page: &[u8; PAGE],
    is_root: bool,
    take: &mut impl FnMut(PageRow<'_>) -> Option<()>,
) -> Option<()> {
    let mut cells = cells(page, LEAF_HEADER)?.peekable();
    if cells.peek().is_none() && !is_root {
        return None;
    }
    for at in cells {
        take(row(page.get(at..)?)?)?;
    }
    Some(())
}

/// The row in a cell.
fn row(mut cell: &[u8]) -> Option<PageRow<'_>> {
    let bytes = usize::try_from(varint(&mut cell)?).ok()?;
    let key = varint(&mut cell)?;
    let local = if bytes <= LOCAL_MAX {
        cell.get(..bytes)?
    } else {
        let fitting = LOCAL_MIN + (bytes - LOCAL_MIN) % (PAGE - 4);
        cell.get(..if fitting <= LOCAL_MAX { fitting } else { LOCAL_MIN })?
    };
    let mut types = local;
    let header = usize::try_from(varint(&mut types)?).ok()?;
    let mut types = local.get(local.len() - types.len()..header)?;
    let mut kinds = [0; COLUMNS_MAX];
    let (mut columns, mut total) = (0, header);
    while !types.is_empty() {
        let kind = varint(&mut types)?;
        *kinds.get_mut(columns)? = kind;
        total = total.checked_add(length_of(kind)?)?;
        columns += 1;
    }
    // The checksum of a row does not contain its length, by which SQLite frees its space. The key is stored outside of the
    // columns, of which the first is NULL.
    if total != bytes || columns < COLUMNS_MIN || kinds[0] != 0 {
        return None;
    }
    let [_, state, due, pri, created, expires, ttr, attempts, previous_start, ..] = kinds;
    let [.., subqueue, sum, data_sum, meta, data, priority, failures, finished] = kinds;
    let mut rest = Columns(local.get(header..)?);
    let mut columns = TaskColumns {
        state: rest.number(state)?,
        due: rest.optional(due)?,
        pri: rest.number(pri)?,
        created: rest.number(created)?,
        expires: rest.optional(expires)?,
        ttr: rest.optional(ttr)?,
        attempts: rest.number(attempts)?,
        previous_start: rest.optional(previous_start)?,
        semaphore_priority: None,
        failures: None,
        finished: None,
        sum: 0,
    };
    let subqueue = rest.text(subqueue)?;
    columns.sum = rest.number(sum)?;
    rest.number(data_sum)?;
    let body = blob_length(meta)? + blob_length(data).filter(|_| data != 0)?;
    if (priority, failures, finished) != (0, 0, 0) {
        let Some(behind) = rest.0.get(body..) else { return Some(PageRow::Other(key)) };
        let mut behind = Columns(behind);
        let Some(priority) = behind.real(priority) else { return Some(PageRow::Other(key)) };
        let Some(failures) = behind.blob(failures) else { return Some(PageRow::Other(key)) };
        let Some(finished) = behind.blob(finished) else { return Some(PageRow::Other(key)) };
        (columns.semaphore_priority, columns.failures, columns.finished) =
            (priority, failures, finished);
    }
    let body_bytes = u32::try_from(body).ok()?;
    Some(PageRow::Local(UnverifiedTask { key, columns, subqueue, body_bytes }))
}

/// The length of a value of any type.
fn length_of(kind: i64) -> Option<usize> {
    match kind {
        0 | 8 | 9 => Some(0),
        1..=4 => Some(kind as usize),
        5 => Some(6),
        6 | 7 => Some(8),
        12.. => usize::try_from((kind - 12) / 2).ok(),
        _ => None,
    }
}

/// The length of a blob or of NULL, by its type.
fn blob_length(kind: i64) -> Option<usize> {
    match kind {
        0 => Some(0),
        12.. if kind % 2 == 0 => usize::try_from((kind - 12) / 2).ok(),
        _ => None,
    }
}

/// The columns that follow, in the part of the row that is in its page.
struct Columns<'a>(&'a [u8]);

impl<'a> Columns<'a> {
    #[inline]
    fn number(&mut self, kind: i64) -> Option<i64> {
        let bytes = match kind {
            1..=4 => kind as usize,
            5 => 6,
            6 => 8,
            8 => return Some(0),
            9 => return Some(1),
            _ => return None,
        };
        // Eight bytes are read at once where there are so many: nearly always, because the body follows.
        if let Some(eight) = self.0.first_chunk::<8>() {
            self.0 = &self.0[bytes..];
            return Some(i64::from_be_bytes(*eight) >> (64 - 8 * bytes));
        }
        let number = self.bytes(bytes)?;
        let sign = if number[0] & 0x80 == 0 { 0 } else { -1 };
        Some(number.iter().fold(sign, |number, byte| number << 8 | i64::from(*byte)))
    }

    #[inline]
    fn optional(&mut self, kind: i64) -> Option<Option<i64>> {
        if kind == 0 { Some(None) } else { self.number(kind).map(Some) }
    }

    fn real(&mut self, kind: i64) -> Option<Option<f64>> {
        if kind != 7 {
            // SQLite stores whole numbers as integers.
            return self.optional(kind).map(|number| number.map(|number| number as f64));
        }
        let bytes = self.bytes(8)?.try_into().ok()?;
        Some(Some(f64::from_be_bytes(bytes)))
    }

    fn text(&mut self, kind: i64) -> Option<Option<&'a str>> {
        match kind {
            0 => Some(None),
            13.. if kind % 2 == 1 => {
                let bytes = self.bytes(usize::try_from((kind - 13) / 2).ok()?)?;
                std::str::from_utf8(bytes).ok().map(Some)
            }
            _ => None,
        }
    }

    fn blob(&mut self, kind: i64) -> Option<Option<&'a [u8]>> {
        let bytes = self.bytes(blob_length(kind)?)?;
        Some((kind != 0).then_some(bytes))
    }

    #[inline]
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// A number of one to nine bytes, which it takes from the beginning.
#[inline(always)]
fn varint(bytes: &mut &[u8]) -> Option<i64> {
    let (first, rest) = bytes.split_first()?;
    if first & 0x80 == 0 {
        *bytes = rest;
        return Some(i64::from(*first));
    }
    long_varint(bytes)
}

#[inline(never)]
fn long_varint(bytes: &mut &[u8]) -> Option<i64> {
    let mut number = 0;
    for (index, byte) in bytes.iter().take(9).enumerate() {
        let is_last = index == 8 || byte & 0x80 == 0;
        number = if index == 8 {
            number << 8 | i64::from(*byte)
        } else {
            number << 7 | i64::from(byte & 0x7F)
        };
        if is_last {
            *bytes = &bytes[index + 1..];
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the type of the payload is in [`cell`].
    const DATA: usize = 3 + 13;
    /// The same for the metadata.
    const META: usize = 3 + 12;

    /// A row with a payload of five bytes as a cell.
    fn cell() -> Vec<u8> {
        let kinds = [0, 1, 0, 1, 1, 0, 0, 8, 0, 0, 6, 6, 0, 22, 0, 0, 0];
        let values = 1 + 1 + 1 + 8 + 8 + 5;
        let header = 1 + kinds.len();
        let mut cell = vec![(header + values) as u8, 7, header as u8];
        cell.extend(kinds);
        cell.extend((0..values).map(|value| value as u8));
        // The next cell.
        cell.resize(cell.len() + 300, 1);
        cell
    }

    // A flipped bit in the length of a row was accepted, because its checksum does not contain it: the ack of that task freed the
    // bytes of other rows, and later puts overwrote them.
    #[test]
    fn the_length_of_a_row_is_that_of_its_columns() {
        let intact = cell();
        let Some(PageRow::Local(found)) = row(&intact) else { panic!("an intact row") };
        assert_eq!((found.key, found.body_bytes), (7, 5));
        for at in [0, META, DATA] {
            for bit in 0..8 {
                let mut damaged = cell();
                damaged[at] ^= 1 << bit;
                assert!(row(&damaged).is_none(), "byte {at}, bit {bit}");
            }
        }
    }

    /// An interior page that refers to itself ends the reading before it fills memory.
    #[test]
    fn a_tree_with_a_cycle_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pages");
        let mut pages = vec![0; 2 * PAGE];
        let page = &mut pages[PAGE..];
        page[0] = INTERIOR;
        page[3..5].copy_from_slice(&100_u16.to_be_bytes());
        page[8..12].copy_from_slice(&2_u32.to_be_bytes());
        for cell in 0..100_u16 {
            let (pointer, at) = (12 + 2 * usize::from(cell), 1000 + 4 * usize::from(cell));
            page[pointer..pointer + 2].copy_from_slice(&(at as u16).to_be_bytes());
            page[at..at + 4].copy_from_slice(&2_u32.to_be_bytes());
        }
        std::fs::write(&path, &pages).expect("a file");
        let file = std::fs::File::open(&path).expect("the file");
        let tree = TaskPages::of_any_bytes(&file, 2, 2);
        assert!(tree.each(|_| Some(())).is_none());
    }

    /// Changed bytes of a page end its reading or change what it says; no row is longer than its page.
    #[test]
    fn pages_with_random_bytes_are_read_or_refused() {
        let mut intact = [0; PAGE];
        intact[0] = LEAF;
        intact[3..5].copy_from_slice(&10_u16.to_be_bytes());
        for (number, cell) in std::iter::repeat_n(cell(), 10).enumerate() {
            let (pointer, at) = (LEAF_HEADER + 2 * number, 100 + 50 * number);
            intact[pointer..pointer + 2].copy_from_slice(&(at as u16).to_be_bytes());
            intact[at..at + 50].copy_from_slice(&cell[..50]);
        }
        let rows_of = |page: &[u8; PAGE]| {
            let mut rows = 0;
            let mut each = |row: PageRow<'_>| {
                if let PageRow::Local(task) = row {
                    assert!(task.subqueue.is_none_or(|key| key.len() < PAGE));
                }
                rows += 1;
                Some(())
            };
            leaf(page, true, &mut each).map(|()| rows)
        };
        assert_eq!(rows_of(&intact), Some(10));
        let (mut read, mut refused) = (0, 0);
        for seed in 0..50_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut page = intact;
            for _ in 0..random.usize(1..4) {
                page[random.usize(0..600)] = random.u8(..);
            }
            *if rows_of(&page).is_some() { &mut read } else { &mut refused } += 1;
        }
        assert!(read > 10_000 && refused > 10_000, "{read} read, {refused} refused");
    }
}

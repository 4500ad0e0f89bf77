//! Keeps the content of a file as the process sees it and as the disk has it.
//!
//! Both are pages that they share until one of them changes, so a sync and the loss of power copy no bytes, and pages of zeros
//! take no memory: stores extend their files ahead of their records.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;

use super::SECTOR;

/// The unit in which the page cache writes.
const PAGE: usize = 4096;
static ZEROS: [u8; PAGE] = [0; PAGE];

/// The content of a file.
#[derive(Debug, Default)]
pub(super) struct FileContent {
    /// What the process sees.
    seen: Pages,
    /// What the disk has for sure.
    durable: Pages,
    /// The pages that were written since the last sync, without repetition.
    dirty: Vec<usize>,
    is_dirty: Vec<bool>,
    /// What the disk had before the latest sync, if that is lost with the process.
    undo: Option<Pages>,
}

/// The bytes of a file. What is behind its end in its last page is zero.
#[derive(Clone, Debug, Default)]
struct Pages {
    /// `None` is a page of zeros.
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
    length: usize,
}

impl Pages {
    fn resize(&mut self, length: usize) {
        self.pages.resize(length.div_ceil(PAGE), None);
        if length < self.length
            && let Some(Some(last)) = self.pages.get_mut(length / PAGE)
        {
            Arc::make_mut(last)[length % PAGE..].fill(0);
        }
        self.length = length;
    }

    /// Reads from a place on, as far as there are bytes.
    fn read(&self, buffer: &mut [u8], start: usize) {
        for (page, within, part) in parts(start, buffer.len()) {
            let target = &mut buffer[part];
            match &self.pages[page] {
                Some(bytes) => target.copy_from_slice(&bytes[within..within + target.len()]),
                None => target.fill(0),
            }
        }
    }

    /// Writes within the length.
    fn write(&mut self, bytes: &[u8], start: usize) {
        for (page, within, part) in parts(start, bytes.len()) {
            let (slot, source) = (&mut self.pages[page], &bytes[part]);
            if slot.is_none() && *source == ZEROS[..source.len()] {
                continue;
            }
            let page = slot.get_or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within..within + source.len()].copy_from_slice(source);
        }
    }

    /// Takes the bytes of a page up to this place from a file that has them.
    fn take(&mut self, from: &Pages, page: usize, end: usize) {
        let start = page * PAGE;
        if end == start + PAGE || (self.length == from.length && end == self.length) {
            self.pages[page].clone_from(&from.pages[page]);
        } else {
            let mut bytes = [0; PAGE];
            from.read(&mut bytes[..end - start], start);
            self.write(&bytes[..end - start], start);
        }
    }
}

/// The pages of a range of bytes: the number of each, where the range begins in it, and which part of the range it is.
fn parts(start: usize, length: usize) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    let end = start + length;
    (start / PAGE..end.div_ceil(PAGE)).map(move |page| {
        let first = start.max(page * PAGE);
        let last = end.min((page + 1) * PAGE);
        (page, first % PAGE, first - start..last - start)
    })
}

impl FileContent {
    pub fn length(&self) -> u64 {
        self.seen.length as u64
    }

    pub fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = (offset as usize).min(self.seen.length);
        let found = buffer.len().min(self.seen.length - start);
        self.seen.read(&mut buffer[..found], start);
        if found < buffer.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// The first bytes.
    pub fn start(&self, bytes_max: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.seen.length.min(bytes_max as usize)];
        for (page, _, part) in parts(0, bytes.len()) {
            if let Some(found) = &self.seen.pages[page] {
                let target = &mut bytes[part];
                target.copy_from_slice(&found[..target.len()]);
            }
        }
        bytes
    }

    /// Writes; returns by how much the file grew.
    pub fn write(&mut self, bytes: &[u8], offset: u64) -> u64 {
        let (start, before) = (offset as usize, self.seen.length);
        let end = start + bytes.len();
        if end > before {
            self.seen.resize(end);
        }
        self.seen.write(bytes, start);
        self.mark(start.min(before), end);
        (self.seen.length - before) as u64
    }

    pub fn set_length(&mut self, bytes: u64) {
        let before = self.seen.length;
        self.seen.resize(bytes as usize);
        self.mark(before, bytes as usize);
    }

    /// Makes everything durable.
    pub fn sync(&mut self) {
        self.durable.resize(self.seen.length);
        for page in std::mem::take(&mut self.dirty) {
            self.is_dirty[page] = false;
            self.persist(page, PAGE);
        }
    }

    /// Makes everything durable but the page that was written first last: the disk writes it after the sync.
    pub fn sync_before_latest(&mut self) {
        let latest = self.dirty.pop();
        self.sync();
        self.dirty.extend(latest);
    }

    /// Lets the next sync be lost with the process.
    pub fn note_undo(&mut self) {
        self.undo = Some(self.durable.clone());
    }

    /// Takes back the latest sync, if it was noted before.
    pub fn undo_sync(&mut self) {
        if let Some(before) = self.undo.take() {
            (self.seen, self.durable) = (before.clone(), before);
        }
    }

    /// Makes some pages durable. The others count as written from now on, although they are not.
    pub fn fail_sync(&mut self, random: &mut Rng) {
        if random.bool() {
            self.durable.resize(self.seen.length);
        }
        for page in std::mem::take(&mut self.dirty) {
            self.is_dirty[page] = false;
            if random.bool() {
                self.persist(page, PAGE);
            }
        }
    }

    /// Leaves what a power failure leaves: each page that was not synced is new, old or torn. Returns how many are not new.
    pub fn lose_power(&mut self, random: &mut Rng) -> usize {
        if self.seen.length != self.durable.length && random.bool() {
            self.durable.resize(self.seen.length);
        }
        let mut lost = 0;
        for page in std::mem::take(&mut self.dirty) {
            self.is_dirty[page] = false;
            let kind = random.u8(..4);
            lost += usize::from(kind != 1);
            match kind {
                0 => self.persist(page, random.usize(..PAGE / SECTOR as usize) * SECTOR as usize),
                1 => self.persist(page, PAGE),
                _ => {}
            }
        }
        self.seen.clone_from(&self.durable);
        lost
    }

    /// Copies the first bytes of a page to the disk, as far as the disk has that much of the file.
    fn persist(&mut self, page: usize, bytes: usize) {
        let start = page * PAGE;
        let end = (start + bytes).min(self.seen.length).min(self.durable.length);
        if start < end {
            self.durable.take(&self.seen, page, end);
        }
    }

    fn mark(&mut self, start: usize, end: usize) {
        self.is_dirty
            .resize(self.seen.length.max(end).div_ceil(PAGE).max(self.is_dirty.len()), false);
        for page in start / PAGE..end.div_ceil(PAGE) {
            if !std::mem::replace(&mut self.is_dirty[page], true) {
                self.dirty.push(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(bytes: &[u8]) -> FileContent {
        let mut content = FileContent::default();
        content.write(bytes, 0);
        content
    }

    #[test]
    fn synced_bytes_survive_and_others_may_not() {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let mut file = content(b"old");
            file.sync();
            file.write(b"new", 0);
            file.write(b"far", 9000);
            file.lose_power(&mut Rng::with_seed(seed));
            let start = file.start(3);
            assert!(start == b"old" || start == b"new");
            outcomes.insert((start, file.length()));
        }
        assert_eq!(outcomes.len(), 4, "both contents with both lengths");
    }

    #[test]
    fn after_a_failed_sync_the_next_one_does_not_repair_it() {
        let lost = (0..50).filter(|seed| {
            let mut file = content(b"old");
            file.sync();
            file.write(b"new", 0);
            file.fail_sync(&mut Rng::with_seed(*seed));
            assert_eq!(file.start(3), b"new", "the process still sees it");
            file.sync();
            file.lose_power(&mut Rng::with_seed(*seed));
            file.start(3) == b"old"
        });
        assert!(lost.count() > 0);
    }

    /// The files share pages and leave zeros out; plain bytes do neither.
    #[test]
    fn pages_have_the_bytes_that_were_written() {
        let mut random = Rng::with_seed(3);
        for _ in 0..200 {
            let (mut file, mut bytes) = (FileContent::default(), Vec::new());
            for _ in 0..30 {
                let (start, length) = (random.usize(..20_000), random.usize(..9_000));
                match random.u8(..6) {
                    0 => file.sync(),
                    1 => {
                        file.set_length(start as u64);
                        bytes.resize(start, 0);
                    }
                    kind => {
                        let written = vec![kind.saturating_sub(3); length];
                        file.write(&written, start as u64);
                        bytes.resize(bytes.len().max(start + length), 0);
                        bytes[start..start + length].copy_from_slice(&written);
                    }
                }
                assert_eq!(file.start(u64::MAX), bytes);
                let mut part = vec![7; bytes.len().saturating_sub(start)];
                file.read(&mut part, start as u64).expect("within the file");
                assert_eq!(part, bytes.get(start..).unwrap_or_default());
            }
            file.sync();
            file.lose_power(&mut random);
            assert_eq!(file.start(u64::MAX), bytes, "all of it was synced");
        }
    }

    #[test]
    fn a_read_beyond_the_end_is_an_error() {
        let mut buffer = [0; 4];
        let error = content(b"abc").read(&mut buffer, 0).expect_err("three bytes");
        assert_eq!((error.kind(), &buffer[..3]), (io::ErrorKind::UnexpectedEof, &b"abc"[..]));
        assert!(content(b"abc").read(&mut buffer, 100).is_err());
    }
}

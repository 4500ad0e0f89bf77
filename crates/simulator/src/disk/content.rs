//! Keeps the content of a file as the process sees it and as the disk has it.

use std::io;

use fastrand::Rng;

use super::{DiskCounts, SECTOR};

/// The unit in which the page cache writes.
const PAGE: usize = 4096;

/// The content of a file.
#[derive(Debug, Default)]
pub(super) struct FileContent {
    /// What the process sees.
    seen: Vec<u8>,
    /// What the disk has for sure.
    durable: Vec<u8>,
    /// The pages that were written since the last sync, without repetition.
    dirty: Vec<usize>,
    is_dirty: Vec<bool>,
}

impl FileContent {
    pub fn length(&self) -> u64 {
        self.seen.len() as u64
    }

    pub fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = (offset as usize).min(self.seen.len());
        let found = &self.seen[start..self.seen.len().min(start + buffer.len())];
        buffer[..found.len()].copy_from_slice(found);
        if found.len() < buffer.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// The first bytes.
    pub fn start(&self, bytes_max: u64) -> Vec<u8> {
        self.seen[..self.seen.len().min(bytes_max as usize)].to_vec()
    }

    /// Writes; returns by how much the file grew.
    pub fn write(&mut self, bytes: &[u8], offset: u64) -> u64 {
        let (start, before) = (offset as usize, self.seen.len());
        let end = start + bytes.len();
        if end > before {
            self.seen.resize(end, 0);
        }
        self.seen[start..end].copy_from_slice(bytes);
        self.mark(start.min(before), end);
        (self.seen.len() - before) as u64
    }

    pub fn set_length(&mut self, bytes: u64) {
        let before = self.seen.len();
        self.seen.resize(bytes as usize, 0);
        self.mark(before, bytes as usize);
    }

    /// Makes everything durable.
    pub fn sync(&mut self) {
        self.durable.resize(self.seen.len(), 0);
        for page in std::mem::take(&mut self.dirty) {
            self.is_dirty[page] = false;
            self.persist(page, PAGE);
        }
    }

    /// Makes some pages durable. The others count as written from now on, although they are not.
    pub fn fail_sync(&mut self, random: &mut Rng) {
        if random.bool() {
            self.durable.resize(self.seen.len(), 0);
        }
        for page in std::mem::take(&mut self.dirty) {
            self.is_dirty[page] = false;
            if random.bool() {
                self.persist(page, PAGE);
            }
        }
    }

    /// Leaves what a power failure leaves: each page that was not synced is new, old or torn.
    pub fn lose_power(&mut self, random: &mut Rng, counts: &mut DiskCounts) {
        if self.seen.len() != self.durable.len() && random.bool() {
            self.durable.resize(self.seen.len(), 0);
        }
        for page in std::mem::take(&mut self.dirty) {
            self.is_dirty[page] = false;
            match random.u8(..4) {
                0 => {
                    counts.torn_pages += 1;
                    self.persist(page, random.usize(..PAGE / SECTOR as usize) * SECTOR as usize);
                }
                1 => self.persist(page, PAGE),
                _ => counts.lost_pages += 1,
            }
        }
        self.seen.clone_from(&self.durable);
    }

    /// Copies the first bytes of a page to the disk, as far as the disk has that much of the file.
    fn persist(&mut self, page: usize, bytes: usize) {
        let start = page * PAGE;
        let end = (start + bytes).min(self.seen.len()).min(self.durable.len());
        if start < end {
            self.durable[start..end].copy_from_slice(&self.seen[start..end]);
        }
    }

    fn mark(&mut self, start: usize, end: usize) {
        self.is_dirty
            .resize(self.seen.len().max(end).div_ceil(PAGE).max(self.is_dirty.len()), false);
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
            file.lose_power(&mut Rng::with_seed(seed), &mut DiskCounts::default());
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
            file.lose_power(&mut Rng::with_seed(*seed), &mut DiskCounts::default());
            file.start(3) == b"old"
        });
        assert!(lost.count() > 0);
    }

    #[test]
    fn a_read_beyond_the_end_is_an_error() {
        let mut buffer = [0; 4];
        let error = content(b"abc").read(&mut buffer, 0).expect_err("three bytes");
        assert_eq!((error.kind(), &buffer[..3]), (io::ErrorKind::UnexpectedEof, &b"abc"[..]));
        assert!(content(b"abc").read(&mut buffer, 100).is_err());
    }
}

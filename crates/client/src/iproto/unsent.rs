//! Requests that are on their way out.

/// As much of what was written is kept in front before it is forgotten, at least.
const WRITTEN_BYTES_MIN: usize = 64 << 10;
/// What is kept of the memory when nothing is to be written.
const IDLE_BYTES_MAX: usize = 1 << 20;

/// Requests that are on their way out. What was written of them is not moved out of the way each time, so
/// that a large batch takes no longer than its size.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    bytes: Vec<u8>,
    /// How many of these are written.
    written: usize,
}

impl Unsent {
    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Where requests are added.
    pub fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What is to be written.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Notes that this many more bytes were written.
    pub fn advance(&mut self, written: usize) {
        self.written += written;
        if self.written == self.bytes.len() {
            self.clear();
        } else if self.written > WRITTEN_BYTES_MIN.max(self.bytes.len() / 2) {
            // Not more is moved than was written.
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(IDLE_BYTES_MAX);
        self.written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // After every write the rest was moved to the front: gigabytes for a batch of 64 MiB, and nobody else
    // could ask anything meanwhile.
    #[test]
    fn what_is_left_is_moved_only_now_and_then() {
        let mut unsent = Unsent::default();
        let all: Vec<u8> = (0..8 << 20).map(|at| (at / 1_000) as u8).collect();
        unsent.end().extend_from_slice(&all);
        let (mut at, mut moved) = (0, 0);
        while !unsent.is_empty() {
            let written = unsent.rest().len().min(1_000);
            assert_eq!(unsent.rest()[..written], all[at..at + written]);
            at += written;
            let (length, before) = (unsent.rest().len(), unsent.written);
            unsent.advance(written);
            moved += if unsent.written < before + written { length - written } else { 0 };
        }
        assert_eq!(at, all.len());
        assert!(moved <= all.len(), "{moved} bytes were moved");
        assert!(unsent.bytes.capacity() <= IDLE_BYTES_MAX);
    }
}

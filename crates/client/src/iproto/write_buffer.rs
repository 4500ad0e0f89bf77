//! Buffers encoded requests until they are written.

/// The smallest number of written bytes before they are removed from the front.
const WRITTEN_BYTES_MIN: usize = 64 << 10;
/// The capacity that the buffer keeps while it is empty.
const IDLE_BYTES_MAX: usize = 1 << 20;

/// Encoded requests that are not written yet. Written bytes are not removed after each write, so that the cost of a large
/// batch is linear in its size.
#[derive(Debug, Default)]
pub(super) struct WriteBuffer {
    bytes: Vec<u8>,
    /// The number of bytes that are written.
    written: usize,
}

impl WriteBuffer {
    /// Whether everything is written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The buffer to append requests to.
    pub fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The bytes that are not written yet.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Marks this many more bytes as written.
    pub fn advance(&mut self, written: usize) {
        self.written += written;
        if self.written == self.bytes.len() {
            self.clear();
        } else if self.written > WRITTEN_BYTES_MIN.max(self.bytes.len() / 2) {
            // Moves at most as many bytes as were written.
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(IDLE_BYTES_MAX);
        self.written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // After every write the rest was moved to the front: gigabytes for a batch of 64 MiB, which blocked all other
    // requests.
    #[test]
    fn the_rest_is_moved_rarely() {
        let mut buffer = WriteBuffer::default();
        let all: Vec<u8> = (0..8 << 20).map(|at| (at / 1_000) as u8).collect();
        buffer.end().extend_from_slice(&all);
        let (mut at, mut moved) = (0, 0);
        while !buffer.is_empty() {
            let written = buffer.rest().len().min(1_000);
            assert_eq!(buffer.rest()[..written], all[at..at + written]);
            at += written;
            let (length, before) = (buffer.rest().len(), buffer.written);
            buffer.advance(written);
            moved += if buffer.written < before + written { length - written } else { 0 };
        }
        assert_eq!(at, all.len());
        assert!(moved <= all.len(), "{moved} bytes were moved");
        assert!(buffer.bytes.capacity() <= IDLE_BYTES_MAX);
    }
}

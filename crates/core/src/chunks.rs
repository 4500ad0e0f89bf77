//! Stores values by index in chunks, so that a growing list is never copied, nor needs its memory twice.

/// Values by index. One that was taken out leaves `None`.
#[derive(Debug)]
pub(crate) struct Chunks<T> {
    chunks: Vec<Vec<Option<T>>>,
}

/// Values in a chunk.
const CHUNK: usize = 4096;

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Chunks { chunks: Vec::new() }
    }
}

impl<T> Chunks<T> {
    /// The number of values and gaps.
    pub fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    pub fn push(&mut self, value: T) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(Some(value)),
            // The first chunk grows as needed, for small tubes.
            None => self.chunks.push(vec![Some(value)]),
            Some(_) => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(Some(value));
                self.chunks.push(chunk);
            }
        }
    }

    pub fn get(&self, index: u32) -> &Option<T> {
        &self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    pub fn get_mut(&mut self, index: u32) -> &mut Option<T> {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    /// All values and gaps, by index.
    pub fn iter(&self) -> impl Iterator<Item = &Option<T>> {
        self.chunks.iter().flatten()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Option<T>> {
        self.chunks.iter_mut().flatten()
    }
}

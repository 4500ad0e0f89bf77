//! Maps for judges: keys come from a run, so their hash may be a quick one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with a quick hash.
pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<QuickHasher>>;

/// An odd number with irregular bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multiplies what has come so far with each word.
#[derive(Debug, Default)]
pub struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(FACTOR);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        // The high bits of a product depend on more of its factors than the low ones.
        self.0.rotate_left(26)
    }
}

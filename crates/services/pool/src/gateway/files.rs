//! Files that clients sent before, so that they need not send them again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

/// What a file is known by.
pub(crate) type Hash = [u8; 32];

/// The hash of these bytes.
pub(crate) fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// Reads a hash in hexadecimal.
pub(crate) fn read_hash(text: &str) -> Option<Hash> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(hash)
}

/// Files by their hash, the latest ones up to a number of bytes.
#[derive(Debug)]
pub(crate) struct Files {
    bytes_max: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    files: HashMap<Hash, Arc<[u8]>>,
    /// In the order in which they came; each stands here once.
    order: VecDeque<Hash>,
    bytes: usize,
}

impl Files {
    pub fn new(bytes_max: usize) -> Self {
        Files { bytes_max, kept: Mutex::default() }
    }

    /// Whether any are kept at all.
    pub fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    pub fn get(&self, hash: &Hash) -> Option<Arc<[u8]>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).files.get(hash).cloned()
    }

    /// Keeps a file; the oldest ones make room for it.
    pub fn keep(&self, bytes: &[u8]) {
        if bytes.len() > self.bytes_max {
            return;
        }
        let hash = hash(bytes);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut *kept;
        if kept.files.contains_key(&hash) {
            return;
        }
        kept.bytes += bytes.len();
        kept.files.insert(hash, bytes.into());
        kept.order.push_back(hash);
        while kept.bytes > self.bytes_max {
            let oldest = kept.order.pop_front().and_then(|hash| kept.files.remove(&hash));
            kept.bytes -= oldest.map_or(0, |bytes| bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room() {
        let files = Files::new(10);
        for text in ["aaaa", "bbbb", "aaaa", "cccc"] {
            files.keep(text.as_bytes());
        }
        let has = |text: &str| files.get(&hash(text.as_bytes())).is_some();
        assert_eq!(["aaaa", "bbbb", "cccc"].map(has), [false, true, true]);
        files.keep(&[b'x'; 11]);
        assert!(has("cccc"), "what does not fit at all drives nobody out");
        assert_eq!(files.kept.lock().unwrap().bytes, 8);
    }

    #[test]
    fn a_hash_is_64_hexadecimal_digits() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(read_hash(empty), Some(hash(b"")));
        assert_eq!(read_hash(&empty.to_uppercase()), Some(hash(b"")));
        for wrong in ["", "00", &empty[1..], &format!("{}g", &empty[1..]), &"ä".repeat(32)] {
            assert_eq!(read_hash(wrong), None, "{wrong}");
        }
    }
}

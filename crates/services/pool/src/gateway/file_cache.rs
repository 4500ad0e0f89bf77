//! Caches received files by hash, so that clients need not send them again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

/// SHA-256 of a file.
pub(crate) type FileHash = [u8; 32];

/// Hashes a file.
pub(crate) fn hash(bytes: &[u8]) -> FileHash {
    Sha256::digest(bytes).into()
}

/// Parses a hash in hexadecimal.
pub(crate) fn parse_hash(text: &str) -> Option<FileHash> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(hash)
}

/// The latest files, up to a total size.
#[derive(Debug)]
pub(crate) struct FileCache {
    bytes_max: usize,
    cached: Mutex<CachedFiles>,
}

#[derive(Debug, Default)]
struct CachedFiles {
    files: HashMap<FileHash, Arc<[u8]>>,
    /// Hashes in order of arrival, each once.
    order: VecDeque<FileHash>,
    bytes: usize,
}

impl FileCache {
    pub fn new(bytes_max: usize) -> Self {
        FileCache { bytes_max, cached: Mutex::default() }
    }

    /// Whether files are cached at all.
    pub fn is_enabled(&self) -> bool {
        self.bytes_max > 0
    }

    pub fn get(&self, hash: &FileHash) -> Option<Arc<[u8]>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).files.get(hash).cloned()
    }

    /// Adds a file and evicts the oldest ones if necessary.
    pub fn insert(&self, bytes: &[u8]) {
        if bytes.len() > self.bytes_max {
            return;
        }
        let hash = hash(bytes);
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = &mut *cached;
        if cached.files.contains_key(&hash) {
            return;
        }
        cached.bytes += bytes.len();
        cached.files.insert(hash, bytes.into());
        cached.order.push_back(hash);
        while cached.bytes > self.bytes_max {
            let oldest = cached.order.pop_front().and_then(|hash| cached.files.remove(&hash));
            cached.bytes -= oldest.map_or(0, |bytes| bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_files_are_evicted() {
        let files = FileCache::new(10);
        for text in ["aaaa", "bbbb", "aaaa", "cccc"] {
            files.insert(text.as_bytes());
        }
        let has = |text: &str| files.get(&hash(text.as_bytes())).is_some();
        assert_eq!(["aaaa", "bbbb", "cccc"].map(has), [false, true, true]);
        files.insert(&[b'x'; 11]);
        assert!(has("cccc"), "a file larger than the cache evicts nothing");
        assert_eq!(files.cached.lock().unwrap().bytes, 8);
    }

    #[test]
    fn a_hash_is_64_hexadecimal_digits() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(parse_hash(empty), Some(hash(b"")));
        assert_eq!(parse_hash(&empty.to_uppercase()), Some(hash(b"")));
        for wrong in ["", "00", &empty[1..], &format!("{}g", &empty[1..]), &"ä".repeat(32)] {
            assert_eq!(parse_hash(wrong), None, "{wrong}");
        }
    }
}

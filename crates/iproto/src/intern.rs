//! Interns texts that arrive, so that errors can hold them as static strings.

use std::collections::BTreeSet;
use std::sync::Mutex;

/// Most texts that are stored: the errors of the core use a few dozen.
const TEXTS_MAX: usize = 500;
/// Longest text that is stored, in bytes.
const TEXT_BYTES_MAX: usize = 200;
/// The replacement for a text that is not stored.
const OTHER: &str = "something";

static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// The same text with a static lifetime. Each is stored once; texts beyond the limits are replaced,
/// so that a server cannot use up memory.
pub fn intern(text: &str) -> &'static str {
    // A thread that panicked here did not change the set.
    let mut kept = KEPT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = kept.get(text) {
        return known;
    }
    if kept.len() >= TEXTS_MAX || text.len() > TEXT_BYTES_MAX {
        return OTHER;
    }
    let new: &'static str = Box::leak(text.into());
    kept.insert(new);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_kept_once_and_not_too_many() {
        assert!(std::ptr::eq(intern("put"), intern("put")));
        assert_eq!(intern(&"x".repeat(TEXT_BYTES_MAX + 1)), OTHER);
        for number in 0..2 * TEXTS_MAX {
            intern(&number.to_string());
        }
        assert_eq!(intern("one more"), OTHER);
        assert_eq!(intern("put"), "put");
    }
}

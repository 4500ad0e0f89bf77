//! Random keys of puts.

use taskyard_core::Key;

/// What random keys begin with, so that they are recognized in lists of tasks.
const PREFIX: &str = "put:";
/// Random bytes of a put: that two of a billion puts get the same has a probability of less than 10^-18.
const RANDOM_BYTES: usize = 15;
/// The digits of random bytes, six bits each.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The keys of one put: the same random text with the number of the task. The system is asked for random bytes each
/// time, because a state in this process would be repeated by its copies.
pub(crate) struct RandomKeys {
    text: String,
    next: usize,
}

impl RandomKeys {
    /// Keys for a put; `None` if the system has no random bytes.
    pub fn new() -> Option<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes).ok()?;
        let mut text = String::with_capacity(PREFIX.len() + RANDOM_BYTES / 3 * 4);
        text.push_str(PREFIX);
        for three in bytes.chunks(3) {
            let bits = three.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte));
            for shift in [18, 12, 6, 0] {
                text.push(char::from(DIGITS[bits >> shift & 63]));
            }
        }
        Some(RandomKeys { text, next: 0 })
    }
}

impl Iterator for RandomKeys {
    type Item = Key;

    fn next(&mut self) -> Option<Key> {
        let number = self.next;
        self.next += 1;
        match number {
            0 => Key::new(&self.text),
            number => Key::new(&format!("{}.{number}", self.text)),
        }
        .ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn all_keys_differ() {
        let mut keys = HashSet::new();
        for _ in 0..1_000 {
            keys.extend(RandomKeys::new().unwrap().take(10));
        }
        assert_eq!(keys.len(), 10_000);
        assert!(keys.iter().all(|key| (24..=26).contains(&key.as_str().len())), "{keys:?}");
    }
}

//! Unique keys of tasks, and what a put asks for with one.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use crate::error::{Error, Result};
use crate::limits::{KEY_BYTES_MAX, UNIQUE_FOR_SECS_MAX};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

/// Clients choose the keys, so they must not be able to choose hashes.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Texts of at most this many bytes need no allocation of their own. A [`KeyRequest`] then has 64 bytes.
const SHORT_BYTES: usize = 42;

/// The checked key of a task, unique in its tube. Cheap to clone. Hashed when it is made, by the thread of the client, so that a put
/// does not have to read its text unless the hash is found.
#[derive(Clone)]
pub struct Key(KeyText);

/// The text of a key with its hash. The hash is in both variants because it takes no space there.
#[derive(Clone)]
enum KeyText {
    Short { hash: KeyHash, len: u8, bytes: [u8; SHORT_BYTES] },
    Long { hash: KeyHash, text: Arc<str> },
}

/// Half of the hash of a key's text: enough for the keys of one tube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(u32);

/// The bits of a hash. In unit tests many keys have the same.
const HASH_BITS: u32 = if cfg!(test) { 7 } else { u32::MAX };

/// Spreads small differences over all bits of a number.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl KeyHash {
    /// The hash for a table, which uses the lowest bits for the bucket and the highest as tags.
    pub fn whole(self) -> u64 {
        u64::from(self.0).wrapping_mul(FACTOR)
    }
}

impl Key {
    /// Checks a key: 1 to 128 bytes without control characters.
    pub fn new(key: &str) -> Result<Self> {
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
            return Err(Error::Invalid(format!(
                "a key must have 1 to {KEY_BYTES_MAX} bytes, this one has {}",
                key.len()
            )));
        }
        // Nearly all keys have only these bytes, which are compared faster than characters.
        let is_plain = key.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !is_plain && let Some(bad) = key.chars().find(|char| char.is_control()) {
            return Err(Error::Invalid(format!("a key must not contain {bad:?}")));
        }
        let mut hasher = SEED.build_hasher();
        hasher.write(key.as_bytes());
        let hash = KeyHash(hasher.finish() as u32 & HASH_BITS);
        if key.len() > SHORT_BYTES {
            return Ok(Key(KeyText::Long { hash, text: key.into() }));
        }
        let mut bytes = [0; SHORT_BYTES];
        bytes[..key.len()].copy_from_slice(key.as_bytes());
        Ok(Key(KeyText::Short { hash, len: key.len() as u8, bytes }))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            KeyText::Short { .. } => str::from_utf8(self.as_bytes()).expect("a key is text"),
            KeyText::Long { text, .. } => text,
        }
    }

    /// The bytes of the text.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            KeyText::Short { len, bytes, .. } => &bytes[..usize::from(*len)],
            KeyText::Long { text, .. } => text.as_bytes(),
        }
    }

    /// The hash of the text, other in each process.
    pub(crate) fn hash_code(&self) -> KeyHash {
        match &self.0 {
            KeyText::Short { hash, .. } | KeyText::Long { hash, .. } => *hash,
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash_code() == other.hash_code() && self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

/// Like that of a text, which maps of keys are searched for.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The key of a put, and what happens if the tube has it already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRequest {
    /// The key, and for how long it stays held after the end of the task.
    pub held: HeldKey,
    /// What happens if the key is held.
    pub on_conflict: OnConflict,
}

impl KeyRequest {
    /// A key that is free as soon as its task has ended, with a put that adds nothing if it is held.
    pub fn new(key: Key) -> Self {
        KeyRequest { held: HeldKey { key, unique_for: Span::ZERO }, on_conflict: OnConflict::Keep }
    }

    /// The request of a task that has this key already.
    pub(crate) fn of(held: &HeldKey) -> Box<Self> {
        Box::new(KeyRequest { held: held.clone(), on_conflict: OnConflict::Keep })
    }

    /// Refuses a time that is too long.
    pub(crate) fn check(&self) -> Result<()> {
        if self.held.unique_for <= Span::from_secs(UNIQUE_FOR_SECS_MAX) {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "unique_for may be {UNIQUE_FOR_SECS_MAX} seconds at most, not {}",
            self.held.unique_for.as_secs_f64()
        )))
    }
}

/// What a put does whose key is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// It adds nothing and replies with the id of the holder.
    #[default]
    Keep,
    /// A ready or delayed holder gets the payload, the priority and the times of the put. Other
    /// holders are kept.
    Replace,
}

/// The key of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldKey {
    /// The key.
    pub key: Key,
    /// For how long it stays held after the task has ended.
    pub unique_for: Span,
}

/// A key that is still held although its task has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedKey {
    /// The task that had it.
    pub id: TaskId,
    /// The key.
    pub key: Key,
    /// It is free from this moment on.
    pub until: Timestamp,
}

/// The key of a task, as it is stored: beside the task, because it may outlive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// The key.
    pub key: Key,
    /// For how long it stays held after the end; `None` if the task is not stored any more.
    pub unique_for: Option<Span>,
    /// It is held by the ended task until this moment, and free from then on.
    pub until: Option<Timestamp>,
}

impl KeyRecord {
    /// The stored form of the key that a stored task has, and of the same key while it is still held after
    /// the end.
    pub(crate) fn new(held: Option<&HeldKey>, ended: Option<&EndedKey>) -> Option<Self> {
        let key = held.map(|held| &held.key).or(ended.map(|ended| &ended.key))?;
        Some(KeyRecord {
            key: key.clone(),
            unique_for: held.map(|held| held.unique_for),
            until: ended.map(|ended| ended.until),
        })
    }
}

impl EndedKey {
    /// Moves the moment, between wall time and the machine's time.
    pub(crate) fn move_moments(&mut self, by: i64) {
        self.until = self.until.moved(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_checked() {
        for good in ["a", "order:17/3", "заказ", " ", &"x".repeat(128)] {
            assert_eq!(Key::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "a\nb", "\0", "\u{7f}", "é\u{85}", &"x".repeat(129)] {
            assert!(matches!(Key::new(bad), Err(Error::Invalid(_))), "{bad:?}");
        }
    }

    /// Texts around the length from which they are allocated are kept, compared and found in maps alike.
    #[test]
    fn short_and_long_keys_are_texts() {
        for bytes in [1, SHORT_BYTES - 1, SHORT_BYTES, SHORT_BYTES + 1, KEY_BYTES_MAX] {
            let text = "k".repeat(bytes);
            let key = Key::new(&text).unwrap();
            assert_eq!((key.as_str(), &key), (text.as_str(), &key.clone()));
            assert_eq!((key.to_string(), format!("{key:?}")), (text.clone(), format!("{text:?}")));
            assert_ne!(key, Key::new(&format!("{}x", &text[1..])).unwrap());
            assert!(Key::new("a").unwrap() < key && key < Key::new("z").unwrap());
            assert!(HashSet::from([key]).contains(text.as_str()));
        }
    }

    /// Millions of these are in memory: this test notices a request that grows.
    #[test]
    fn a_request_stays_small() {
        assert_eq!((size_of::<Key>(), size_of::<KeyRequest>()), (48, 64));
    }

    #[test]
    fn the_time_after_the_end_is_limited() {
        let mut request = KeyRequest::new(Key::new("k").unwrap());
        request.held.unique_for = Span::from_secs(7 * 24 * 3600);
        assert_eq!(request.check(), Ok(()));
        request.held.unique_for = Span::from_micros(7 * 24 * 3_600_000_000 + 1);
        assert!(request.check().is_err());
    }
}

//! Unique keys of tasks, and what a put asks for with one.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::limits::{KEY_BYTES_MAX, UNIQUE_FOR_SECS_MAX};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

/// The checked key of a task, unique in its tube. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

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
        Ok(Key(key.into()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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

    #[test]
    fn keys_are_checked() {
        for good in ["a", "order:17/3", "заказ", " ", &"x".repeat(128)] {
            assert_eq!(Key::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "a\nb", "\0", "\u{7f}", "é\u{85}", &"x".repeat(129)] {
            assert!(matches!(Key::new(bad), Err(Error::Invalid(_))), "{bad:?}");
        }
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

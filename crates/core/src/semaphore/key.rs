//! Keys, priorities and grant numbers of semaphores.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::limits::SEMAPHORE_KEY_BYTES_MAX;

/// The checked key of a semaphore. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SemaphoreKey(Arc<str>);

impl SemaphoreKey {
    /// Checks a key: as for tube names, 1 to 128 bytes without control characters, `/` or `:`, and
    /// neither `.` nor `..`.
    pub fn new(key: &str) -> Result<Self> {
        if key.is_empty() || matches!(key, "." | "..") {
            return Err(Error::Invalid(format!("'{key}' cannot be the key of a semaphore")));
        }
        if key.len() > SEMAPHORE_KEY_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the key of a semaphore may have {SEMAPHORE_KEY_BYTES_MAX} bytes, this one has {}",
                key.len()
            )));
        }
        if let Some(bad) = key.chars().find(|c| c.is_control() || matches!(c, '/' | ':')) {
            let text = format!("the key of a semaphore must not contain {bad:?}");
            return Err(Error::Invalid(text));
        }
        Ok(SemaphoreKey(key.into()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for SemaphoreKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SemaphoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SemaphoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The priority of a task: a larger number comes first. Always finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priority(f64);

impl Priority {
    /// The default priority.
    pub const ZERO: Priority = Priority(0.0);

    /// Checks that the priority is a finite number.
    pub fn new(value: f64) -> Result<Self> {
        if value.is_finite() {
            // Minus zero is zero, so that equal numbers have equal bits.
            Ok(Priority(value + 0.0))
        } else {
            Err(Error::Invalid(format!("a priority must be a finite number, not {value}")))
        }
    }

    /// The number.
    pub const fn value(self) -> f64 {
        self.0
    }

    /// Whether it is larger than another by more than a margin. The sum of two numbers may
    /// overflow, and PostgreSQL refuses to add them: so both compare first, in the same way.
    pub fn beats(self, other: Priority, margin: Priority) -> bool {
        other.0 < f64::MAX - margin.0 && self.0 > other.0 + margin.0
    }
}

impl Eq for Priority {}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Priority {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The number of one grant of one task: it grows with every grant of a semaphore, and a command
/// with an old one has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant(pub u64);

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The end of one page of members: priority and sequence number of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberCursor {
    /// The priority of the last one.
    pub priority: Priority,
    /// Its sequence number.
    pub seq: u64,
}

impl fmt::Display for MemberCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.priority.value(), self.seq)
    }
}

impl std::str::FromStr for MemberCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::Invalid(format!(
                "'{text}' is not the end of a page; use the `next` of the page before"
            ))
        };
        let (priority, seq) = text.split_once(':').ok_or_else(wrong)?;
        let priority = Priority::new(priority.parse().map_err(|_| wrong())?)?;
        // The largest number that every store can count to.
        let seq = seq.parse().ok().filter(|seq| *seq < 1 << 53).ok_or_else(wrong)?;
        let cursor = MemberCursor { priority, seq };
        // Each page has exactly one cursor.
        if cursor.to_string() == text { Ok(cursor) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked() {
        for good in ["a", "yang", "a b!", "почта", &"x".repeat(128)] {
            assert_eq!(SemaphoreKey::new(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a/b", "a:b", "a\nb", &"x".repeat(129)] {
            assert!(matches!(SemaphoreKey::new(bad), Err(Error::Invalid(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_cursor_comes_back_as_it_was_written() {
        for (priority, seq) in [(0.1, 7), (-1e300, 0), (f64::MAX, (1 << 53) - 1)] {
            let cursor = MemberCursor { priority: Priority::new(priority).unwrap(), seq };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for bad in ["", "1", "1:", ":1", "nan:1", "1:-1", "1:9007199254740992"] {
            assert!(matches!(bad.parse::<MemberCursor>(), Err(Error::Invalid(_))), "{bad:?}");
        }
    }

    #[test]
    fn priorities_can_be_compared() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(matches!(Priority::new(bad), Err(Error::Invalid(_))), "{bad}");
        }
        assert_eq!(Priority::new(-0.0).unwrap().cmp(&Priority::ZERO), std::cmp::Ordering::Equal);
        assert!(Priority::new(-1.5).unwrap() < Priority::new(2.0).unwrap());
    }

    #[test]
    fn a_margin_may_be_as_large_as_numbers_are() {
        let beats = |wanted: f64, held: f64, margin: f64| {
            let [wanted, held, margin] = [wanted, held, margin].map(|n| Priority::new(n).unwrap());
            wanted.beats(held, margin)
        };
        assert!(beats(3.5, 1.0, 2.0) && !beats(3.0, 1.0, 2.0));
        assert!(beats(f64::MAX, 1e307, 1e307) && beats(f64::MAX, f64::MIN, f64::MAX));
        assert!(!beats(f64::MAX, f64::MAX, 0.0) && !beats(f64::MAX, 1e308, 1e308));
        assert!(beats(0.0, f64::MIN, 5e-324));
    }
}

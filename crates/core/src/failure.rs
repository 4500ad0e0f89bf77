//! The latest failures of a task, and their stored form.
//!
//! All stores keep the same bytes, oldest failure first. Numbers are big-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | when the delivery ended |
//! | 4 | which attempt it was, from 1 |
//! | 8 | how long it lasted |
//! | 1 | length of the worker's name, 0 if it has none |
//! | 2 | length of the error |
//! | … | the name, then the error, in UTF-8 |
//!
//! Times are microseconds. The rules in SQL and Lua append entries and remove the oldest.

use std::fmt;
use std::sync::Arc;

use crate::limits::{CLIENT_VERSION_BYTES_MAX, ERROR_BYTES_MAX, FAILURES_MAX, WORKER_BYTES_MAX};
use crate::time::{Span, Timestamp};

/// The error of a delivery whose lease expired.
pub const LEASE_EXPIRED: &str = "lease expired";
/// The error of a delivery whose session ended.
pub const SESSION_ENDED: &str = "session ended";
/// The error of a delivery whose session ended because its server was declared dead.
pub const SERVER_LOST: &str = "server lost";

/// Bytes of an entry without its texts.
const HEAD: usize = 8 + 4 + 8 + 1 + 2;
/// What stands for the removed end of an error.
const CUT: &str = "…";

/// One delivery that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When it ended.
    pub at: Timestamp,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// How long it lasted.
    pub run: Span,
    /// The worker that had taken the task, if it gave its name.
    pub worker: Option<Arc<str>>,
    /// What went wrong.
    pub error: Arc<str>,
}

/// The latest failures of a task, at least one and at most [`FAILURES_MAX`], in stored form.
#[derive(Clone, PartialEq, Eq)]
pub struct Failures(Arc<[u8]>);

impl Failures {
    /// The failures before with this one; the oldest is removed if there are too many.
    pub fn with(before: Option<&Failures>, failure: &Failure) -> Self {
        let kept = before.map_or(&[][..], |before| {
            let count = before.iter().count();
            let too_many = (count + 1).saturating_sub(FAILURES_MAX);
            let removed: usize = entries(&before.0).take(too_many).map(<[u8]>::len).sum();
            &before.0[removed..]
        });
        let worker = failure.worker.as_deref().unwrap_or("");
        let mut bytes = Vec::with_capacity(kept.len() + HEAD + worker.len() + failure.error.len());
        bytes.extend_from_slice(kept);
        bytes.extend_from_slice(&failure.at.as_micros().to_be_bytes());
        bytes.extend_from_slice(&failure.attempt.to_be_bytes());
        bytes.extend_from_slice(&failure.run.as_micros().to_be_bytes());
        bytes.push(u8::try_from(worker.len()).unwrap_or(0));
        bytes.extend_from_slice(&u16::try_from(failure.error.len()).unwrap_or(0).to_be_bytes());
        bytes.extend_from_slice(worker.as_bytes());
        bytes.extend_from_slice(failure.error.as_bytes());
        Failures(bytes.into())
    }

    /// Reads the stored form; `None` if it is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (mut rest, mut count) = (bytes, 0);
        while !rest.is_empty() {
            let entry = entries(rest).next()?;
            read(entry)?;
            rest = &rest[entry.len()..];
            count += 1;
        }
        (1..=FAILURES_MAX).contains(&count).then(|| Failures(bytes.into()))
    }

    /// The stored form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The failures, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Failure> {
        entries(&self.0).filter_map(read)
    }

    /// The latest failure.
    pub fn last(&self) -> Option<Failure> {
        entries(&self.0).last().and_then(read)
    }

    /// The same with all moments moved, between wall time and the machine's time.
    #[must_use]
    pub fn moved(&self, by: i64) -> Self {
        let move_one = |before: Option<Failures>, mut failure: Failure| {
            failure.at = failure.at.moved(by).max(Timestamp::EPOCH);
            Some(Failures::with(before.as_ref(), &failure))
        };
        self.iter().fold(None, move_one).unwrap_or_else(|| self.clone())
    }
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The entries in stored form, up to the first incomplete one.
fn entries(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (worker, error) = (*rest.get(20)? as usize, rest.get(21..23)?);
        let error = u16::from_be_bytes(error.try_into().ok()?) as usize;
        let (entry, after) = rest.split_at_checked(HEAD + worker + error)?;
        rest = after;
        Some(entry)
    })
}

/// Reads one complete entry.
fn read(entry: &[u8]) -> Option<Failure> {
    let number =
        |from: usize| Some(i64::from_be_bytes(entry.get(from..from + 8)?.try_into().ok()?));
    let attempt = u32::from_be_bytes(entry.get(8..12)?.try_into().ok()?);
    let (worker, error) = entry.get(HEAD..)?.split_at_checked(usize::from(*entry.get(20)?))?;
    let worker = std::str::from_utf8(worker).ok()?;
    Some(Failure {
        at: Timestamp::from_micros(number(0)?),
        attempt,
        run: Span::from_micros(number(12)?),
        worker: (!worker.is_empty()).then(|| worker.into()),
        error: std::str::from_utf8(error).ok()?.into(),
    })
}

/// An error text as it is stored: without NUL characters, which not every store can keep, and cut at
/// a character with `…` if it is longer than [`ERROR_BYTES_MAX`].
pub fn stored_error(text: &str) -> Arc<str> {
    let cleaned;
    let text = match text.contains('\0') {
        true => {
            cleaned = text.replace('\0', "\u{fffd}");
            &cleaned
        }
        false => text,
    };
    if text.len() <= ERROR_BYTES_MAX {
        return text.into();
    }
    let end = text.floor_char_boundary(ERROR_BYTES_MAX - CUT.len());
    format!("{}{CUT}", &text[..end]).into()
}

/// Whether a worker may have this name.
pub fn is_worker_name(name: &str) -> bool {
    (1..=WORKER_BYTES_MAX).contains(&name.len()) && crate::names::unfit_char(name).is_none()
}

/// Whether this can be the version of a worker's client: letters, digits, `.`, `-` and `+`.
pub fn is_client_version(version: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
    (1..=CLIENT_VERSION_BYTES_MAX).contains(&version.len()) && version.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(attempt: u32, worker: Option<&str>, error: &str) -> Failure {
        Failure {
            at: Timestamp::from_micros(1_700_000_000_000_000 + i64::from(attempt)),
            attempt,
            run: Span::from_secs(3),
            worker: worker.map(Into::into),
            error: error.into(),
        }
    }

    #[test]
    fn the_last_five_are_kept() {
        let all: Vec<_> = (1..=7).map(|n| failure(n, (n % 2 == 0).then_some("w"), "é")).collect();
        let mut kept = None;
        for one in &all {
            kept = Some(Failures::with(kept.as_ref(), one));
        }
        let kept = kept.expect("there are failures");
        assert_eq!(kept.iter().collect::<Vec<_>>(), all[2..]);
        assert_eq!(kept.last().as_ref(), all.last());
        assert_eq!(Failures::from_bytes(kept.as_bytes()), Some(kept));
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let whole = Failures::with(None, &failure(1, Some("host:1:mail"), "no route"));
        for end in 0..whole.as_bytes().len() {
            assert_eq!(Failures::from_bytes(&whole.as_bytes()[..end]), None, "{end}");
        }
        let mut six = Vec::new();
        (0..=FAILURES_MAX).for_each(|_| six.extend_from_slice(whole.as_bytes()));
        assert_eq!(Failures::from_bytes(&six), None);
        let mut bytes = whole.as_bytes().to_vec();
        *bytes.last_mut().expect("it has bytes") = 0xff;
        assert_eq!(Failures::from_bytes(&bytes), None);
    }

    #[test]
    fn a_long_error_is_cut_at_a_character() {
        let text = "é".repeat(1000);
        let stored = stored_error(&text);
        assert!(stored.len() <= ERROR_BYTES_MAX && stored.ends_with("é…"), "{}", stored.len());
        assert_eq!(&*stored_error("short"), "short");
        assert_eq!(&*stored_error("a\0b"), "a\u{fffd}b");
    }

    #[test]
    fn the_whole_list_stays_small() {
        let worst = failure(1, Some(&"w".repeat(WORKER_BYTES_MAX)), &"e".repeat(ERROR_BYTES_MAX));
        let list = (0..9)
            .fold(None, |list: Option<Failures>, _| Some(Failures::with(list.as_ref(), &worst)));
        assert!(list.expect("a list").as_bytes().len() <= 6 << 10);
    }
}

//! Stores how a done task ended, in one form for all stores.
//!
//! All stores keep the same bytes. Numbers are big-endian, times are microseconds:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | when the delivery ended |
//! | 8 | how long it lasted |
//! | 1 | length of the worker's name, 0 if it has none |
//! | … | the name in UTF-8, then the result; without a result nothing |

use std::fmt;
use std::sync::Arc;

use crate::command::{Finish, FinishItem};
use crate::error::{Error, Result};
use crate::limits::{RESULT_BYTES_MAX, WORKER_BYTES_MAX};
use crate::task::Body;
use crate::time::{Span, Timestamp};

/// Bytes before the name.
const HEAD: usize = 8 + 8 + 1;

/// How a done task ended, in stored form. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Finished(Arc<[u8]>);

impl Finished {
    /// The end of a delivery. An empty result is none.
    pub fn new(at: Timestamp, run: Span, worker: Option<&str>, result: &[u8]) -> Self {
        let worker = worker.unwrap_or("");
        let mut bytes = Vec::with_capacity(HEAD + worker.len() + result.len());
        bytes.extend_from_slice(&at.as_micros().to_be_bytes());
        bytes.extend_from_slice(&run.as_micros().to_be_bytes());
        bytes.push(u8::try_from(worker.len()).unwrap_or(0));
        bytes.extend_from_slice(worker.as_bytes());
        bytes.extend_from_slice(result);
        Finished(bytes.into())
    }

    /// Reads the stored form; `None` if it is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let name = usize::from(*bytes.get(HEAD - 1)?);
        let worker = bytes.get(HEAD..HEAD + name)?;
        let fits = name <= WORKER_BYTES_MAX && bytes.len() - HEAD - name <= RESULT_BYTES_MAX;
        (fits && std::str::from_utf8(worker).is_ok()).then(|| Finished(bytes.into()))
    }

    /// The stored form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// When the delivery ended.
    pub fn at(&self) -> Timestamp {
        Timestamp::from_micros(self.number(0))
    }

    /// How long it lasted.
    pub fn run(&self) -> Span {
        Span::from_micros(self.number(8))
    }

    /// The worker that had taken the task, if it gave its name.
    pub fn worker(&self) -> Option<&str> {
        let name = &self.0[HEAD..self.result_start()];
        std::str::from_utf8(name).ok().filter(|name| !name.is_empty())
    }

    /// The result: one MessagePack value.
    pub fn result(&self) -> Option<&[u8]> {
        let result = &self.0[self.result_start()..];
        (!result.is_empty()).then_some(result)
    }

    /// The same with the moment moved, between wall time and the machine's time.
    #[must_use]
    pub fn moved(&self, by: i64) -> Self {
        let at = self.at().moved(by).max(Timestamp::EPOCH);
        Finished::new(at, self.run(), self.worker(), self.result().unwrap_or(&[]))
    }

    fn result_start(&self) -> usize {
        HEAD + usize::from(self.0[HEAD - 1])
    }

    fn number(&self, first: usize) -> i64 {
        let bytes = self.0[first..first + 8].try_into().expect("eight bytes");
        i64::from_be_bytes(bytes)
    }
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finished")
            .field("at", &self.at())
            .field("run", &self.run())
            .field("worker", &self.worker())
            .field("result", &self.result())
            .finish()
    }
}

/// Refuses results that are too large. Stores whose rules run in the database call this first.
pub fn check_results(items: &[FinishItem]) -> Result<()> {
    let size = |item: &FinishItem| item.finish.result().map_or(0, <[u8]>::len);
    let size = items.iter().map(size).max().unwrap_or(0);
    if size <= RESULT_BYTES_MAX {
        return Ok(());
    }
    Err(Error::TooLarge {
        what: "the size of a result, in bytes,",
        size,
        limit: RESULT_BYTES_MAX,
        advice: "store it elsewhere, and put its location into the result",
    })
}

impl Finish {
    /// A finished delivery with a result: one MessagePack value.
    pub fn ack_with(result: &[u8]) -> Self {
        Finish::AckWithResult(Box::new(Body::new(result)))
    }

    /// The result of a finished delivery, if it has one.
    pub fn result(&self) -> Option<&[u8]> {
        match self {
            Finish::AckWithResult(result) => Some(result.payload()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_is_read_again() {
        let at = Timestamp::from_micros(7_000_000);
        for worker in [None, Some("host:1:mail")] {
            for result in [&[][..], b"\xc3"] {
                let finished = Finished::new(at, Span::from_secs(2), worker, result);
                let read = Finished::from_bytes(finished.as_bytes()).unwrap();
                assert_eq!(
                    (read.at(), read.run(), read.worker()),
                    (at, Span::from_secs(2), worker)
                );
                assert_eq!(read.result().unwrap_or(&[]), result);
                assert_eq!(read.moved(5).at(), at.moved(5));
            }
        }
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let whole = Finished::new(Timestamp::EPOCH, Span::ZERO, Some("worker"), &[]);
        for length in 0..whole.as_bytes().len() {
            assert_eq!(Finished::from_bytes(&whole.as_bytes()[..length]), None, "{length}");
        }
        let mut bytes = whole.as_bytes().to_vec();
        bytes[HEAD] = 0xff;
        assert_eq!(Finished::from_bytes(&bytes), None, "the name is not UTF-8");
        let large = vec![0; HEAD + RESULT_BYTES_MAX + 1];
        assert_eq!(Finished::from_bytes(&large), None);
    }
}

//! The statistics that a handler returns for its batch.

use std::time::Duration;

/// Why a whole batch failed. Errors of single tasks belong in [`HandlerStats`].
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// What a handler returns.
pub type HandlerResult = Result<HandlerStats, HandlerError>;

/// The outcome of a batch as its handler counted it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandlerStats {
    /// Tasks that are done.
    pub processed: usize,
    /// Tasks that failed.
    pub errors: usize,
    /// Tasks that were returned for another attempt.
    pub retried: usize,
    /// How long the batch took.
    pub duration: Duration,
    /// The last error.
    pub last_error: Option<String>,
}

impl HandlerStats {
    /// Limits the counts to the size of the batch; also returns whether a count was too large.
    pub(crate) fn clamped(mut self, batch: usize) -> (Self, bool) {
        let before = (self.processed, self.retried, self.errors);
        self.processed = self.processed.min(batch);
        self.retried = self.retried.min(batch - self.processed);
        self.errors = self.errors.min(batch);
        let clamped = before != (self.processed, self.retried, self.errors);
        (self, clamped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_limited_to_the_batch() {
        let stats =
            HandlerStats { processed: 7, errors: 99, retried: 8, ..HandlerStats::default() };
        let (stats, clamped) = stats.clamped(10);
        assert!(clamped);
        assert_eq!((stats.processed, stats.retried, stats.errors), (7, 3, 10));
        assert!(!stats.clamped(10).1);
    }
}

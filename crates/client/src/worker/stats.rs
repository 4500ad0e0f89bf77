//! What handlers answer.

use std::time::Duration;

/// Why a whole batch failed. What went wrong with single tasks belongs into [`HandlerStats`].
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// What a handler answers.
pub type HandlerResult = Result<HandlerStats, HandlerError>;

/// What became of a batch, as its handler saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandlerStats {
    /// Done.
    pub processed: usize,
    /// Gone wrong.
    pub errors: usize,
    /// Given back to be tried again.
    pub retried: usize,
    /// How long it took.
    pub duration: Duration,
    /// What went wrong last.
    pub last_error: Option<String>,
}

impl HandlerStats {
    /// The same cut to what a batch of this size can have, and whether something had to be cut.
    pub(super) fn clamped(mut self, batch: usize) -> (Self, bool) {
        let before = (self.processed, self.retried, self.errors);
        self.processed = self.processed.min(batch);
        self.retried = self.retried.min(batch - self.processed);
        self.errors = self.errors.min(batch);
        let cut = before != (self.processed, self.retried, self.errors);
        (self, cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_batch_is_cut() {
        let stats =
            HandlerStats { processed: 7, errors: 99, retried: 8, ..HandlerStats::default() };
        let (stats, cut) = stats.clamped(10);
        assert!(cut);
        assert_eq!((stats.processed, stats.retried, stats.errors), (7, 3, 10));
        assert!(!stats.clamped(10).1);
    }
}

//! A take that can be sent to the engine once more.

use std::sync::Arc;
use std::time::Duration;

use taskyard_core::{SessionId, Span, Take, TubeName};
use tokio::time::Instant;

/// A take that can be sent to the engine once more, in a session that was joined again.
#[derive(Debug)]
pub(super) struct RepeatableTake {
    tube: TubeName,
    count: usize,
    /// Whether the answer is a list of tasks.
    pub many: bool,
    wait: Span,
    /// When it stops waiting, if it does.
    until: Option<Instant>,
    /// The number of the last join of the connection when the take was sent.
    pub join_number: u32,
    /// Whether it was sent before, in a session that the store did not know.
    pub repeated: bool,
}

impl RepeatableTake {
    /// What is needed to repeat this take. `many` says whether the answer is a list of tasks.
    pub fn new(take: Take, many: bool) -> Self {
        let Take { tube, count, wait, .. } = take;
        let until = if wait.is_zero() || wait == Span::FOREVER {
            None
        } else {
            let micros = wait.as_micros().max(0).unsigned_abs();
            Instant::now().checked_add(Duration::from_micros(micros))
        };
        RepeatableTake { tube, count, many, wait, until, join_number: 0, repeated: false }
    }

    /// The command for this session and the name of its worker.
    pub fn command(&self, session: SessionId, worker: Option<Arc<str>>) -> Take {
        let (tube, count) = (self.tube.clone(), self.count);
        Take { tube, count, session: Some(session), lease: None, worker, wait: self.wait }
    }

    /// The same take with its remaining time.
    pub fn again(mut self) -> Self {
        if let Some(until) = self.until {
            let rest = until.saturating_duration_since(Instant::now());
            self.wait = Span::from_secs_f64(rest.as_secs_f64()).unwrap_or_default();
        }
        self.repeated = true;
        self
    }
}

//! What a client wants to take, so that it can be asked for once more.

use std::time::Duration;

use taskyard_core::{SessionId, Span, Take, TubeName};
use tokio::time::Instant;

/// What a client wants to take.
#[derive(Debug)]
pub(super) struct Taking {
    tube: TubeName,
    count: usize,
    /// Whether tasks are told as a list.
    pub many: bool,
    wait: Span,
    /// When its time is over, if it waits and that is ever.
    until: Option<Instant>,
    /// Which join of its session was the last when it was asked for, as the connection counts them.
    pub joins: u32,
    /// Whether it was asked for before, in a session that the queue did not know.
    pub repeated: bool,
}

impl Taking {
    /// At most so many of this tube. Without a timeout it waits for ever.
    pub fn new(tube: TubeName, count: usize, many: bool, timeout: Option<Span>) -> Self {
        let wait = timeout.unwrap_or(Span::FOREVER);
        let until = if wait.is_zero() || wait == Span::FOREVER {
            None
        } else {
            let micros = wait.as_micros().max(0).unsigned_abs();
            Instant::now().checked_add(Duration::from_micros(micros))
        };
        Taking { tube, count, many, wait, until, joins: 0, repeated: false }
    }

    /// The command.
    pub fn command(&self, session: SessionId) -> Take {
        let (tube, count) = (self.tube.clone(), self.count);
        Take { tube, count, session: Some(session), lease: None, wait: self.wait }
    }

    /// The same for the rest of its time.
    pub fn again(mut self) -> Self {
        if let Some(until) = self.until {
            let rest = until.saturating_duration_since(Instant::now());
            self.wait = Span::from_secs_f64(rest.as_secs_f64()).unwrap_or_default();
        }
        self.repeated = true;
        self
    }
}

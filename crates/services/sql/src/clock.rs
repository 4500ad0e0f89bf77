//! The database's clock, between two looks at it.

use std::time::Duration;

use taskyard_core::{Span, Timestamp};
use tokio::time::Instant;

/// The database's clock, as it was last seen. It is never ahead of the real one, so that what was due by the database
/// does not begin before its plan.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    shown: Timestamp,
    seen: Instant,
}

impl Clock {
    /// It shows this now.
    pub fn showing(shown: Timestamp) -> Self {
        Clock { shown, seen: Instant::now() }
    }

    /// What it shows now.
    pub fn now(&self) -> Timestamp {
        self.shown + Span::from(self.seen.elapsed())
    }

    /// When it will show this.
    pub fn when(&self, at: Timestamp) -> Instant {
        let wait = Duration::from(at.since(self.shown));
        // A day is long enough: whoever waits looks again.
        self.seen + wait.min(Duration::from_secs(86_400))
    }
}

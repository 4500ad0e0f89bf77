//! Estimates the time of the database's clock between two readings.

use std::time::Duration;

use taskyard_core::{Span, Timestamp};
use tokio::time::Instant;

/// The longest wait that is computed; the leader wakes more often than this anyway.
const WAIT_MAX: Duration = Duration::from_secs(86_400);

/// The database's clock, continued from its last reading. It is never ahead of the database, so that a task does not
/// start before its plan.
#[derive(Clone, Copy, Debug)]
pub struct DatabaseClock {
    reading: Timestamp,
    read_at: Instant,
}

impl DatabaseClock {
    /// A clock that shows `reading` now.
    pub fn synced_to(reading: Timestamp) -> Self {
        DatabaseClock { reading, read_at: Instant::now() }
    }

    /// The time that the clock shows now.
    pub fn now(&self) -> Timestamp {
        self.reading + Span::from(self.read_at.elapsed())
    }

    /// The instant at which the clock shows `at`; at most a day after the last reading.
    pub fn instant_of(&self, at: Timestamp) -> Instant {
        let wait = Duration::from(at.since(self.reading));
        self.read_at + wait.min(WAIT_MAX)
    }
}

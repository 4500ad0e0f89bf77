//! Provides the core's timestamps: microseconds since the pool started.

use taskyard_core::Timestamp;
use tokio::time::Instant;

/// Counts from its creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub fn start() -> Self {
        Clock(Instant::now())
    }

    pub fn now(self) -> Timestamp {
        Timestamp::from_micros(self.0.elapsed().as_micros().min(i64::MAX as u128) as i64)
    }
}

//! The clock of workers: the virtual time of the run.

use std::time::Duration;

use taskyard_core::Timestamp;
use taskyard_worker::{BoxFuture, Timer};
use tokio::time::Instant;

/// The virtual time as workers and managers see it.
pub struct SimulatedTimer {
    started: Instant,
    start: Timestamp,
}

impl SimulatedTimer {
    /// A clock that shows `start` now.
    pub fn new(start: Timestamp) -> Self {
        SimulatedTimer { started: Instant::now(), start }
    }
}

impl Timer for SimulatedTimer {
    fn now(&self) -> Timestamp {
        self.start.moved(self.started.elapsed().as_micros() as i64)
    }

    fn sleep_until(&self, moment: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(Duration::from(moment.since(self.now()))))
    }
}

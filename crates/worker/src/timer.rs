//! The time of a worker: the system clock, or a manual clock in tests.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use taskyard_core::Timestamp;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The clock and the sleeps of a worker.
pub trait Timer: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;

    /// Completes at that moment.
    fn sleep_until(&self, moment: Timestamp) -> BoxFuture<'_, ()>;
}

/// The system clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemTimer;

impl Timer for SystemTimer {
    fn now(&self) -> Timestamp {
        // A wall clock before 1970 is broken; use the epoch.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(wall.as_micros()).unwrap_or(i64::MAX))
    }

    fn sleep_until(&self, moment: Timestamp) -> BoxFuture<'_, ()> {
        let left = Duration::from(moment.since(self.now()));
        Box::pin(tokio::time::sleep(left))
    }
}

//! The worker's time: the machine's, or a hand clock in tests.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use taskyard_core::Timestamp;

/// A future that cannot be named.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Tells a worker the time and wakes it.
pub trait Timer: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// Ready when that moment is here.
    fn sleep_until(&self, moment: Timestamp) -> Boxed<'_, ()>;
}

/// The machine's time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemTimer;

impl Timer for SystemTimer {
    fn now(&self) -> Timestamp {
        // A wall clock before 1970 is broken; the epoch is the best guess then.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(wall.as_micros()).unwrap_or(i64::MAX))
    }

    fn sleep_until(&self, moment: Timestamp) -> Boxed<'_, ()> {
        let left = Duration::from(moment.since(self.now()));
        Box::pin(tokio::time::sleep(left))
    }
}

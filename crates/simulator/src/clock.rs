//! Shows virtual time to engines: the paused time of the runtime, and a wall clock that faults set.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use taskyard_core::Timestamp;
use taskyard_engine::Clock;
use tokio::time::Instant;

/// The clock of one simulated server.
pub struct SimulatedClock {
    started: Instant,
    start: Timestamp,
    ahead_micros: AtomicI64,
    watchers: Mutex<Vec<Waker>>,
}

impl SimulatedClock {
    /// A clock that shows `start` at the moment `started` of the runtime.
    pub fn new(started: Instant, start: Timestamp) -> Self {
        SimulatedClock {
            started,
            start,
            ahead_micros: AtomicI64::new(0),
            watchers: Mutex::default(),
        }
    }

    /// Sets the wall clock forward or, if negative, back.
    pub fn step(&self, micros: i64) {
        self.ahead_micros.fetch_add(micros, Ordering::Relaxed);
        for watcher in self.watchers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            watcher.wake_by_ref();
        }
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        self.start.moved(self.started.elapsed().as_micros() as i64)
    }

    fn wall_ahead(&self) -> i64 {
        self.ahead_micros.load(Ordering::Relaxed)
    }

    fn sleep_max(&self, until: Timestamp) -> Option<Duration> {
        Some(Duration::from(until.since(self.now())))
    }

    fn watch(&self, waker: Waker) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
    }
}

//! The clock of workers: the virtual time of the run, which does not reach a process that is frozen.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use taskyard_core::Timestamp;
use taskyard_worker::{BoxFuture, Timer};
use tokio::time::Instant;

use crate::effects::{FaultName, count_effect};

/// Stops the processes of a worker for a while: their timers do not end, and nothing arrives.
#[derive(Debug, Default)]
pub struct Freezer(Mutex<FreezerState>);

#[derive(Debug, Default)]
struct FreezerState {
    /// How many faults freeze it.
    count: u32,
    since: Option<Instant>,
    total: Duration,
    waiting: Vec<Waker>,
}

impl Freezer {
    fn state(&self) -> MutexGuard<'_, FreezerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Freezes the processes, or lets them go on.
    pub fn freeze(&self, begins: bool) {
        let mut state = self.state();
        if begins {
            state.count += 1;
            state.since.get_or_insert_with(Instant::now);
            return;
        }
        state.count -= 1;
        if state.count == 0 {
            let lasted = state.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            state.total += lasted;
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// Whether the processes are frozen; the waker is woken when they go on.
    pub fn holds(&self, waker: Option<&Waker>) -> bool {
        let mut state = self.state();
        if state.count > 0 {
            count_effect(FaultName::FreezeWorker);
            state.waiting.extend(waker.cloned());
        }
        state.count > 0
    }

    /// Waits until the processes go on.
    pub async fn pass(&self) {
        poll_fn(|cx| match self.holds(Some(cx.waker())) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }

    /// For how long the processes were frozen so far.
    pub fn total(&self) -> Duration {
        let state = self.state();
        state.total + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// The virtual time as workers and managers see it.
#[derive(Clone)]
pub struct SimulatedTimer {
    started: Instant,
    start: Timestamp,
    pub freezer: Arc<Freezer>,
}

impl SimulatedTimer {
    /// A clock that shows `start` now.
    pub fn new(start: Timestamp) -> Self {
        SimulatedTimer { started: Instant::now(), start, freezer: Arc::default() }
    }

    /// The same clock for a worker that freezes for itself.
    pub fn of_worker(&self) -> Self {
        SimulatedTimer { freezer: Arc::default(), ..self.clone() }
    }

    /// Waits until a moment, and while the process is frozen.
    pub async fn wait_until(&self, until: Instant) {
        tokio::time::sleep_until(until).await;
        self.freezer.pass().await;
    }
}

impl Timer for SimulatedTimer {
    fn now(&self) -> Timestamp {
        self.start.moved(self.started.elapsed().as_micros() as i64)
    }

    fn sleep_until(&self, moment: Timestamp) -> BoxFuture<'_, ()> {
        let until = Instant::now() + Duration::from(moment.since(self.now()));
        Box::pin(self.wait_until(until))
    }
}

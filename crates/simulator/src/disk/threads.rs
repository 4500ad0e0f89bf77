//! Runs the background work of a store as steps of the one thread of a simulation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_store_sqlite::{BackgroundThread, BackgroundWork};
use tokio::sync::Notify;

/// The simulated threads of one store.
#[derive(Clone, Default)]
pub(super) struct Threads {
    slots: Arc<Mutex<Vec<Arc<Slot>>>>,
    /// Notified when a thread has something to do.
    signaled: Arc<Notify>,
}

/// A simulated thread.
struct Slot {
    name: String,
    state: Mutex<SlotState>,
    signaled: Arc<Notify>,
}

struct SlotState {
    /// `None` while it is stepped, and after its end.
    work: Option<Box<dyn BackgroundWork>>,
    /// When the next step is due.
    due: Option<Duration>,
    is_signaled: bool,
    /// When a step ends that has begun, on a slow disk.
    ends: Option<Duration>,
}

impl Threads {
    pub fn spawn(&self, name: &str, work: Box<dyn BackgroundWork>) -> Box<dyn BackgroundThread> {
        let state = SlotState { work: Some(work), due: None, is_signaled: false, ends: None };
        let slot = Arc::new(Slot {
            name: name.to_owned(),
            state: Mutex::new(state),
            signaled: self.signaled.clone(),
        });
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).push(slot.clone());
        Box::new(SimulatedThread(slot))
    }

    /// Begins the step of every thread that has something to do now, which takes as long as the disk needs, and ends those that are over.
    /// Returns when there is more to do.
    pub fn step(&self, now: Duration, delay: impl Fn() -> Duration) -> Option<Duration> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner).clone();
        slots.iter().for_each(|slot| slot.step_if_due(now, &delay));
        slots.iter().filter_map(|slot| slot.next(now)).min()
    }

    /// Ends all threads where they are, with the process. What waits for them learns it.
    pub fn end(&self) {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Dropped without a lock: the work of one thread may own another thread.
        let work: Vec<_> = slots.iter().filter_map(|slot| slot.lock().work.take()).collect();
        drop(work);
    }

    /// Resolves when a thread was signaled.
    pub async fn signaled(&self) {
        self.signaled.notified().await;
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").finish_non_exhaustive()
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, now: Duration) -> Option<Duration> {
        let state = self.lock();
        state.work.as_ref()?;
        let due = if state.is_signaled { Some(now) } else { state.due };
        state.ends.or(due)
    }

    fn step_if_due(&self, now: Duration, delay: impl Fn() -> Duration) {
        if self.next(now).is_none_or(|due| due > now) {
            return;
        }
        let ends = *self.lock().ends.get_or_insert_with(|| now + delay());
        if ends <= now {
            self.step(now);
        }
    }

    /// Runs one step, during which others may signal this thread.
    fn step(&self, now: Duration) {
        let mut state = self.lock();
        (state.is_signaled, state.ends) = (false, None);
        let Some(mut work) = state.work.take() else { return };
        drop(state);
        let wait = work.step();
        let mut state = self.lock();
        state.due = wait.map(|wait| now + wait);
        state.work = Some(work);
    }
}

struct SimulatedThread(Arc<Slot>);

impl BackgroundThread for SimulatedThread {
    fn signal(&self) {
        self.0.lock().is_signaled = true;
        self.0.signaled.notify_one();
    }

    fn assist(&self) {
        if self.0.lock().is_signaled {
            self.0.step(Duration::ZERO);
        }
    }

    fn end(&mut self) {
        self.0.step(Duration::ZERO);
        drop(self.0.lock().work.take());
    }
}

impl Drop for SimulatedThread {
    fn drop(&mut self) {
        drop(self.0.lock().work.take());
        self.0.signaled.notify_one();
    }
}

impl std::fmt::Debug for SimulatedThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SimulatedThread").field(&self.0.name).finish()
    }
}

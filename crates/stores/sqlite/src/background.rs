//! Runs work of the store beside the writer, step by step.

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Work that is done step by step.
pub trait BackgroundWork: Send + 'static {
    /// Does what is due, and returns how long the next step can wait: `Some(0)` if more is due, `None` if a signal begins it.
    fn step(&mut self) -> Option<Duration>;
}

/// What does background work.
pub trait BackgroundThread: Debug + Send + Sync {
    /// Begins the next step at once.
    fn signal(&self);

    /// Does what is due, if the caller must do it itself: a simulated thread does not go on while the caller waits for it.
    fn assist(&self) {}

    /// Ends the work after one more step. Later calls do nothing.
    fn end(&mut self);
}

/// A thread of the operating system.
#[derive(Debug)]
pub(super) struct SystemThread {
    shared: Arc<SharedSignal>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct SharedSignal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SignalState {
    is_signaled: bool,
    is_ending: bool,
}

impl SystemThread {
    pub fn start(name: &str, mut work: Box<dyn BackgroundWork>) -> io::Result<SystemThread> {
        let shared = Arc::new(SharedSignal::default());
        let thread_shared = shared.clone();
        let run = move || {
            let mut wait = None;
            while thread_shared.wait(wait) {
                wait = work.step();
            }
            work.step();
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(SystemThread { shared, thread: Some(thread) })
    }
}

impl BackgroundThread for SystemThread {
    fn signal(&self) {
        self.shared.lock().is_signaled = true;
        self.shared.changed.notify_one();
    }

    fn end(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl Drop for SystemThread {
    fn drop(&mut self) {
        self.end();
    }
}

impl SharedSignal {
    /// Waits for a signal, at most this long; returns false when the thread must end.
    fn wait(&self, at_most: Option<Duration>) -> bool {
        let mut state = self.lock();
        let until = at_most.and_then(|wait| Instant::now().checked_add(wait));
        loop {
            if state.is_ending {
                return false;
            }
            if std::mem::take(&mut state.is_signaled) {
                return true;
            }
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return true;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, SignalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Reports each of its steps; the first one asks for a wait.
    struct ReportingWork {
        steps: Sender<()>,
        wait: Option<Duration>,
    }

    impl BackgroundWork for ReportingWork {
        fn step(&mut self) -> Option<Duration> {
            _ = self.steps.send(());
            self.wait.take()
        }
    }

    fn start(wait: Option<Duration>) -> (SystemThread, Receiver<()>) {
        let (steps, done) = channel();
        let work = Box::new(ReportingWork { steps, wait });
        (SystemThread::start("taskyard-test", work).expect("a thread"), done)
    }

    #[test]
    fn a_signal_begins_a_step_and_the_end_is_one_more() {
        let (mut thread, done) = start(None);
        for _ in 0..3 {
            thread.signal();
            done.recv().expect("a step");
        }
        thread.end();
        done.recv().expect("the last step");
        thread.signal();
        thread.end();
        assert!(done.recv().is_err(), "the thread has ended");
    }

    #[test]
    fn a_step_that_is_due_needs_no_signal() {
        let (thread, done) = start(Some(Duration::ZERO));
        thread.signal();
        for _ in 0..2 {
            done.recv().expect("a step");
        }
        drop(thread);
        done.recv().expect("the last step");
        assert!(done.recv().is_err(), "it waited for a signal");
    }
}

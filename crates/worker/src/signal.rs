//! A signal that is raised once and wakes all that wait for it, in the order in which they began to wait.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A signal that is raised once.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    raised: AtomicBool,
    waiting: Notify,
}

impl Signal {
    /// Raises the signal; again, it does nothing.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.waiting.notify_waiters();
    }

    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Completes when the signal is raised.
    pub async fn raised(&self) {
        let mut waiting = std::pin::pin!(self.waiting.notified());
        // Registered before the check, so that a signal in between is not missed.
        waiting.as_mut().enable();
        if !self.is_raised() {
            waiting.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn those_that_wait_are_woken_in_their_order() {
        let (signal, woken) = (Arc::new(Signal::default()), Arc::new(Mutex::new(Vec::new())));
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..20 {
            let (signal, woken) = (signal.clone(), woken.clone());
            waiting.spawn(async move {
                signal.raised().await;
                woken.lock().unwrap().push(number);
            });
        }
        tokio::task::yield_now().await;
        assert!(!signal.is_raised() && woken.lock().unwrap().is_empty());
        signal.raise();
        waiting.join_all().await;
        assert_eq!(*woken.lock().unwrap(), (0..20).collect::<Vec<_>>());
        signal.raised().await;
    }
}

//! A timer for the heads of requests that is cheap to set for every request.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use hyper::rt::{Sleep, Timer};
use tokio::time::sleep_until;

/// The timers of one connection, of which only one is set in Tokio. The HTTP library makes a new timer for every request and
/// drops it when the head has arrived. The one in Tokio stays set when a request arrives in time, and is moved when it ends before
/// the latest deadline.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadTimer(Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>);

impl Timer for HeadTimer {
    fn sleep(&self, duration: std::time::Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(HeadSleep { timer: self.clone(), deadline: deadline.into() })
    }

    fn now(&self) -> Instant {
        // The time of Tokio may be a simulated one.
        tokio::time::Instant::now().into()
    }
}

/// One deadline.
struct HeadSleep {
    timer: HeadTimer,
    deadline: tokio::time::Instant,
}

impl Sleep for HeadSleep {}

impl Future for HeadSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut timer = self.timer.0.lock().unwrap_or_else(PoisonError::into_inner);
        let set = timer.get_or_insert_with(|| Box::pin(sleep_until(self.deadline)));
        if set.deadline() > self.deadline {
            set.as_mut().reset(self.deadline);
        }
        while set.as_mut().poll(cx).is_ready() {
            if set.deadline() >= self.deadline {
                return Poll::Ready(());
            }
            set.as_mut().reset(self.deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::poll;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    // The deadline of an earlier request would end the connection in the middle of a later one, or a later one would have no end.
    #[tokio::test]
    async fn each_deadline_counts_for_its_own_request() {
        let timer = HeadTimer::default();
        let mut first = timer.sleep(HOUR);
        assert!(poll!(&mut first).is_pending());
        drop(first);
        timer.sleep_until(timer.now()).await;
        let mut later = timer.sleep(HOUR);
        assert!(poll!(&mut later).is_pending(), "the timer that has ended is set again");
        drop(later);
        timer.sleep_until(timer.now()).await;
    }
}

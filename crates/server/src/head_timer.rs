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

    use tokio::time::timeout;

    use super::*;

    // The timer of an earlier request ended the connection in the middle of a later one, or the later one had no end.
    #[tokio::test(start_paused = true)]
    async fn each_deadline_counts_for_its_own_request() {
        let timer = HeadTimer::default();
        let second = Duration::from_secs(1);
        let (begin, mut ends) = (timer.now(), Vec::new());
        let mut first = timer.sleep_until(begin + 10 * second);
        assert!(timeout(4 * second, &mut first).await.is_err());
        drop(first);
        for deadline in [20, 15, 12, 30] {
            timer.sleep_until(begin + deadline * second).await;
            ends.push((timer.now() - begin).as_secs());
        }
        assert_eq!(ends, [20, 20, 20, 30], "a deadline in the past is over at once");
        let mut short = timer.sleep(60 * second);
        assert!(timeout(second, &mut short).await.is_err());
        drop(short);
        timer.sleep(5 * second).await;
        assert_eq!((timer.now() - begin).as_secs(), 36, "an earlier deadline moves the timer");
    }
}

//! Waits for work and for the store: on the loop's own thread, or as a future that its owner polls.
//!
//! The loop is one asynchronous function. On its own thread every wait blocks, so that the first poll
//! of that function is its whole life. Stepped by its owner, every wait suspends it instead: such a loop neither
//! blocks nor spins, and it knows no time but that of its clock and of the runtime that polls it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use taskyard_core::Timestamp;

use crate::inbox::{Inbox, Work};
use crate::request::Job;
use crate::timeline::Timeline;

/// How the loop waits.
pub(crate) enum LoopWaits {
    /// It blocks its thread, which this waker unparks.
    Blocks(Waker),
    /// It suspends its future.
    Suspends,
}

impl LoopWaits {
    /// The waits of a loop that has the current thread for itself.
    pub fn blocking() -> Self {
        LoopWaits::Blocks(Waker::from(Arc::new(Unpark(thread::current()))))
    }

    /// Runs a future of the store to completion. Those of embedded stores are ready at once.
    pub async fn complete<F: Future>(&self, future: F) -> F::Output {
        match self {
            LoopWaits::Blocks(waker) => block_on(future, waker),
            LoopWaits::Suspends => future.await,
        }
    }

    /// Waits until there is something to do, at most until `until`, and picks it up. `spare` is an empty queue for reuse.
    pub async fn gather(
        &self,
        inbox: &Inbox,
        timeline: &Timeline,
        until: Option<Timestamp>,
        spare: VecDeque<Job>,
    ) -> Work {
        if let LoopWaits::Suspends = self {
            while let Some(sleep_max) = inbox.idle_for(timeline, until) {
                let mut timer = sleep_max.map(|sleep| Box::pin(tokio::time::sleep(sleep)));
                poll_fn(|cx| {
                    let is_over =
                        timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready());
                    if is_over { Poll::Ready(()) } else { inbox.poll_arrival(cx) }
                })
                .await;
            }
        }
        // A suspended loop finds something to do here, so it does not wait.
        inbox.gather(timeline, until, spare)
    }

    /// Waits until the inbox is woken, or this many commands are queued.
    pub async fn wait(&self, inbox: &Inbox, commands: usize) {
        match self {
            LoopWaits::Blocks(_) => inbox.wait(commands),
            LoopWaits::Suspends => poll_fn(|cx| inbox.poll_wait(cx, commands)).await,
        }
    }
}

/// The event loop of an engine without a thread of its own; see [`Engine::start_stepped`](crate::Engine::start_stepped).
///
/// A poll runs turns until there is nothing to do. If it is dropped before it is ready, its engine answers as after a crash of
/// the loop.
#[must_use = "the engine does nothing until this is polled"]
pub struct EngineTask {
    running: Pin<Box<dyn Future<Output = ()>>>,
}

impl EngineTask {
    /// The task of a loop.
    pub(crate) fn new(running: impl Future<Output = ()> + 'static) -> Self {
        EngineTask { running: Box::pin(running) }
    }
}

impl Future for EngineTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.running.as_mut().poll(cx)
    }
}

/// Runs a future to completion on this thread, which its waker unparks.
pub(crate) fn block_on<F: Future>(future: F, waker: &Waker) -> F::Output {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

//! The conformance suite that every store, and every server in front of one, must pass.
//!
//! A case is written over [`Execute`] and a [`Harness`], so the same cases run on a store itself and
//! through a live server. [`conformance_suite!`] lists them. Beside the cases
//! there are [`model`], which compares random commands with the core's machine, [`audit`], which
//! checks the history that many concurrent clients recorded, [`random`], which gives random tests their seeds, and [`skipped`], which
//! counts the tests that need what is not there.
//!
//! Nothing here sleeps or reads a clock: the tests advance a manual clock.
//!
//! [`conformance_suite!`]: crate::conformance_suite

pub mod boxed;
mod cases;
mod commands;
mod harness;

pub mod audit;
pub mod model;
pub mod random;
pub mod semaphores;
pub mod skipped;
pub mod worker_addresses;

// One file per verb, then one file per topic that concerns several verbs.
pub mod ack;
pub mod bury;
pub mod delete;
pub mod done;
pub mod drop;
pub mod fail;
pub mod kick;
pub mod naming;
pub mod peek;
pub mod put;
pub mod release;
pub mod release_all;
pub mod take;
pub mod touch;
pub mod truncate;
pub mod tubes;

pub mod attempts;
pub mod batch;
pub mod capacity;
pub mod delay;
pub mod keys;
pub mod limits;
pub mod list;
pub mod pause;
pub mod positions;
pub mod rate;
pub mod restart;
pub mod retry;
mod schedule_commands;
pub mod schedules;
pub mod search;
pub mod sessions;
pub mod stats;
pub mod subqueue;
pub mod ttl;
pub mod ttr;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use taskyard_core::{Execute, Span, Timestamp, TubeName};

use taskyard_store::Capabilities;

pub use harness::StoreHarness;

/// A queue under test: it runs commands, has a manual clock, and can be restarted.
///
/// Each case gets a queue of its own, without tubes and sessions.
pub trait Harness: Execute + Sized {
    /// What the store behind it can do.
    fn capabilities(&self) -> Capabilities;

    /// The moment at which the next command runs.
    fn now(&self) -> Timestamp;

    /// Advances the clock. Everything that is due then has happened when the next command runs.
    fn advance(&self, span: Span);

    /// Advances the clock without a tick before the next batch, so that the verbs must check the
    /// deadlines themselves. Where ticks cannot be suppressed this is [`Harness::advance`].
    fn advance_unticked(&self, span: Span) {
        self.advance(span);
    }

    /// Gives this random number to all ticks from now on. False where a server draws a number for each.
    fn seed_ticks(&self, _seed: u32) -> bool {
        false
    }

    /// The deliveries that failed since the last call without a command for them, by tube, as the effects of batches
    /// report them. `None` where effects cannot be seen.
    fn take_failures(&self) -> Option<BTreeMap<TubeName, u64>> {
        None
    }

    /// Stops the queue cleanly and starts it again on the same data.
    fn restart(self) -> impl Future<Output = Self> + Send;
}

/// Runs a future to completion on this thread, without a runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

//! Reports the end of the loop, by a stop or by a panic, so that no caller waits forever.

use std::sync::Arc;

use taskyard_core::Result;
use tokio::sync::watch;

use crate::inbox::Inbox;
use crate::reply::engine_stopped;

/// The outcome of the loop: `None` while it runs.
pub(crate) type LoopOutcome = watch::Receiver<Option<Result<()>>>;

/// Reports when it is dropped that the loop has ended.
pub(crate) struct ShutdownNotifier {
    inbox: Arc<Inbox>,
    ended: watch::Sender<Option<Result<()>>>,
    outcome: Option<Result<()>>,
}

impl ShutdownNotifier {
    /// Creates the notifier for the loop of this inbox, and the receiver of its outcome.
    pub fn new(inbox: Arc<Inbox>) -> (Self, LoopOutcome) {
        let (ended, receiver) = watch::channel(None);
        (ShutdownNotifier { inbox, ended, outcome: None }, receiver)
    }

    /// Records that the loop ended by itself, and whether the store was closed without error.
    pub fn orderly(mut self, outcome: Result<()>) {
        self.outcome = Some(outcome);
    }
}

impl Drop for ShutdownNotifier {
    fn drop(&mut self) {
        self.inbox.end(self.outcome.is_some());
        let outcome = self.outcome.take().unwrap_or_else(|| Err(engine_stopped()));
        self.ended.send_replace(Some(outcome));
    }
}

/// Waits for the end of the loop and returns its outcome.
pub(crate) async fn outcome_of(mut ended: LoopOutcome) -> Result<()> {
    match ended.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or(Ok(())),
        Err(_) => Err(engine_stopped()),
    }
}

//! How the loop ends: orderly, or by a panic that nobody may wait for in vain.

use std::sync::Arc;

use taskyard_core::Result;
use tokio::sync::watch;

use crate::answer::engine_stopped;
use crate::inbox::Inbox;

/// What is known of the end: `None` while the loop runs.
pub(crate) type Ended = watch::Receiver<Option<Result<()>>>;

/// Tells everybody that the loop has ended, however it ended.
pub(crate) struct Ending {
    inbox: Arc<Inbox>,
    ended: watch::Sender<Option<Result<()>>>,
    outcome: Option<Result<()>>,
}

impl Ending {
    /// The end of the loop that serves this inbox, and where to learn of it.
    pub fn new(inbox: Arc<Inbox>) -> (Self, Ended) {
        let (ended, receiver) = watch::channel(None);
        (Ending { inbox, ended, outcome: None }, receiver)
    }

    /// Says that the loop ended by itself, and whether the store closed well.
    pub fn orderly(mut self, outcome: Result<()>) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.inbox.end(self.outcome.is_some());
        let outcome = self.outcome.take().unwrap_or_else(|| Err(engine_stopped()));
        self.ended.send_replace(Some(outcome));
    }
}

/// Waits for the end and says how it was.
pub(crate) async fn end_of(mut ended: Ended) -> Result<()> {
    match ended.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or(Ok(())),
        Err(_) => Err(engine_stopped()),
    }
}

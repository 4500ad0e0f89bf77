//! Sends commands to the server and retries while it is unreachable.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use taskyard::{Http, HttpError};
use taskyard_core::{Command, Reply};
use taskyard_worker::TubeMetrics;

use crate::output::note;

/// The first pause before a retry; each further one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A server that may be unreachable for a while.
pub struct Server {
    http: Http,
    /// Whether a server that has never answered is retried too.
    waits_for_first: bool,
    reached: Cell<bool>,
    unreachable: Cell<bool>,
    metrics: Arc<TubeMetrics>,
}

/// A reply, and whether the command was sent before without getting one.
pub struct RetriedReply {
    pub reply: Reply,
    pub retried: bool,
}

impl Server {
    /// A server that has not been contacted yet.
    pub fn new(http: Http, waits_for_first: bool, metrics: Arc<TubeMetrics>) -> Self {
        let (reached, unreachable) = (Cell::new(false), Cell::new(false));
        Server { http, waits_for_first, reached, unreachable, metrics }
    }

    /// Sends a command until there is a reply, with growing pauses. Prints once that the server is unreachable and once
    /// that it answers again.
    pub async fn execute(&self, command: Command) -> Result<RetriedReply, HttpError> {
        self.execute_watched(command, &Cell::new(false)).await
    }

    /// The same; `is_unanswered` is set after the first time that the command got no reply.
    pub async fn execute_watched(
        &self,
        command: Command,
        is_unanswered: &Cell<bool>,
    ) -> Result<RetriedReply, HttpError> {
        let mut pause = PAUSE_FIRST;
        loop {
            match self.http.execute_one(command.clone()).await {
                Err(error) if self.may_recover(&error) => self.note_unreachable(&error),
                answer => {
                    self.note_answer();
                    return answer
                        .map(|reply| RetriedReply { reply, retried: is_unanswered.get() });
                }
            }
            is_unanswered.set(true);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Sends a command once, without retries.
    pub async fn execute_once(&self, command: Command) -> Result<Reply, HttpError> {
        self.http.execute_one(command).await
    }

    fn may_recover(&self, error: &HttpError) -> bool {
        let known = self.reached.get();
        match error {
            HttpError::Unreachable { .. } => known || self.waits_for_first,
            // A proxy answers in place of an unreachable server.
            HttpError::NotTaskyard { .. } => known,
            HttpError::Refused { error, .. } => error.is_temporary(),
            _ => false,
        }
    }

    fn note_unreachable(&self, error: &HttpError) {
        self.metrics.store_error();
        if !self.unreachable.replace(true) {
            note(format!("{error}; retrying until the server answers"));
        }
    }

    fn note_answer(&self) {
        self.reached.set(true);
        if self.unreachable.replace(false) {
            note(format!("{} answers again", self.http.url()));
        }
    }
}

//! The server as a worker needs it: away for a while is no reason to give up.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use taskyard::{Http, HttpError};
use taskyard_core::{Command, Reply};
use taskyard_worker::TubeMetrics;

use crate::output::note;

/// The first pause before asking again; each one is twice as long as the one before.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A server that may be away for a while.
pub struct Server {
    http: Http,
    /// Whether a server that never answered is waited for too.
    waits_for_first: bool,
    reached: Cell<bool>,
    away: Cell<bool>,
    metrics: Arc<TubeMetrics>,
}

/// A reply, and whether the same thing was asked before without getting one.
pub struct Answered {
    pub reply: Reply,
    pub again: bool,
}

impl Server {
    /// Not yet spoken to.
    pub fn new(http: Http, waits_for_first: bool, metrics: Arc<TubeMetrics>) -> Self {
        let (reached, away) = (Cell::new(false), Cell::new(false));
        Server { http, waits_for_first, reached, away, metrics }
    }

    /// Asks until there is an answer, with growing pauses. Says once that the server is away and
    /// once that it is back.
    pub async fn ask(&self, command: Command) -> Result<Answered, HttpError> {
        let mut pause = PAUSE_FIRST;
        let mut again = false;
        loop {
            match self.http.ask(command.clone()).await {
                Err(error) if self.will_come_back(&error) => self.note_away(&error),
                answer => {
                    self.note_here();
                    return answer.map(|reply| Answered { reply, again });
                }
            }
            again = true;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Whether the latest question got no answer.
    pub fn is_away(&self) -> bool {
        self.away.get()
    }

    /// Asks one time only.
    pub async fn ask_once(&self, command: Command) -> Result<Reply, HttpError> {
        self.http.ask(command).await
    }

    fn will_come_back(&self, error: &HttpError) -> bool {
        let known = self.reached.get();
        match error {
            HttpError::Unreachable { .. } => known || self.waits_for_first,
            // What stands before a server answers in its place while it is away.
            HttpError::NotTaskyard { .. } => known,
            HttpError::Refused { error, .. } => error.is_passing(),
            _ => false,
        }
    }

    fn note_away(&self, error: &HttpError) {
        self.metrics.store_error();
        if !self.away.replace(true) {
            note(format!("the server is away ({error}); trying again until it is back"));
        }
    }

    fn note_here(&self) {
        self.reached.set(true);
        if self.away.replace(false) {
            note(format!("{} is back", self.http.url()));
        }
    }
}

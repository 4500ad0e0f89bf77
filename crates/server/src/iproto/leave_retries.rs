//! Retries to leave sessions of closed connections. Their tasks must return to the tubes even if
//! the store is busy, or its disk full, when the connection ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{Command, Error, Execute, SessionId};
use taskyard_engine::Engine;
use tokio::time::sleep;

use super::server::IprotoServer;

/// The pause before the next attempt: the first one, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How many sessions are left with one call of the engine, so that the call stays within its
/// limits.
const TOGETHER_MAX: usize = 1_000;

/// Sessions of all connections that could not be left yet.
#[derive(Default)]
pub(crate) struct LeaveRetries {
    pending: Mutex<PendingLeaves>,
}

#[derive(Default)]
struct PendingLeaves {
    sessions: Vec<SessionId>,
    /// Whether a task that retries is running.
    running: bool,
}

impl LeaveRetries {
    fn lock(&self) -> MutexGuard<'_, PendingLeaves> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IprotoServer {
    /// Leaves sessions: their tasks return to the tubes, unless another connection is in the
    /// session. What is refused is retried later.
    pub async fn leave(self: &Arc<Self>, sessions: Vec<SessionId>) {
        let left_over = leave_now(&self.engine, sessions).await;
        self.leave_later(left_over);
    }

    /// Leaves sessions after a pause, and again until it is done.
    pub fn leave_later(self: &Arc<Self>, sessions: Vec<SessionId>) {
        if sessions.is_empty() {
            return;
        }
        let mut pending = self.leave_retries.lock();
        pending.sessions.extend(sessions);
        if !std::mem::replace(&mut pending.running, true) {
            tokio::spawn(retry_leaves(self.clone()));
        }
    }
}

/// Retries until no session is left over.
async fn retry_leaves(server: Arc<IprotoServer>) {
    tracing::warn!("cannot leave sessions of closed iproto connections; retrying");
    let mut pause = PAUSE_MIN;
    loop {
        sleep(pause).await;
        let sessions = std::mem::take(&mut server.leave_retries.lock().sessions);
        let tried = sessions.len();
        let left_over = leave_now(&server.engine, sessions).await;
        pause = if left_over.len() < tried { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
        let mut pending = server.leave_retries.lock();
        pending.sessions.extend(left_over);
        if pending.sessions.is_empty() {
            pending.running = false;
            return;
        }
    }
}

/// Leaves sessions; returns those for which it was refused for a temporary reason.
async fn leave_now(engine: &Engine, sessions: Vec<SessionId>) -> Vec<SessionId> {
    let mut left_over = Vec::new();
    for sessions in sessions.chunks(TOGETHER_MAX) {
        let commands = sessions.iter().map(|session| Command::LeaveSession { session: *session });
        let replies = engine.execute(commands.collect()).await;
        let refused = sessions.iter().zip(replies).filter(|(_, reply)| match reply {
            Ok(_) => false,
            Err(error) => is_temporary(error),
        });
        left_over.extend(refused.map(|(session, _)| *session));
    }
    left_over
}

/// Whether leaving a session should be retried after this error. An unknown session holds nothing,
/// and a server that restarts gives back all tasks.
pub(super) fn is_temporary(error: &Error) -> bool {
    !matches!(error, Error::SessionUnknown(_) | Error::ShuttingDown)
}

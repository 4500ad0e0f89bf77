//! Sessions that could not be left yet. Tasks must not stay with somebody who is gone because the
//! queue is busy, or its disk full, at the moment they go.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{Command, Error, Execute, SessionId};
use taskyard_engine::Engine;
use tokio::time::sleep;

use super::face::Face;

/// How long to wait before sessions are left once more: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How many sessions are left with one call of the engine, so that it is never too much for it.
const TOGETHER_MAX: usize = 1_000;

/// Sessions that could not be left yet, of all connections.
#[derive(Default)]
pub(crate) struct Leaving {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    sessions: Vec<SessionId>,
    /// Whether somebody sees to them.
    attended: bool,
}

impl Leaving {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Face {
    /// Leaves sessions: what they hold returns to its tubes, if nobody else is in them. What is refused
    /// is tried again later.
    pub async fn leave(self: &Arc<Self>, sessions: Vec<SessionId>) {
        let left_over = leave_now(&self.engine, sessions).await;
        self.leave_later(left_over);
    }

    /// Leaves sessions a little later, and again until it is done.
    pub fn leave_later(self: &Arc<Self>, sessions: Vec<SessionId>) {
        if sessions.is_empty() {
            return;
        }
        let mut waiting = self.leaving.lock();
        waiting.sessions.extend(sessions);
        if !std::mem::replace(&mut waiting.attended, true) {
            tokio::spawn(keep_leaving(self.clone()));
        }
    }
}

/// Tries until nothing is left over.
async fn keep_leaving(face: Arc<Face>) {
    tracing::warn!("sessions of iproto clients that are gone could not be left; trying again");
    let mut pause = PAUSE_MIN;
    loop {
        sleep(pause).await;
        let sessions = std::mem::take(&mut face.leaving.lock().sessions);
        let tried = sessions.len();
        let left_over = leave_now(&face.engine, sessions).await;
        pause = if left_over.len() < tried { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
        let mut waiting = face.leaving.lock();
        waiting.sessions.extend(left_over);
        if waiting.sessions.is_empty() {
            waiting.attended = false;
            return;
        }
    }
}

/// Leaves sessions; answers those for which that was refused though it may be granted later.
async fn leave_now(engine: &Engine, sessions: Vec<SessionId>) -> Vec<SessionId> {
    let mut left_over = Vec::new();
    for sessions in sessions.chunks(TOGETHER_MAX) {
        let commands = sessions.iter().map(|session| Command::LeaveSession { session: *session });
        let replies = engine.execute(commands.collect()).await;
        let refused = sessions.iter().zip(replies).filter(|(_, reply)| match reply {
            Ok(_) => false,
            Err(error) => may_pass(error),
        });
        left_over.extend(refused.map(|(session, _)| *session));
    }
    left_over
}

/// Whether a session that was not left because of this is still to be left. One that is unknown has
/// nothing, and a server that starts again gives back everything.
pub(super) fn may_pass(error: &Error) -> bool {
    !matches!(error, Error::SessionUnknown(_) | Error::ShuttingDown)
}

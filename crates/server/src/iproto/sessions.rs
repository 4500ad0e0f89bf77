//! The queue sessions of one connection.

use std::time::Duration;

use taskyard_core::{Command, Error, Execute, Reply, Result as CoreResult, SessionId};
use taskyard_engine::Engine;
use tokio::time::sleep;

use super::batch::Joins;

/// Most sessions that one connection may join by native commands.
const NATIVE_MAX: usize = 1_000;
/// How long to wait before a session is left once more when too much waits before the engine.
const BREATHER: Duration = Duration::from_millis(100);

/// The queue sessions of one connection: its own, and those joined by native commands.
pub(super) struct Sessions {
    /// Who takes. Nobody else knows this identity before it is told.
    current: SessionId,
    /// Whether the queue knows of it.
    joined: bool,
    /// What else is to be left with the connection.
    native: Vec<SessionId>,
}

impl Sessions {
    /// A session of this identity, which the queue need not know yet.
    pub fn new(own: SessionId) -> Self {
        Sessions { current: own, joined: false, native: Vec::new() }
    }

    /// Who takes and finishes.
    pub fn current(&self) -> SessionId {
        self.current
    }

    /// Whether the queue knows of the session.
    pub fn is_joined(&self) -> bool {
        self.joined
    }

    /// The command that tells the queue of the session, the first time.
    pub fn join(&mut self) -> Option<Command> {
        if self.joined {
            return None;
        }
        self.joined = true;
        Some(Command::JoinSession { session: self.current, create: true })
    }

    /// Notes that the queue could not be told of this session.
    pub fn not_joined(&mut self, session: SessionId) {
        if self.current == session {
            self.joined = false;
        }
    }

    /// Goes over to a session that was joined; answers the one to be left.
    pub fn switch(&mut self, to: SessionId) -> Option<SessionId> {
        let before = std::mem::replace(&mut self.current, to);
        std::mem::replace(&mut self.joined, true).then_some(before)
    }

    /// Notes that a session is still to be left, at the latest with the connection.
    pub fn leave_later(&mut self, session: SessionId) {
        self.native.push(session);
    }

    /// Whether this many more sessions may be joined by native commands.
    pub fn has_room(&self, joins: usize) -> bool {
        self.native.len() + joins <= NATIVE_MAX
    }

    /// Notes what native commands did.
    pub fn note(&mut self, joins: &[Joins], replies: &[CoreResult<Reply>]) {
        for (joins, reply) in joins.iter().zip(replies) {
            match (joins, reply) {
                (Joins::Join(session), Ok(_)) => self.native.push(*session),
                (Joins::Leave(session), Ok(_)) => {
                    if let Some(place) = self.native.iter().position(|known| known == session) {
                        self.native.swap_remove(place);
                    }
                }
                _ => {}
            }
        }
    }

    /// Leaves them all: what they hold returns to its tubes, if nobody else is in them.
    pub async fn leave(self, engine: &Engine) {
        let own = self.joined.then_some(self.current);
        let mut left: Vec<_> = own.into_iter().chain(self.native).collect();
        while !left.is_empty() {
            let commands = left.iter().map(|session| Command::LeaveSession { session: *session });
            let replies = engine.execute(commands.collect()).await;
            let mut replies = replies.into_iter();
            // Tasks must not stay with somebody who is gone because the queue is busy.
            left.retain(|_| matches!(replies.next(), Some(Err(Error::Overloaded(_)))));
            if !left.is_empty() {
                sleep(BREATHER).await;
            }
        }
    }
}

//! The queue sessions of one connection.

use std::sync::Arc;

use taskyard_core::{Command, Reply, Result as CoreResult, SessionId};

use super::batch::Joins;
use super::face::Face;

/// Most sessions that one connection may join by native commands.
const NATIVE_MAX: usize = 1_000;

/// The queue sessions of one connection: its own, and those joined by native commands.
pub(super) struct Sessions {
    /// Who takes. Nobody else knows this identity before it is told.
    current: SessionId,
    /// Whether the queue knows of it.
    joined: bool,
    /// How often the queue was told of a session of this connection.
    joins: u32,
    /// What else is to be left with the connection.
    native: Vec<SessionId>,
}

impl Sessions {
    /// A session of this identity, which the queue need not know yet.
    pub fn new(own: SessionId) -> Self {
        Sessions { current: own, joined: false, joins: 0, native: Vec::new() }
    }

    /// Who takes and finishes.
    pub fn current(&self) -> SessionId {
        self.current
    }

    /// Whether the queue knows of the session.
    pub fn is_joined(&self) -> bool {
        self.joined
    }

    /// The command that tells the queue of the session, the first time. It must be sent.
    pub fn join(&mut self) -> Option<Command> {
        if self.joined {
            return None;
        }
        self.joined = true;
        self.joins = self.joins.wrapping_add(1);
        Some(Command::JoinSession { session: self.current, create: true })
    }

    /// Which join was the last.
    pub fn joins(&self) -> u32 {
        self.joins
    }

    /// Notes that the queue does not know this session, which concerns the join of this number: a later one may be under way.
    pub fn not_joined(&mut self, session: SessionId, joins: u32) {
        if self.current == session && self.joins == joins {
            self.joined = false;
        }
    }

    /// Goes over to a session that was joined; answers the one to be left.
    pub fn switch(&mut self, to: SessionId) -> Option<SessionId> {
        let before = std::mem::replace(&mut self.current, to);
        self.joins = self.joins.wrapping_add(1);
        std::mem::replace(&mut self.joined, true).then_some(before)
    }

    /// Whether this many more sessions may be joined by native commands.
    pub fn has_room(&self, joins: usize) -> bool {
        self.native.len() + joins <= NATIVE_MAX
    }

    /// Notes what native commands did. The connection's own session is among those that they may join
    /// once more and leave.
    pub fn note(&mut self, joins: &[Joins], replies: &[CoreResult<Reply>]) {
        for (joins, reply) in joins.iter().zip(replies) {
            match (joins, reply) {
                (Joins::Join(session), Ok(_)) => self.native.push(*session),
                (Joins::Leave(session), Ok(_)) => {
                    if let Some(place) = self.native.iter().position(|known| known == session) {
                        self.native.swap_remove(place);
                    } else {
                        self.not_joined(*session, self.joins);
                    }
                }
                _ => {}
            }
        }
    }

    /// Leaves them all: what they hold returns to its tubes, if nobody else is in them.
    pub async fn leave(self, face: &Arc<Face>) {
        let own = self.joined.then_some(self.current);
        face.leave(own.into_iter().chain(self.native).collect()).await;
    }
}

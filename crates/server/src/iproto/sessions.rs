//! The queue sessions of one connection.

use std::sync::Arc;

use taskyard_core::{Command, Reply, Result as CoreResult, SessionId};

use super::batch::SessionChange;
use super::server::IprotoServer;

/// Most sessions that one connection may join by native commands.
pub(super) const NATIVE_MAX: usize = 1_000;

/// The queue sessions of one connection: its own, and those joined by native commands.
pub(super) struct Sessions {
    /// The session that takes and finishes. Its identity is secret until it is sent to the client.
    current: SessionId,
    /// Whether the store knows it.
    joined: bool,
    /// How often this connection joined a session.
    join_number: u32,
    /// Sessions joined by native commands, to be left with the connection.
    native: Vec<SessionId>,
}

impl Sessions {
    /// A session of this identity, which is not joined yet.
    pub fn new(own: SessionId) -> Self {
        Sessions { current: own, joined: false, join_number: 0, native: Vec::new() }
    }

    /// The session that takes and finishes.
    pub fn current(&self) -> SessionId {
        self.current
    }

    /// Whether this connection has joined the session.
    pub fn has_joined(&self, session: SessionId) -> bool {
        (self.joined && self.current == session) || self.native.contains(&session)
    }

    /// Whether the current session is joined.
    pub fn is_joined(&self) -> bool {
        self.joined
    }

    /// The command that joins the current session, if it is not joined yet. It must be sent.
    pub fn join(&mut self) -> Option<Command> {
        if self.joined {
            return None;
        }
        self.joined = true;
        self.join_number = self.join_number.wrapping_add(1);
        Some(Command::JoinSession { session: self.current, create: true })
    }

    /// The number of the last join.
    pub fn join_number(&self) -> u32 {
        self.join_number
    }

    /// Notes that the join of this number failed or that the store does not know the session any
    /// more. A later join may be in flight.
    pub fn not_joined(&mut self, session: SessionId, join_number: u32) {
        if self.current == session && self.join_number == join_number {
            self.joined = false;
        }
    }

    /// Makes a joined session the current one; returns the session to leave.
    pub fn switch(&mut self, to: SessionId) -> Option<SessionId> {
        let before = std::mem::replace(&mut self.current, to);
        self.join_number = self.join_number.wrapping_add(1);
        std::mem::replace(&mut self.joined, true).then_some(before)
    }

    /// Whether this many more sessions may be joined by native commands.
    pub fn can_join(&self, joins: usize) -> bool {
        self.native.len() + joins <= NATIVE_MAX
    }

    /// Records the effect of native commands. They may also join the session of the connection once
    /// more, and leave it.
    pub fn record(&mut self, changes: &[SessionChange], replies: &[CoreResult<Reply>]) {
        for (change, reply) in changes.iter().zip(replies) {
            match (change, reply) {
                (SessionChange::Join(session), Ok(_)) => self.native.push(*session),
                (SessionChange::Leave(session), Ok(_)) => {
                    if let Some(index) = self.native.iter().position(|known| known == session) {
                        self.native.swap_remove(index);
                    } else {
                        self.not_joined(*session, self.join_number);
                    }
                }
                _ => {}
            }
        }
    }

    /// Leaves all sessions: their tasks return to the tubes, unless another connection is in the
    /// session.
    pub async fn leave(self, server: &Arc<IprotoServer>) {
        let own = self.joined.then_some(self.current);
        server.leave(own.into_iter().chain(self.native).collect()).await;
    }
}

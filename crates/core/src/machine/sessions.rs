//! Begins, shares and ends sessions.

use crate::command::Reply;
use crate::error::{Error, Result};
use crate::journal::Entry;
use crate::session::{Session, SessionId};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

use super::Machine;
use super::finish::ReleaseMode;

impl Machine {
    pub(super) fn check_session(&self, now: Timestamp, id: SessionId) -> Result<()> {
        match self.sessions.get(&id) {
            Some(session) if session.is_alive(now) => Ok(()),
            _ => Err(Error::SessionUnknown(id)),
        }
    }

    pub(super) fn join_session(
        &mut self,
        now: Timestamp,
        id: SessionId,
        create: bool,
    ) -> Result<Reply> {
        if self.check_session(now, id).is_err() {
            if !create {
                return Err(Error::SessionUnknown(id));
            }
            // It has expired, though no tick has processed that yet.
            self.end_session(now, id);
        }
        let mut session = self.sessions.get(&id).cloned().unwrap_or_default();
        session.connections += 1;
        session.ends = None;
        self.set_session(id, Some(session));
        Ok(Reply::Session(id))
    }

    pub(super) fn leave_session(&mut self, now: Timestamp, id: SessionId) -> Result<Reply> {
        self.check_session(now, id)?;
        let mut session = self.sessions.get(&id).cloned().unwrap_or_default();
        session.connections = session.connections.saturating_sub(1);
        if session.connections > 0 {
            self.set_session(id, Some(session));
        } else if self.session_ttr.is_zero() {
            self.end_session(now, id);
        } else {
            session.ends = Some(now + self.session_ttr);
            self.set_session(id, Some(session));
        }
        Ok(Reply::Nothing)
    }

    pub(super) fn configure_sessions(&mut self, ttr: Span) -> Result<Reply> {
        let before = std::mem::replace(&mut self.session_ttr, ttr);
        self.journal.push(|| Entry::SessionTtr { before });
        Ok(Reply::Nothing)
    }

    /// Releases what the session holds and removes it. Returns the number of tasks.
    pub(super) fn end_session(&mut self, now: Timestamp, id: SessionId) -> usize {
        let first = (id, 0, TaskId(0));
        let last = (id, u32::MAX, TaskId(u64::MAX));
        let held: Vec<_> = self.shared.held.range(first..=last).copied().collect();
        for (_, number, task) in &held {
            self.give_back(now, *number, *task, ReleaseMode::SESSION_OVER);
            self.update_signals(*number);
        }
        for of_tube in held.chunk_by(|a, b| a.1 == b.1) {
            let ids: Vec<_> = of_tube.iter().map(|held| held.2).collect();
            self.note_failed(of_tube[0].1, ids.len());
            self.regate(now, of_tube[0].1, &ids);
        }
        if self.sessions.contains_key(&id) {
            self.set_session(id, None);
        }
        held.len()
    }

    pub(super) fn set_session(&mut self, id: SessionId, session: Option<Session>) {
        let ends = session.as_ref().and_then(|session| session.ends);
        let before = match session {
            Some(session) => self.sessions.insert(id, session),
            None => self.sessions.remove(&id),
        };
        if let Some(old) = before.as_ref().and_then(|session| session.ends) {
            self.session_ends.remove(&(old, id));
        }
        if let Some(new) = ends.filter(|ends| *ends != Timestamp::NEVER) {
            self.session_ends.insert((new, id));
        }
        self.journal.push(|| Entry::Session { id, before });
    }

    /// Removes all sessions, for stores that are opened.
    pub(super) fn forget_sessions(&mut self) {
        self.sessions.clear();
        self.session_ends.clear();
        self.session_ttr = Span::ZERO;
    }
}

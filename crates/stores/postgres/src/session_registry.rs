//! Registers the sessions that are connected to this server, as confirmed to their callers.
//!
//! The database has the same rows, until the answer to a batch is lost or other servers declare this one dead. Then
//! this registry is right and the rows are replaced by it: a join, leave or take whose caller got no answer did not
//! happen.

use std::collections::{BTreeSet, HashMap};

use taskyard_core::{Command, Error, Reply, SessionId};

use super::codec::{count_to_sql, session_to_sql};
use super::connection::Backend;
use super::plan::Step;
use super::statements::{self as sql, Call, param};

/// The sessions that are connected to this server.
#[derive(Debug, Default)]
pub(super) struct SessionRegistry {
    /// The number of connections of each.
    connections: HashMap<SessionId, i64>,
    /// The largest lease that was answered to a session. The leases that one connection gets only grow.
    last_lease: u64,
    /// What must be repaired before the next batch.
    divergence: Option<Divergence>,
}

/// Why the rows of the database may differ from the registry.
#[derive(Clone, Debug, Default)]
pub(super) struct Divergence {
    /// Backends whose transaction was under way when their connection broke. It may still run.
    pub backends: Vec<Backend>,
    /// Sessions that may hold tasks whose delivery was never answered.
    unsure: BTreeSet<SessionId>,
}

impl SessionRegistry {
    /// Notes the answers of one call.
    pub fn note(&mut self, step: &Step, replies: &[Result<Reply, Error>]) {
        let Some(command) = step.command() else { return };
        match (command, replies) {
            (Command::JoinSession { session, .. }, [Ok(_)]) => {
                *self.connections.entry(*session).or_default() += 1;
            }
            (Command::LeaveSession { session }, [Ok(_)]) => {
                if let Some(count) = self.connections.get_mut(session) {
                    *count -= 1;
                    if *count <= 0 {
                        self.connections.remove(session);
                    }
                }
            }
            (Command::LeaveSession { session }, [Err(Error::SessionUnknown(_))]) => {
                self.connections.remove(session);
            }
            (Command::Take(take), replies) if take.session.is_some() => {
                let tasks = replies.iter().filter_map(|reply| match reply {
                    Ok(Reply::Taken(tasks)) => Some(tasks),
                    _ => None,
                });
                let leases = tasks.flatten().filter_map(|task| Some(task.lease?.0));
                self.last_lease = leases.fold(self.last_lease, u64::max);
            }
            _ => {}
        }
    }

    /// Notes that the outcome of these steps is unknown.
    pub fn lost(&mut self, backend: Option<Backend>, steps: &[Step]) {
        let divergence = self.divergence.get_or_insert_default();
        divergence.backends.extend(backend);
        divergence.unsure.extend(steps.iter().filter_map(|step| match step.command()? {
            Command::Take(take) => take.session,
            _ => None,
        }));
    }

    /// Whether the database does not know a session that is connected here.
    pub fn is_unknown_to_database(&self, reply: &Result<Reply, Error>) -> bool {
        matches!(reply, Err(Error::SessionUnknown(session)) if self.connections.contains_key(session))
    }

    /// Notes that other servers may have declared this one dead.
    pub fn mark_diverged(&mut self) {
        self.divergence.get_or_insert_default();
    }

    /// What is to be repaired, if anything is.
    pub fn divergence(&self) -> Option<Divergence> {
        self.divergence.clone()
    }

    /// Notes that the database has the rows of this registry.
    pub fn reconciled(&mut self) {
        self.divergence = None;
    }

    /// The call that replaces the rows of the database.
    pub fn reconcile_call(&self, server: &[u8], divergence: &Divergence, now: Option<i64>) -> Call {
        let (sessions, counts): (Vec<_>, Vec<_>) = self
            .connections
            .iter()
            .map(|(session, count)| (session_to_sql(*session), *count))
            .unzip();
        let unsure: Vec<_> = divergence.unsure.iter().copied().map(session_to_sql).collect();
        let params = [
            param(server.to_vec()),
            param(sessions),
            param(counts),
            param(unsure),
            param(count_to_sql(self.last_lease)),
            param(now),
        ];
        Call::new(&sql::RESYNC_SERVER, params)
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Span, Take, TubeName};

    use super::super::plan::{CallDetail, StepRequest};
    use super::*;

    const SESSION: SessionId = SessionId([7; 16]);

    fn step(command: Command) -> Step {
        Step { places: vec![0], request: StepRequest::Commands(vec![command], CallDetail::None) }
    }

    fn join() -> Step {
        step(Command::JoinSession { session: SESSION, create: true })
    }

    fn leave() -> Step {
        step(Command::LeaveSession { session: SESSION })
    }

    fn connections(sessions: &SessionRegistry) -> Option<i64> {
        sessions.connections.get(&SESSION).copied()
    }

    #[test]
    fn only_answered_joins_and_leaves_count() {
        let mut sessions = SessionRegistry::default();
        let joined = [Ok(Reply::Session(SESSION))];
        sessions.note(&join(), &joined);
        sessions.note(&join(), &joined);
        sessions.note(&join(), &[Err(Error::OutcomeUnknown("lost".into()))]);
        assert_eq!(connections(&sessions), Some(2));
        sessions.note(&leave(), &[Err(Error::OutcomeUnknown("lost".into()))]);
        sessions.note(&leave(), &[Ok(Reply::Nothing)]);
        assert_eq!(connections(&sessions), Some(1));
        sessions.note(&leave(), &[Err(Error::SessionUnknown(SESSION))]);
        assert_eq!(connections(&sessions), None);
    }

    #[test]
    fn only_sessions_of_this_server_can_be_unknown() {
        let mut sessions = SessionRegistry::default();
        let unknown = Err(Error::SessionUnknown(SESSION));
        assert!(!sessions.is_unknown_to_database(&unknown));
        sessions.note(&join(), &[Ok(Reply::Session(SESSION))]);
        assert!(sessions.is_unknown_to_database(&unknown));
        assert!(!sessions.is_unknown_to_database(&Ok(Reply::Nothing)));
    }

    #[test]
    fn a_divergence_is_remembered_until_it_is_repaired() {
        let mut sessions = SessionRegistry::default();
        assert!(sessions.divergence().is_none());
        sessions.mark_diverged();
        assert!(sessions.divergence().is_some_and(|divergence| divergence.unsure.is_empty()));
        let tube = TubeName::new("mail").unwrap();
        let (session, lease, wait) = (Some(SESSION), None, Span::ZERO);
        let take = Command::Take(Take { tube, count: 1, session, lease, worker: None, wait });
        sessions.lost(None, &[step(take)]);
        assert!(
            sessions.divergence().is_some_and(|divergence| divergence.unsure.contains(&SESSION))
        );
        sessions.reconciled();
        assert!(sessions.divergence().is_none());
    }
}

//! Which sessions are connected here, as their callers were told.
//!
//! The database knows it too, until a batch is lost on the way, or this server is silent for so long that the
//! others take it for dead. Then what is noted here is right and the database is told anew. A caller who
//! learned nothing has joined and left nothing, and took nothing.

use std::collections::{BTreeSet, HashMap};

use taskyard_core::{Error, Reply, SessionId};

use super::codec::{count_to_sql, session_to_sql};
use super::connection::Backend;
use super::plan::{Ask, Step};
use super::statements::{self as sql, Call, param};

/// What this server knows of its sessions.
#[derive(Debug, Default)]
pub(super) struct Attendance {
    /// How many connections of each are here.
    connections: HashMap<SessionId, i64>,
    /// The largest lease that a session was told. Those that one connection gets only grow.
    last_lease: u64,
    /// What must be put in order before anything else is asked.
    disorder: Option<Disorder>,
}

/// Why the database may believe something else.
#[derive(Clone, Debug, Default)]
pub(super) struct Disorder {
    /// Whose work was under way when their connections broke; it may still be.
    pub backends: Vec<Backend>,
    /// Sessions for which something may have been taken that nobody was told of.
    unsure: BTreeSet<SessionId>,
}

impl Attendance {
    /// Takes in the answers of one call.
    pub fn note(&mut self, ask: &Ask, replies: &[Result<Reply, Error>]) {
        match (ask, replies) {
            (Ask::Join { session }, [Ok(_)]) => *self.connections.entry(*session).or_default() += 1,
            (Ask::Leave { session }, [Ok(_)]) => {
                if let Some(count) = self.connections.get_mut(session) {
                    *count -= 1;
                    if *count <= 0 {
                        self.connections.remove(session);
                    }
                }
            }
            (Ask::Leave { session }, [Err(Error::SessionUnknown(_))]) => {
                self.connections.remove(session);
            }
            (Ask::Take { session: Some(_), .. }, replies) => {
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

    /// Notes that nobody knows what came of these.
    pub fn lost(&mut self, backend: Option<Backend>, steps: &[Step]) {
        let disorder = self.disorder.get_or_insert_default();
        disorder.backends.extend(backend);
        disorder.unsure.extend(steps.iter().filter_map(|step| match &step.ask {
            Ask::Take { session, .. } => *session,
            _ => None,
        }));
    }

    /// Whether the database does not know a session that is connected here.
    pub fn has_lost(&self, reply: &Result<Reply, Error>) -> bool {
        matches!(reply, Err(Error::SessionUnknown(session)) if self.connections.contains_key(session))
    }

    /// Notes that others may have taken this server for dead.
    pub fn doubt(&mut self) {
        self.disorder.get_or_insert_default();
    }

    /// What is to be put in order, if anything is.
    pub fn disorder(&self) -> Option<Disorder> {
        self.disorder.clone()
    }

    /// Notes that all is in order.
    pub fn settled(&mut self) {
        self.disorder = None;
    }

    /// The call that tells the database.
    pub fn settle(&self, server: &[u8], disorder: &Disorder, now: Option<i64>) -> Call {
        let (sessions, counts): (Vec<_>, Vec<_>) = self
            .connections
            .iter()
            .map(|(session, count)| (session_to_sql(*session), *count))
            .unzip();
        let unsure: Vec<_> = disorder.unsure.iter().copied().map(session_to_sql).collect();
        let params = [
            param(server.to_vec()),
            param(sessions),
            param(counts),
            param(unsure),
            param(count_to_sql(self.last_lease)),
            param(now),
        ];
        Call::new(&sql::SETTLE_SERVER, params)
    }
}

#[cfg(test)]
mod tests {
    use super::super::heads::Start;
    use super::*;

    const SESSION: SessionId = SessionId([7; 16]);
    const JOIN: Ask = Ask::Join { session: SESSION };
    const LEAVE: Ask = Ask::Leave { session: SESSION };

    fn connections(attendance: &Attendance) -> Option<i64> {
        attendance.connections.get(&SESSION).copied()
    }

    #[test]
    fn only_what_callers_were_told_counts() {
        let mut attendance = Attendance::default();
        let joined = [Ok(Reply::Session(SESSION))];
        attendance.note(&JOIN, &joined);
        attendance.note(&JOIN, &joined);
        attendance.note(&JOIN, &[Err(Error::OutcomeUnknown("lost".into()))]);
        assert_eq!(connections(&attendance), Some(2));
        attendance.note(&LEAVE, &[Err(Error::OutcomeUnknown("lost".into()))]);
        attendance.note(&LEAVE, &[Ok(Reply::Nothing)]);
        assert_eq!(connections(&attendance), Some(1));
        attendance.note(&LEAVE, &[Err(Error::SessionUnknown(SESSION))]);
        assert_eq!(connections(&attendance), None);
    }

    #[test]
    fn only_sessions_that_are_connected_here_are_lost() {
        let mut attendance = Attendance::default();
        let unknown = Err(Error::SessionUnknown(SESSION));
        assert!(!attendance.has_lost(&unknown));
        attendance.note(&JOIN, &[Ok(Reply::Session(SESSION))]);
        assert!(attendance.has_lost(&unknown));
        assert!(!attendance.has_lost(&Ok(Reply::Nothing)));
    }

    #[test]
    fn a_loss_is_remembered_until_it_is_settled() {
        let mut attendance = Attendance::default();
        assert!(attendance.disorder().is_none());
        attendance.doubt();
        assert!(attendance.disorder().is_some_and(|disorder| disorder.unsure.is_empty()));
        let tube = taskyard_core::TubeName::new("mail").unwrap();
        let start = Start { from: None, may_sweep: false };
        let ask = Ask::Take { tube, session: Some(SESSION), lease: None, counts: vec![1], start };
        attendance.lost(None, &[Step { places: vec![0], ask }]);
        assert!(attendance.disorder().is_some_and(|disorder| disorder.unsure.contains(&SESSION)));
        attendance.settled();
        assert!(attendance.disorder().is_none());
    }
}

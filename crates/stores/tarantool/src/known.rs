//! What this server remembers between batches.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use taskyard_core::{Command, Reply, SessionId, Timestamp, TubeName};

/// What this server remembers.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The connection that it knows this from.
    pub link: u64,
    /// The caller's latest moment.
    pub now: Option<Timestamp>,
    /// Lease numbers that are this server's.
    pub leases: Range<u64>,
    /// The number of the last call. Tarantool does not do those of before the last settling any more.
    pub calls: u64,
    /// How many connections each session has here, as their callers were told.
    pub sessions: HashMap<SessionId, u64>,
    /// What must be put in order before anything else is asked.
    pub disorder: Option<Disorder>,
}

/// Why Tarantool may believe something else.
#[derive(Clone, Debug, Default)]
pub(super) struct Disorder {
    /// Deliveries that nobody may have heard of: the tube, and the first and last of their numbers.
    pub unheard: BTreeSet<(TubeName, u64, u64)>,
}

impl Known {
    /// Tarantool may believe something else than this server.
    pub fn doubt(&mut self) -> &mut Disorder {
        self.disorder.get_or_insert_default()
    }

    /// Whether this is another connection than before. It may be one to another instance, which may lack what the last one heard:
    /// it is told everything again, and lease numbers that were reserved there are not used here.
    pub fn is_new(&mut self, link: u64) -> bool {
        let is_new = std::mem::replace(&mut self.link, link) != link;
        if is_new {
            self.doubt();
            self.leases = 0..0;
        }
        is_new
    }

    /// Takes in what a command did to sessions here.
    pub fn learn(&mut self, command: &Command, reply: &Reply) {
        match (command, reply) {
            (Command::JoinSession { .. }, Reply::Session(session)) => {
                *self.sessions.entry(*session).or_default() += 1;
            }
            (Command::LeaveSession { session }, Reply::Nothing) => {
                if let Some(count) = self.sessions.get_mut(session) {
                    *count -= 1;
                    if *count == 0 {
                        self.sessions.remove(session);
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_here_until_its_last_connection_leaves() {
        let (mut known, session) = (Known::default(), SessionId([7; 16]));
        let join = Command::JoinSession { session, create: true };
        let leave = Command::LeaveSession { session };
        known.learn(&join, &Reply::Session(session));
        known.learn(&join, &Reply::Session(session));
        known.learn(&leave, &Reply::Nothing);
        assert_eq!(known.sessions[&session], 1);
        known.learn(&leave, &Reply::Nothing);
        known.learn(&leave, &Reply::Nothing);
        assert!(known.sessions.is_empty());
    }
}

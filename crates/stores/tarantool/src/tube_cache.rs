//! Caches what this server knows between batches: sessions, lease numbers, lost replies.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use taskyard_core::{Command, Reply, SessionId, Timestamp, TubeName};

/// What this server knows between batches.
#[derive(Debug, Default)]
pub(super) struct TubeCache {
    /// The connection from which it knows this.
    pub link: u64,
    /// The caller's latest moment.
    pub now: Option<Timestamp>,
    /// Lease numbers that are reserved for this server.
    pub leases: Range<u64>,
    /// The number of the last call. Tarantool refuses calls from before the last resync.
    pub calls: u64,
    /// The number of connections of each session here, as their callers know it.
    pub sessions: HashMap<SessionId, u64>,
    /// What must be corrected in Tarantool before the next call.
    pub resync: Option<Resync>,
}

/// The differences that there may be between Tarantool and this server.
#[derive(Clone, Debug, Default)]
pub(super) struct Resync {
    /// Deliveries whose replies were lost: the tube, and the first and last of their lease numbers.
    pub unacknowledged: BTreeSet<(TubeName, u64, u64)>,
}

impl TubeCache {
    /// Tarantool may differ from what this server knows: it is corrected before the next call.
    pub fn request_resync(&mut self) -> &mut Resync {
        self.resync.get_or_insert_default()
    }

    /// Whether this is another connection than before. It may be one to another instance, which may not have the last writes:
    /// it is corrected, and lease numbers that were reserved before are not used.
    pub fn is_new(&mut self, link: u64) -> bool {
        let is_new = std::mem::replace(&mut self.link, link) != link;
        if is_new {
            self.request_resync();
            self.leases = 0..0;
        }
        is_new
    }

    /// Records what a command did to sessions here.
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
    fn a_session_is_connected_until_its_last_connection_leaves() {
        let (mut cache, session) = (TubeCache::default(), SessionId([7; 16]));
        let join = Command::JoinSession { session, create: true };
        let leave = Command::LeaveSession { session };
        cache.learn(&join, &Reply::Session(session));
        cache.learn(&join, &Reply::Session(session));
        cache.learn(&leave, &Reply::Nothing);
        assert_eq!(cache.sessions[&session], 1);
        cache.learn(&leave, &Reply::Nothing);
        cache.learn(&leave, &Reply::Nothing);
        assert!(cache.sessions.is_empty());
    }
}
